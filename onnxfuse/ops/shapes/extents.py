"""Arithmetic of shape functions, which is the same for plain integers, symbolic ones (`Int`) and traced ones.

All three are typed as `int` here, as planners type what they trace: `is_symbolic` tells an `Int`, whose comparisons are
not decided.

An extent that a function cannot tell is `unknown()`: a name of its own, so that everything computed from it is unknown,
too, and everything else is not.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any, cast

from onnxfuse.symbolic import branching
from onnxfuse.symbolic.branching import want
from onnxfuse.symbolic.integer import Int, bounds, exact_quotient, is_minimum_with, smallest
from onnxfuse.symbolic.traced_numbers import either, selected

_UNKNOWN = "\0"
"""Prefix of names that no model has."""

_count = count()


class UnknownError(Exception):
    """Nothing is known of a node's results, because a shape or an integer that they depend on is not known."""


def unknown() -> int:
    """Return an extent that is not known, nor known to be equal to another one."""
    return cast(int, Int.name(f"{_UNKNOWN}{next(_count)}"))


def is_known(extent: object) -> bool:
    """Return whether an extent depends on no unknown one."""
    return not isinstance(extent, Int) or not any(name.startswith(_UNKNOWN) for name in extent.names)


def is_symbolic(*extents: object) -> bool:
    """Return whether an extent is an `Int`."""
    for extent in extents:  # noqa: SIM110 - called for every extent, and a generator takes twice as long
        if isinstance(extent, Int):
            return True
    return False


# ---- conditions


def may_equal(a: int, b: int) -> Any:
    """Return whether two integers are equal; of symbolic ones whether they may be."""
    if a is b or not is_symbolic(a, b):
        return a is b or a == b
    least, most = bounds(a - b)
    return least <= 0 <= most


def may_be_multiple(a: int, b: int) -> Any:
    """Return whether an integer is a multiple of another one; of symbolic ones whether it may be."""
    return is_symbolic(a, b) or a % b == 0


# ---- arithmetic


def quotient(a: int, b: int) -> int:
    """Return a / b, which leaves no remainder; of symbolic integers an unknown one unless the division comes out."""
    if not is_symbolic(a, b):
        return a // b
    found: Any = exact_quotient(a, b)
    return unknown() if found is None else found


def smaller(a: int, b: int) -> int:
    """Return the minimum."""
    return cast(int, smallest(a, b)) if is_symbolic(a, b) else branching.smaller(a, b)


# ---- axes and shapes


def axis_of(axis: int, rank: int) -> int:
    """Return a non-negative axis."""
    found = axis + rank if axis < 0 else axis
    want(0 <= found < rank, lambda: f"axis {axis} of a value of rank {rank}")
    return found


def different_axes(axes: Iterable[int], rank: int, what: str) -> tuple[int, ...]:
    """Return the non-negative axes; raises if one occurs twice."""
    given = list(axes)
    found = tuple(axis_of(a, rank) for a in given)
    want(len(set(found)) == len(found), lambda: f"{what} along axes {given} of a value of rank {rank}")
    return found


def want_rank(of: Sequence[int], rank: int, what: str) -> None:
    """Refuse a shape of another rank."""
    want(len(of) == rank, lambda: f"{what} of a value of rank {len(of)}, expected {rank}")


def broadcast(shapes: Sequence[Sequence[int]], refusal: Callable[[], str] | None = None) -> tuple[int, ...]:
    """Return the broadcast of these shapes by NumPy's rule."""
    refusal = refusal or (lambda: f"shapes {', '.join(map(str, shapes))} do not broadcast")
    rank = max(map(len, shapes), default=0)
    found: list[int] = [1] * rank
    for shape in shapes:
        for place, n in enumerate(shape, rank - len(shape)):
            found[place] = _joined(found[place], n, refusal)
    return tuple(found)


def _joined(a: int, b: int, refusal: Callable[[], str]) -> int:
    if not is_symbolic(a, b):
        fits = either(either(a == 1, b == 1), a == b)
        want(fits, refusal)
        found: int = selected(b == 1, a, b)
        return found
    for one, other in ((a, b), (b, a)):
        # A named extent and a number other than 1: either may be broadcast only if the name is 1, or both are equal.
        # min(a, b) broadcast with a is a: 1 is repeated, and any other mismatch does not run.
        if is_symbolic(one) and (one is other or not is_symbolic(other) or is_minimum_with(one, other)):
            return one if not is_symbolic(other) and other == 1 else other
    return unknown()
