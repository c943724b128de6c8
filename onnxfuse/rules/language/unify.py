"""Unification of a match with the shapes of its rule: where the extents of its values do not fit, and why."""

from collections.abc import Callable

from onnxfuse.graph.graph import Graph
from onnxfuse.rules.language.vocabulary import Values, shape_of
from onnxfuse.rules.match.cause import Cause
from onnxfuse.rules.match.match import Match
from onnxfuse.rules.pattern.expression import Extent, Tree
from onnxfuse.rules.pattern.shapes import Axis, ShapeLine
from onnxfuse.shapes.types import Dim


def unify(line: ShapeLine, graph: Graph, match: Match, evaluate: Callable[[Tree], Values]) -> Cause | None:
    """Return None if the shape of a value is known to fit its line, else the cause.

    Extents fit if both are known and equal, as for `dim(a, i) == dim(b, j)`; `evaluate` returns those of other axes.
    """
    shape = shape_of(graph, match.values[line.value])
    if shape is None:
        return Cause("unknown", f"shape({line.value})", wanted=str(line))
    if len(shape) != line.rank and not (line.open and len(shape) > line.rank):
        least = " or more" * line.open
        return Cause("rank", line.value, str(len(shape)), f"{line.rank}{least}")
    for axis in line.axes:
        extent, wanted = shape[axis.index], evaluate(axis.wanted)
        if extent is None or not (extent == wanted or (axis.or_one and extent == 1)):
            return _cause(line, axis, extent, wanted)
    return _unequal(line, shape, graph, match) if line.runs else None


def _unequal(line: ShapeLine, shape: tuple[Dim, ...], graph: Graph, match: Match) -> Cause | None:
    """Return None if a run of axes is known to be equal to that of another value, else the cause."""
    run, other = line.runs
    whole = shape_of(graph, match.values[other.value])
    if whole is None:
        return Cause("unknown", f"shape({other.value})", wanted=str(line))
    actual, wanted = run.of(shape), other.of(whole)
    if actual == wanted and None not in actual:
        return None
    if None in actual or None in wanted:
        return Cause("unknown", f"{run.name}... of {run.value if None in actual else other.value}", wanted=str(line))
    seen, expected = (f"[{', '.join(map(str, extents))}]" for extents in (actual, wanted))
    return Cause("extent", f"{run.name}... of {run.value}", seen, f"of {other.value} {expected}")


def _cause(line: ShapeLine, axis: Axis, extent: Dim, wanted: Values) -> Cause:
    """Return the cause: the axis of the value, the extent found, and the one expected."""
    other = axis.wanted if isinstance(axis.wanted, Extent) else None
    name = f"dim {axis.text if other else axis.index} of {line.value}"
    if extent is None:
        return Cause("unknown", name, wanted=str(line))
    if wanted is None:
        return Cause("unknown", f"dim {axis.text} of {other.value}" if other else axis.text, wanted=str(line))
    if other and not axis.or_one:
        return Cause("extent", name, str(extent), f"of {other.value} {wanted}")
    one, equal = "1 or " * axis.or_one, "" if str(wanted) == axis.text else f" = {wanted}"
    return Cause("extent", name, str(extent), f"expected {one}{axis.text}{equal}")
