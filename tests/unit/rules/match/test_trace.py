"""The furthest point of all attempts at a node: which stop is kept, and what its refusal says."""

import pytest

from onnxfuse.graph.graph import Node
from onnxfuse.rules.match.cause import Cause
from onnxfuse.rules.match.trace import Match, Trace
from onnxfuse.rules.pattern.expression import Extent
from onnxfuse.rules.pattern.pattern import parse
from tests.support.small import graph_of
from tests.support.small import parse as model_of

PATTERN = parse("(x, w) => (y) { m = MatMul (x, w) r = Relu (m) y = Neg (r) }", "here")
NODES = graph_of(
    model_of("g (float[2,3] a, float[3,4] b) => (float[2,4] d) { m = MatMul (a, b) r = Relu (m) d = Neg (r) }")
).nodes
FIRST, SECOND, ROOT = NODES
MISSING, CONDITION, OTHER = Cause("operator"), Cause("rank", "x", "2", "3"), Cause("other value")


def match(*nodes: Node) -> Match:
    """Return a match of so many of the pattern's nodes, the root first."""
    wanted = list(reversed(PATTERN.nodes))
    return Match(PATTERN, dict(zip(wanted, nodes, strict=False)), {"x": "a", "w": "b", "m": "m"})


def test_nothing_stopped_is_no_refusal() -> None:
    """And below any nearness."""
    trace = Trace()
    assert trace.furthest is None
    assert trace.nearness == ()
    assert not trace.is_beaten(match(ROOT), 0)


def test_the_furthest_stop_is_kept() -> None:
    """One that got no further changes nothing, what was noted beside it included."""
    trace = Trace()
    assert trace.stop(SECOND, MISSING, match(ROOT))
    trace.missed = (PATTERN.nodes[1], match(ROOT))
    assert not trace.stop(FIRST, MISSING, match(ROOT))
    assert not trace.stop(FIRST, OTHER, match(ROOT))
    assert (trace.at, trace.missed is None) == (SECOND, False)
    assert trace.stop(FIRST, MISSING, match(ROOT, SECOND))
    assert trace.at == FIRST
    assert not trace.missed
    found = trace.furthest
    assert found is not None
    assert (found.whole, found.held, trace.steps) == (False, 0, 0)
    assert (found.node, found.depth, found.size, found.nodes) == (FIRST.name, 2, 3, (ROOT.name, SECOND.name))
    assert found.around == (FIRST.name,)


def test_an_operator_that_matched_counts_as_one_more() -> None:
    """The node itself is then among those that were found."""
    trace = Trace()
    assert trace.stop(SECOND, CONDITION, match(ROOT), there=True)
    assert not trace.stop(SECOND, CONDITION, match(ROOT))
    found = trace.furthest
    assert found is not None
    assert (found.depth, found.nodes) == (2, (ROOT.name, SECOND.name))


def test_whole_matches_are_ranked_by_their_conditions() -> None:
    """Later conditions are further."""
    trace, whole = Trace(), match(ROOT, SECOND, FIRST)
    assert trace.stop(ROOT, CONDITION, whole, whole=True, held=1)
    assert trace.is_beaten(whole, 1)
    assert trace.is_beaten(whole, 0)
    assert not trace.is_beaten(whole, 2)
    assert not trace.stop(ROOT, CONDITION, whole, whole=True, held=1)
    assert trace.stop(ROOT, CONDITION, whole, whole=True, held=2)
    found = trace.furthest
    assert found is not None
    assert (found.whole, found.held, found.missing) == (True, 2, 0)


@pytest.mark.parametrize(
    ("cause", "names"),
    [
        (Cause("rank", "x", "2", "3"), (("x", "a"),)),
        (Cause("excluded", "dim(w, 1) < dim(m, 0)"), (("w", "b"),)),
        (Cause("extent", "dim N of x", "2", "of w 3"), (("x", "a"), ("w", "b"))),
        (Cause("relation", "N", "2", "N == 3", axes=(Extent("N", "w", 1),)), (("w", "b"),)),
        (Cause("operator", "x", "dim(w, 1)"), ()),
    ],
)
def test_a_condition_names_the_values_that_it_mentions(cause: Cause, names: tuple[tuple[str, str], ...]) -> None:
    """Those called otherwise in the model, of calls, extents and named axes; a structural mismatch names none."""
    trace = Trace()
    trace.stop(ROOT, cause, match(ROOT))
    found = trace.furthest
    assert found is not None
    assert found.names == names


def test_a_match_that_stays_replaces_the_rest() -> None:
    """And a whole one is refused at its root."""
    whole = match(ROOT, SECOND, FIRST)
    assert whole.replaced == [ROOT, SECOND, FIRST]
    assert whole.binding("k", "v").values == {**whole.values, "k": "v"}
    refusal = whole.refusal(CONDITION)
    assert (refusal.node, refusal.depth, refusal.size, refusal.whole) == (ROOT.name, 3, 3, True)
