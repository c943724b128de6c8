"""Lower-precision conversion before fusion, and its check against the contract afterwards."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from onnx import ModelProto

from onnxfuse.api.request.model_source import Origin, copied
from onnxfuse.api.request.optimize_pipeline import OptimizePipeline
from onnxfuse.api.request.options import Options
from onnxfuse.fusion.undo.unfuse import unfuse
from onnxfuse.graph.normalize import normalize
from onnxfuse.model import precision_record
from onnxfuse.model.precision_record import PrecisionRecord
from onnxfuse.rules.language.rule_file import Rule
from onnxfuse.support.progress import Steps, silent

if TYPE_CHECKING:
    from onnxfuse.precision import Lowering
    from onnxfuse.verification.cases.planning import RealInputs

__all__ = ["PrecisionRecord", "converted", "lowering"]


def lowering(
    precision: str | None, inputs: "tuple[RealInputs, ...]" = (), tolerance: float | None = None, io: str | None = None,
    seconds: float | None = None, keep_fp32: tuple[str, ...] = (),
) -> "Lowering | None":  # fmt: skip
    """Return the requested conversion; None if there is none. Raises UsageError for an unknown one."""
    if precision is None:
        return None
    from onnxfuse.precision import SECONDS, Lowering  # ONNX Runtime is imported only when something is run.

    return Lowering(precision, tuple(inputs), tolerance, io or "float32", seconds or SECONDS, tuple(keep_fp32))


def converted(
    model: ModelProto, origin: Origin, options: Options, rules: Sequence[Rule], progress: Steps
) -> tuple[Origin, PrecisionRecord | None]:
    """Convert `model`, loaded from `origin`, as the options request; return its new origin and precision record.

    The fused result is checked against the contract.

    Raises ModelError if the contract is not met, UsageError.
    """
    if options.precision is None:
        return origin, precision_record.read(model)
    from onnxfuse.precision import convert

    def finished(lowered: ModelProto) -> ModelProto:
        at = Origin(copied(lowered), origin.strict_fp32)
        fresh = at.fresh()
        OptimizePipeline(at).run(fresh, rules, silent)
        return fresh

    with origin.named():
        normalize(model, freeze=options.freeze_initializers)
        unfuse(model)
        record = convert(model, options.precision, progress, finished)
    return Origin(copied(model), origin.strict_fp32), record
