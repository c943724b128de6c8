"""Inputs at two shapes: the sizes that an export was made with, and others where its dimensions are open."""

from collections.abc import Mapping

import onnx

from onnxfuse.verification.inputs import Array, cases, input_specs

SIZES = {
    "batch": (2, 3), "sequence": (16, 11), "target": (16, 11), "past": (12, 7), "total": (13, 8), "frames": (32, 21),
    "time": (100, 77), "height": (128, 96), "width": (128, 160),
}  # fmt: skip
"""The sizes of open dimensions by their names in the exports; `total` is `past` and one token more."""

TIMED = ({"batch": 8}, {"batch": 1})
"""What is timed where the batch is open: the first is what the row's own figures are of."""


ONES = ({"batch": 1}, {"sequence": 1, "target": 1}, {"past": 1, "total": 2})
"""Sizes of one: an extent of one spreads over others, and what tells axes apart by their sizes is wrong there."""


def sizes_of(model: onnx.ModelProto, turn: int, **other: int) -> dict[str, int]:
    """Return the sizes of the open dimensions in one of two turns; `other` takes their place."""
    names = {d for s in input_specs(model) for d in s.shape if isinstance(d, str)}
    return {n: other.get(n, SIZES[n][turn]) for n in sorted(names) if n in SIZES}


def feeds(model: onnx.ModelProto, turn: int, seed: int = 0, **other: int) -> Mapping[str, Array]:
    """Return values of the standard normal distribution, valid ids and masks, at the sizes of a turn."""
    shapes = {name: (size,) for name, size in sizes_of(model, turn, **other).items()}
    normal = next(c for c in cases(input_specs(model), [seed], shapes) if c.name == "normal")
    return normal.make()
