"""Arithmetic on shapes whose extents may be unknown: broadcasting, numbers of elements."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from onnxfuse.ops.shapes import extents
from onnxfuse.ops.shapes.extents import is_known, unknown
from onnxfuse.shapes.types import Dim, Shape
from onnxfuse.symbolic.element_types import UnsupportedError

T = TypeVar("T")


def computed(compute: Callable[..., T], *dims: Dim) -> T | None:
    """Return the result of `compute` on extents; None if one of them is unknown."""
    extents = [e for e in dims if e is not None]
    return compute(*extents) if len(extents) == len(dims) else None


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the broadcast shape by numpy's rules, None for an extent that they do not determine.

    None, too, if a rank is unknown, or the shapes do not broadcast.
    """
    complete: Any = [[unknown() if d is None else d for d in s] for s in shapes if s is not None]
    if len(complete) != len(shapes) or not complete:
        return None
    try:
        return tuple(d if is_known(d) else None for d in extents.broadcast(complete))
    except UnsupportedError:
        return None


def element_count(shape: Sequence[Dim]) -> Dim:
    """Return the product of extents, None if one is unknown."""
    extents = [d for d in shape if d is not None]
    return math.prod(extents) if len(extents) == len(shape) else None


def reshape_target(source: Sequence[Dim], result: Sequence[Dim]) -> list[int] | None:
    """Return the target of a Reshape from one shape to another, in which a 0 copies; None if none is constant.

    One extent may be -1, the remaining one, if no other can be 0: a session does not find it out then.
    """
    target = [_extent(n, source[axis] if axis < len(source) else None) for axis, n in enumerate(result)]
    if target.count(None) == 1 and 0 not in target and _may_agree(source, result):
        return [-1 if n is None else n for n in target]
    constants = [n for n in target if n is not None]
    return constants if len(constants) == len(target) else None


def _may_agree(source: Sequence[Dim], result: Sequence[Dim]) -> bool:
    """Return whether both may have equal element counts by their names, so that -1 resolves to a named extent.

    Exporters bake the length of an example into one of two extents: [s, b, 64] -> [16, 4*b, 16] says more than -1
    would.
    """
    before, after = element_count(source), element_count(result)
    return before is None or after is None or before == after


def _extent(wanted: Dim, own: Dim) -> int | None:
    """Return the entry of a Reshape's target for an extent, given the operand's own at that axis; None for neither."""
    if isinstance(wanted, int):
        return wanted if wanted > 0 else None
    return 0 if wanted is not None and wanted == own else None
