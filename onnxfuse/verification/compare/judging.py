"""Criteria by which the outputs of a verification are judged."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from onnxfuse.verification.compare.rounding import Rounding
from onnxfuse.verification.tolerance import error_budget
from onnxfuse.verification.tolerance.user_tolerances import Tolerances


@dataclass(frozen=True)
class Judging:
    """Criteria for the outputs."""

    tolerances: Tolerances = field(default_factory=lambda: Tolerances({}, {}))
    """Tolerances that replace the error budget, for the outputs that they name."""
    nan: error_budget.NanPolicy = "equal"
    top_k: tuple[int, ...] | None = None
    """Top-k agreements to report over the last axis; None for CLASS_RANKS of the outputs that `classes` takes for class
    scores."""
    rounding: Rounding = ""
    """Additional rounding attributed to the original: `tf32`, with products rounded as by `as_tf32`; `half`, with every
    half-precision value rounded to its type."""
    wide: bool = False
    """Whether half-precision models are also compared in float32 (`wide`); windows expose a fault without it."""
    use_tf32: bool | None = None
    """ONNX Runtime's CUDA option; None for what the fused file says, else ONNX Runtime's default, which rounds."""
    reach: Mapping[str, float] = field(default_factory=dict)
    """How far ties of rounding inside the original move each output; of windows (`inner_ties`)."""
