"""How the outputs of a verification are judged."""

from dataclasses import dataclass, field

from onnxfuse.verification.compare.rounding import Rounding
from onnxfuse.verification.tolerance import error_budget
from onnxfuse.verification.tolerance.tolerance import Tolerances


@dataclass(frozen=True)
class Judging:
    """How outputs are judged."""

    tolerances: Tolerances = field(default_factory=lambda: Tolerances({}, {}))
    """In place of the error budget, for the outputs that they name."""
    nan: error_budget.NanPolicy = "equal"
    top_k: tuple[int, ...] | None = None
    """Agreements that are told of the last axis; None for CLASS_RANKS of what `classes` takes for class scores."""
    rounding: Rounding = ""
    """By what else than its own runs the original's error is judged: `tf32`, with the factors of products rounded to
    that; `half`, with every half value rounded to its type."""
    wide: bool = False
    """Whether models of half types are compared in float32 too (`wide`); windows show a fault without that."""
    use_tf32: bool | None = None
    """ONNX Runtime's CUDA option; None for what the fused file says, and else its default, which is to round."""
