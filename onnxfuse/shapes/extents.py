"""Arithmetic on shapes whose extents may be unknown: broadcasting, numbers of elements."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from onnxfuse.ops.shapes import extents
from onnxfuse.ops.shapes.extents import is_known, unknown
from onnxfuse.shapes.types import Dim, Shape
from onnxfuse.symbolic.element_types import UnsupportedError

T = TypeVar("T")


def computed(compute: Callable[..., T], *given: Dim) -> T | None:
    """Return what a function computes from extents, None if one of them is unknown."""
    known = [e for e in given if e is not None]
    return compute(*known) if len(known) == len(given) else None


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the broadcast shape by numpy's rules, None for an extent that they do not determine.

    None, too, if a rank is unknown, or the shapes do not broadcast.
    """
    known: Any = [[unknown() if d is None else d for d in s] for s in shapes if s is not None]
    if len(known) != len(shapes) or not known:
        return None
    try:
        return tuple(d if is_known(d) else None for d in extents.broadcast(known))
    except UnsupportedError:
        return None


def element_count(shape: Sequence[Dim]) -> Dim:
    """Return the product of extents, None if one is unknown."""
    known = [d for d in shape if d is not None]
    return math.prod(known) if len(known) == len(shape) else None
