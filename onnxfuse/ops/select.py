"""Operators that choose elements by their values."""

from onnxfuse.ops.families import moving
from onnxfuse.ops.inputs import DATA, Count, Fraction, Length
from onnxfuse.ops.registry import Operator, Trait

__all__ = ["NonMaxSuppression", "NonZero", "TopK", "Unique"]

TopK = moving("TopK", Trait.CHOOSES, Trait.SHAPES_ON_CUDA, inputs={"X": DATA, "K": Length("X", ("axis", -1))})
NonZero = moving("NonZero", Trait.SIZE_FROM_DATA)
NonMaxSuppression = Operator(
    "NonMaxSuppression",
    Trait.CHOOSES,
    Trait.SIZE_FROM_DATA,
    Trait.FLOATS_ON_CUDA,
    inputs={
        "boxes": DATA,
        "scores": DATA,
        "max_output_boxes_per_class": Count(),
        "iou_threshold": Fraction(),
        "score_threshold": Fraction(-1, 1),
    },
)
Unique = moving("Unique", Trait.SIZE_FROM_DATA)
