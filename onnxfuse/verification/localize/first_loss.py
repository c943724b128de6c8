"""Locate the node at which a file in lower precision loses accuracy: its inputs meet the contract, its output does not.

Values keep their names when a model is converted and fused, so each value that both models compute is compared with the
reference.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto

from onnxfuse.model.precision_record import TYPES, PrecisionRecord
from onnxfuse.verification.cases.planning import RealInputs, plan_of
from onnxfuse.verification.compare.compare import load
from onnxfuse.verification.compare.lower_precision_check import as_declared
from onnxfuse.verification.inputs.input_specs import input_specs
from onnxfuse.verification.localize.bisect import describe_suspect
from onnxfuse.verification.reference.float64_reference import as_half, in_type
from onnxfuse.verification.reference.reference import float64_evaluator
from onnxfuse.verification.report.localization import Localization
from onnxfuse.verification.report.report import VerifyReport
from onnxfuse.verification.run import sessions
from onnxfuse.verification.run.more_outputs import with_outputs
from onnxfuse.verification.run.sessions import Source
from onnxfuse.verification.tolerance.lower_precision import relative_rms

Arrays = Mapping[str, npt.NDArray[Any]]


def investigate(
    original: Source, fused: Source, report: VerifyReport, inputs: Sequence[RealInputs] | None, seeds: Sequence[int]
) -> VerifyReport:
    """Return the report with the node at which its worst output loses accuracy; unchanged if nothing is wrong."""
    row = max(report.outputs, key=lambda r: r.severity, default=None)
    if row is None or report.contract is None or not row.fault:
        return report
    models = load(original, "original"), load(fused, "fused")
    recipe = report.cases[row.case].made
    case = plan_of(input_specs(models[0]), inputs, seeds, None)[row.case] if recipe is None else recipe
    localization = first_loss(*models, report.contract, case.make(), [report.provider, sessions.CPU], row.fault)
    return replace(report, bisection=localization)


def first_loss(
    original: ModelProto,
    fused: ModelProto,
    lowered: PrecisionRecord,
    feeds: Arrays,
    providers: Sequence[str],
    fault: str,
) -> Localization:
    """Return the first node of `fused` beyond the tolerance with inputs within it; else the one that adds the most
    error."""
    true = _values(original, fused, feeds)
    actual = _run(fused, list(true), feeds, providers)
    errors = {
        name: relative_rms(actual[name], true[name])[0] for name in true if actual[name].shape == true[name].shape
    }
    worst, ratio = None, 0.0
    for position, node in enumerate(fused.graph.node):
        output_error = max((errors.get(o, 0.0) for o in node.output), default=0.0)
        input_error = max((errors.get(i, 0.0) for i in node.input), default=0.0)
        if output_error > lowered.tolerance >= input_error:
            worst, ratio = position, output_error
            break
        if output_error > max(input_error, lowered.tolerance / 100) * max(ratio, 1.0):
            worst, ratio = position, output_error / max(input_error, lowered.tolerance / 100)
    checked = len(errors)
    if worst is None:
        return Localization(None, (), "no value that both models have says more", fault, (), "", (), (), checked)
    guilty = describe_suspect(fused, worst)
    error = max(errors.get(o, 0.0) for o in fused.graph.node[worst].output)
    fault_text = f"relative RMS error {error:.3g} at '{guilty.output}', allowed {lowered.tolerance:.3g}"
    return Localization(
        guilty=guilty, rules=(guilty.rule,) if guilty.rule else (), why="what it reads is nearer the truth",
        fault=fault_text, inputs=tuple(i for i in fused.graph.node[worst].input if i in errors), output=guilty.output,
        window=(guilty,), replaced=guilty.nodes, checked=checked,
    )  # fmt: skip


def _values(original: ModelProto, fused: ModelProto, feeds: Arrays) -> Arrays:
    """Return the reference of every float value that both models compute."""
    computed = {o for n in original.graph.node for o in n.output if o}
    original_names = {o: _original_name(o) for n in fused.graph.node for o in n.output if _original_name(o) in computed}
    names = list(dict.fromkeys(original_names.values()))
    with with_outputs(original, names) as with_values:
        evaluator = float64_evaluator(with_values, stand_in=True)
        with np.errstate(all="ignore"):
            values = evaluator.run(names, in_type(feeds, np.float64))
    floats = {n: np.asarray(x) for n, x in zip(names, values, strict=True) if np.asarray(x).dtype.kind == "f"}
    return {o: floats[name] for o, name in original_names.items() if name in floats}


def _original_name(value: str) -> str:
    """Return the name in the original model of a value that may have been converted to another type."""
    return next((value.removesuffix(f".{t}") for t in TYPES if value.endswith(f".{t}")), value)


def _run(fused: ModelProto, names: Sequence[str], feeds: Arrays, providers: Sequence[str]) -> Arrays:
    """Return the fused model's results for these values; bfloat16 on the CPU as rounded float32."""
    with with_outputs(fused, names) as with_values:
        arrays = as_declared(feeds, fused)
        if providers[0] == sessions.CPU:
            return as_half(with_values)(arrays)
        return sessions.run(sessions.with_kernels(with_values, providers), arrays, names)
