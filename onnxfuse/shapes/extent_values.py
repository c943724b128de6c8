"""Assign integers to a model's symbolic extents: a value for each name, from which derived extents are computed."""

from collections.abc import Callable, Mapping

from onnxfuse.shapes.types import Dim
from onnxfuse.symbolic.integer import Int, solved
from onnxfuse.symbolic.parsing import parsed

Numbers = Callable[[str], int]
"""The integer for a name; the empty name is an unknown extent."""

MOST = 2**63
"""Upper bound of extents: int64."""


def extent_value(dim: Dim, numbers: Numbers) -> int | None:
    """Return the integer for an extent; None if its expression does not evaluate to a non-negative integer."""
    if dim is None:
        return numbers("")
    value = at_sizes(dim, {name: numbers(name) for name in dim.names} if isinstance(dim, Int) else {})
    return value if isinstance(value, int) and (value is dim or 0 <= value < MOST) else None


def at_sizes(dim: Dim, sizes: Mapping[str, int]) -> Dim:
    """Return an extent with integers for names; None if it divides by zero, or leaves a remainder where none may be."""
    if not isinstance(dim, Int):
        return dim
    try:
        return dim.substitute(**sizes)
    except ArithmeticError:
        return None


def name_sizes(extents: Mapping[str, int]) -> dict[str, int]:
    """Return the integers for names, from the sizes of extents by the text that a model declares for them.

    A size of 9 for `past + 1` says that past is 8. Of several unknown names one is determined, the others are 1.
    """
    declared = sorted(((parsed(text), size) for text, size in extents.items()), key=lambda e: not _is_name(e[0]))
    sizes: dict[str, int] = {}
    for extent, size in declared:
        rest = at_sizes(extent, sizes)
        if not isinstance(rest, Int):
            continue
        for name in rest.names:
            value = at_sizes(solved(rest - size, name), dict.fromkeys(rest.names, 1))
            if isinstance(value, int):
                sizes |= {**dict.fromkeys(rest.names, 1), name: value}
                break
    return sizes


def _is_name(extent: Dim) -> bool:
    return isinstance(extent, Int) and extent.is_name
