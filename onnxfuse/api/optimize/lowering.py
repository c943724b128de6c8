"""Lower-precision conversion before fusion, and its check against the contract afterwards."""

from collections.abc import Sequence

from onnx import ModelProto

from onnxfuse.api.request.optimize_pipeline import OptimizePipeline
from onnxfuse.api.request.options import Options
from onnxfuse.api.request.origin import Origin
from onnxfuse.files.model_source import copied
from onnxfuse.fusion.undo.unfuse import unfuse
from onnxfuse.graph.normalize import normalize
from onnxfuse.model import precision_record
from onnxfuse.model.precision_record import PrecisionRecord
from onnxfuse.rules.language.rule_file import Rule
from onnxfuse.support.progress import Steps, silent

__all__ = ["PrecisionRecord", "converted"]


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
