"""Profile memory traffic (counted from shapes), time per node, and every GPU kernel.

>>> report = profile("in.onnx", "out.onnx", shapes={"batch": (32,)})
>>> report.summary
'device memory per run: 616 MB -> 329 MB (53%); 11.2 GFLOP'
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx

from onnxfuse.measure.profile.report import KernelTime, KindTime, ModelProfile, Profile, RunTime
from onnxfuse.options.functions import PROFILED
from onnxfuse.support.progress import Steps, silent

__all__ = ["KernelTime", "KindTime", "ModelProfile", "Profile", "RunTime", "profile"]

Source = str | Path | bytes | onnx.ModelProto


def profile(
    model: Source,
    fused: Source | None = None,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    providers: Sequence[str] | None = None,
    time: bool = True,
    cuda_graph: bool = False,
    use_tf32: bool | None = None,
    runs: int = PROFILED,
    seed: int = 0,
    progress: Steps | None = None,
) -> Profile:
    """Return how bytes, operations and time of one run of `model` are distributed, and those of `fused` for comparison.

    Each may be a path, bytes or a ModelProto. `shapes` maps a dimension name to its size, `{"batch": (32,)}`, or an
    input to its shape; other dynamic dimensions are 1. `time=False` counts from shapes alone, and runs nothing.
    `providers` are ONNX Runtime's, by default CUDA if it works. On CUDA kernels are traced through CUPTI, in sessions
    at the default setting, or in a CUDA graph; without CUPTI bytes are counted, and the report says why nothing is
    timed, unless `providers` requests CUDA. `use_tf32` is ONNX Runtime's CUDA option: by default 0 for models made with
    `--strict-fp32`, else 1. `progress(step)` is called along the way.

    Raises ModelError, UsageError, DeviceError, KernelError.
    """
    from onnxfuse.measure.profile.run import measure  # ONNX Runtime is imported only when something is run.

    return measure(
        model, fused, shapes or {}, providers, time=time, cuda_graph=cuda_graph, use_tf32=use_tf32,
        runs=runs, seed=seed, progress=progress or silent,
    )  # fmt: skip
