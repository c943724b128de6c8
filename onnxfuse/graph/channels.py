"""Channels-first images, ONNX's layout, and channels-last images, the kernels' layout: permutations between the two.

Signals [batch, channels, length] are treated as images of one row: channels last they are [batch, 1, length, channels],
so that image kernels apply to them. Volumes are [batch, channels, depth, height, width].
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node

LAST = (0, 2, 3, 1)
"""Permutation of a Transpose from channels first to channels last."""
FIRST = (0, 3, 1, 2)
"""The inverse permutation; it also maps each channels-first axis to its channels-last axis."""
_LAST_OF = {3: LAST, 4: LAST, 5: (0, 2, 3, 4, 1)}
_FIRST_OF = {3: FIRST, 4: FIRST, 5: (0, 4, 1, 2, 3)}

ROW, LAST_ROW = 2, 1
"""Axis at which a signal's unit row axis is inserted, channels first and last."""

Item = TypeVar("Item")


def has_form(rank: int | None) -> bool:
    """Return whether values of this rank have a channels-last form."""
    return rank in _LAST_OF


def to_last(rank: int) -> tuple[int, ...]:
    """Return the permutation from channels first to channels last; for signals with their row axis."""
    return _LAST_OF[rank]


def to_first(rank: int) -> tuple[int, ...]:
    """Return the inverse permutation."""
    return _FIRST_OF[rank]


def channels_last_axis(rank: int, axis: int) -> int:
    """Return the channels-last index of a channels-first axis, which is negative, from the end."""
    axis %= rank
    return _FIRST_OF[rank][axis + (rank == 3 and axis >= ROW)]


def with_row(shape: Sequence[Item], one: Item) -> tuple[Item, ...]:
    """Return a shape; for a signal with `one` inserted as the extent of its row axis."""
    return (*shape[:ROW], one, *shape[ROW:]) if len(shape) == 3 else tuple(shape)


def over_rows(attributes: Mapping[str, object], rank: int | None) -> dict[str, Any]:
    """Return a signal convolution's attributes as those of a convolution over one-row images; empty for other ranks."""
    if rank != 3:
        return {}
    lists = {name: value for name, value in attributes.items() if isinstance(value, list)}
    along = {"kernel_shape": 1, "strides": 1, "dilations": 1, "output_padding": 0, "output_shape": 1}
    changes = {name: [one, *values] for name, one in along.items() if (values := lists.get(name))}
    ends = lists.get("pads")
    return {**changes, **({"pads": [0, ends[0], 0, ends[1]]} if ends else {})}


def channels_last_array(array: np.ndarray) -> np.ndarray:
    """Return an array of this rank permuted to channels last."""
    return array.reshape(with_row(array.shape, 1)).transpose(_LAST_OF[array.ndim])


def is_nhwc_to_nchw(node: Node) -> bool:
    """Return whether `node` is the Transpose from channels last to channels first."""
    return perm_of(node) in _FIRST_OF.values()


def is_nchw_to_nhwc(node: Node) -> bool:
    """Return whether `node` is the Transpose from channels first to channels last."""
    return perm_of(node) in _LAST_OF.values()


def is_signal_transpose(node: Node) -> bool:
    """Return whether `node` is a Transpose between signals channels first and last, without a row axis."""
    return perm_of(node) == (0, 2, 1)


def order_of(graph: Graph, node: Node) -> list[int] | None:
    """Return the permutation of a Transpose, None if its rank is unknown."""
    order = graph.attributes(node).get("perm")
    return [int(axis) for axis in order] if isinstance(order, list) else None


def perm_of(node: Node) -> tuple[int, ...] | None:
    """Return the permutation attribute of a Transpose, None if it is not written, and for another operator."""
    if node.op != ops.Transpose or node.domain:
        return None
    return next((tuple(a.ints) for a in node.proto.attribute if a.name == "perm"), None)
