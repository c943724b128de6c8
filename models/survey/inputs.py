"""Inputs at two shapes: the sizes that an export was made with, and others where its dimensions are open."""

from collections.abc import Mapping

import onnx

from onnxfuse.verification.inputs.input_specs import input_specs
from onnxfuse.verification.inputs.inputs import Array, cases

SIZES = {
    "batch": (2, 3), "sequence": (16, 11), "target": (16, 11), "past": (12, 7), "total": (13, 8), "frames": (32, 21),
    "time": (100, 77), "height": (128, 96), "width": (128, 160),
}  # fmt: skip
"""The sizes of open dimensions by their names in the exports; `total` is `past` and one token more."""

TIMED = ({"batch": 8}, {"batch": 1})
"""What is timed where the batch is open: the first is what the row's own figures are of."""


ONES = ({"batch": 1}, {"sequence": 1, "target": 1}, {"past": 1, "total": 2})
"""Sizes of one: an extent of one spreads over others, and what tells axes apart by their sizes is wrong there."""


def words(model: onnx.ModelProto) -> dict[str, str]:
    """Return the open dimensions by their names, each with the word of SIZES for it.

    Of exporters that name dimensions by numbers, tf2onnx and paddle2onnx, the first axis is the batch.
    """
    dims = [(d, axis) for s in input_specs(model) for axis, d in enumerate(s.shape) if isinstance(d, str)]
    return {d: d for d, _ in dims if d in SIZES} | {d: "batch" for d, axis in dims if d not in SIZES and axis == 0}


def sizes_of(model: onnx.ModelProto, turn: int, **other: int) -> dict[str, int]:
    """Return the sizes of the open dimensions in one of two turns; `other` takes their place."""
    return {name: other.get(word, SIZES[word][turn]) for name, word in sorted(words(model).items())}


def feeds(model: onnx.ModelProto, turn: int, seed: int = 0, **other: int) -> Mapping[str, Array]:
    """Return values of the standard normal distribution, valid ids and masks, at the sizes of a turn."""
    shapes = {name: (size,) for name, size in sizes_of(model, turn, **other).items()}
    normal = next(c for c in cases(input_specs(model), [seed], shapes) if c.name == "normal")
    return normal.make()
