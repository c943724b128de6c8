"""Verify that a fused model computes what the original computes, as accurately as the original itself does.

>>> report = verify("in.onnx", "out.onnx")
>>> report.ok, report.summary
(True, 'same within the error budget: 1 output, 6 cases')
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy.typing as npt
import onnx

from onnxfuse.support.progress import Progress, silent
from onnxfuse.verification.report.localization import Localization, Suspect
from onnxfuse.verification.report.report import SCHEMA, VerifyReport
from onnxfuse.verification.report.rows import CaseRow, KernelRow, OutputRow
from onnxfuse.verification.tolerance.error_budget import NanPolicy
from onnxfuse.verification.tolerance.metrics import Difference
from onnxfuse.verification.tolerance.output_error import Measure
from onnxfuse.verification.tolerance.user_tolerances import ALL, Tolerances, Tolerated

__all__ = [
    "SCHEMA",
    "CaseRow",
    "Difference",
    "KernelRow",
    "Localization",
    "Measure",
    "OutputRow",
    "Suspect",
    "Tolerated",
    "VerifyReport",
    "verify",
]

Source = str | Path | bytes | onnx.ModelProto
RealInputs = str | Path | Mapping[str, npt.NDArray[Any]]
Tolerance = float | Mapping[str, float] | None
"""For every output, or by output name or element type; the key "" is every output."""


def verify(
    original: Source,
    fused: Source,
    *,
    inputs: RealInputs | Sequence[RealInputs] | None = None,
    seeds: Sequence[int] = (0,),
    shapes: Mapping[str, Sequence[int]] | None = None,
    providers: Sequence[str] | None = None,
    fused_providers: Sequence[str] | None = None,
    truth: Literal["auto", "float64", "float32"] = "auto",
    rtol: Tolerance = None,
    atol: Tolerance = None,
    nan: NanPolicy = "equal",
    top_k: Sequence[int] | None = None,
    use_tf32: bool | None = None,
    seconds: float | None = None,
    memory: int | None = None,
    rules: Sequence[str | Path] = (),
    progress: Progress | None = None,
    extra_cases: bool = True,
) -> VerifyReport:
    """Compare `fused` with `original`, and return whether it is as accurate as the original itself.

    Both may be a path (of any size), bytes or a ModelProto. `inputs` are real ones (.npz, .npy, .json, .pb,
    test_data_set_*, or arrays by name), instead of generated ones for each of `seeds`. `shapes` sets dynamic
    dimensions: a dimension name and its values, `{"batch": (1, 7)}`, or an input and its shape. `providers` are ONNX
    Runtime's, by default CUDA if it works; there every fused op must run as its kernel. `fused_providers` runs the
    fused model elsewhere. `rtol` and `atol` replace the error budget, for all outputs or by name or type. `nan="fail"`
    treats non-finite values as faults. `top_k` requests those agreements over the last axis. `use_tf32` is ONNX
    Runtime's CUDA option, for both models: by default 0 if the fused file was made with `--strict-fp32`, else 1.
    `seconds` is the time limit for the cases, by default 300, and again as much for doubtful ones; `memory` limits the
    bytes for the values of one case, by default half of what is free. At least one case is run; omitted ones are
    reported. `rules` are the folders of your own rules that made the fused model, as for `onnxfuse.session`.
    `extra_cases=False` omits large sizes and values, and the search for more informative inputs.
    `progress(step, done, total)` is called along the way.

    The outputs of a quantized model, which rounds inside, say little where they leave the budget: then its parts are
    judged, each on the original's own values (`report.parts`).

    Raises ModelError, UsageError, DeviceError. The criterion is defined in
    `onnxfuse.verification.tolerance.error_budget`, that of the parts in `onnxfuse.verification.localize.quantized`.
    """
    # ONNX Runtime is imported only when something is run.
    from onnxfuse.verification.cases.limits import Limits
    from onnxfuse.verification.compare.compare import compare, load
    from onnxfuse.verification.compare.judging import Judging
    from onnxfuse.verification.localize.quantized import judged_by_parts, leaves_parts

    several = None if inputs is None else [inputs] if isinstance(inputs, str | Path | Mapping) else list(inputs)
    tolerances = Tolerances(_numbers(rtol), _numbers(atol))
    judging = Judging(tolerances, nan, None if top_k is None else tuple(top_k), wide=True, use_tf32=use_tf32)
    report = compare(
        original, fused, several, seeds, shapes, providers, truth, progress or silent, judging, fused_providers,
        Limits(Limits().seconds if seconds is None else seconds, Limits().memory if memory is None else memory), rules,
        extra_cases=extra_cases,
    )  # fmt: skip
    if not leaves_parts(report):
        return report
    return judged_by_parts(
        load(original, "original"), load(fused, "fused"), report, inputs=several, seeds=seeds, shapes=shapes,
        progress=progress or silent,
    )  # fmt: skip


def _numbers(tolerance: Tolerance) -> Mapping[str, float]:
    if isinstance(tolerance, Mapping):
        return tolerance
    return {} if tolerance is None else {ALL: tolerance}
