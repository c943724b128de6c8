"""Arithmetic on shapes whose extents may be unknown: broadcasting, numbers of elements, quotients of them."""

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

from onnxfuse.shapes.types import Dim, Shape
from onnxfuse.symbolic.integer import exact_quotient, is_minimum_with

T = TypeVar("T")


def computed(compute: Callable[..., T], *extents: Dim) -> T | None:
    """Return what a function computes from extents, None if one of them is unknown."""
    known = [e for e in extents if e is not None]
    return compute(*known) if len(known) == len(extents) else None


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the broadcast shape by numpy's rules, None for an extent that they do not determine."""
    known = [s for s in shapes if s is not None]
    if len(known) != len(shapes) or not known:
        return None
    rank = max(len(s) for s in known)
    columns = zip(*((1,) * (rank - len(s)) + s for s in known), strict=True)
    return tuple(_common(column) for column in columns)


def _common(column: Sequence[Dim]) -> Dim:
    """Return the broadcast extent by numpy's rules.

    min(a, b) broadcast with a is a: 1 is repeated, and any other mismatch does not run.
    """
    wide = {d for d in column if d != 1}
    wide -= {d for d in wide for other in wide if d is not None and other is not None and is_minimum_with(d, other)}
    number = next((d for d in wide if isinstance(d, int)), None)
    if number is not None:
        return number
    return 1 if not wide else next(iter(wide)) if len(wide) == 1 else None


def element_count(shape: Sequence[Dim]) -> Dim:
    """Return the product of extents, None if one is unknown."""
    known = [d for d in shape if d is not None]
    return math.prod(known) if len(known) == len(shape) else None


def quotient(source: Shape, divisor: Sequence[Dim]) -> Dim:
    """Return the extent that a -1 in a Reshape target stands for, None if the division is not exact.

    quotient(("b", "s", 64), ("b", "s", 16)) = 4
    """
    above, below = (element_count(source) if source is not None else None), element_count(divisor)
    return None if above is None or below is None else exact_quotient(above, below)


def reshape_target(source: Sequence[Dim], result: Sequence[Dim]) -> list[int] | None:
    """Return the target of a Reshape from one shape to another, in which a 0 copies; None if none is constant.

    One extent may be -1, the remaining one, if no other can be 0: a session does not find it out then.
    """
    target = [_extent(n, source[axis] if axis < len(source) else None) for axis, n in enumerate(result)]
    if target.count(None) == 1 and 0 not in target and _may_agree(source, result):
        return [-1 if n is None else n for n in target]
    known = [n for n in target if n is not None]
    return known if len(known) == len(target) else None


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
