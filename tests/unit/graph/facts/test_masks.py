"""What is known of the values of masks and of positions."""

import pytest

from onnxfuse.graph.facts.masks import Seen, covers, diagonal, everywhere, extent_of, is_finite
from onnxfuse.graph.graph import Graph
from onnxfuse.shapes.inference import infer
from onnxfuse.symbolic.parsing import parsed
from tests.support.small import parse

MODEL = """<ir_version: 8, opset_import: ["" : 18]>
g (float[B,S] x, bool[B,S] c, int64[A] i) => (float[Z] y)
<float[2] few = {0, -1}, float[2] endless = {0, -inf}, int64 one = {1}, int64[1] first = {0}> {
  NODES
}"""


def known(nodes: str) -> Graph:
    """Return the graph of a model that gives y after these nodes."""
    model = parse(MODEL.replace("NODES", nodes))
    return Graph(model.graph, infer(model).graph, 18)


@pytest.mark.parametrize(
    ("nodes", "finite"),
    [
        ("y = Identity (few)", True),
        ("y = Identity (endless)", False),
        ("y = Concat <axis = 0> (few, few)", True),
        ("y = Concat <axis = 0> (few, endless)", False),
        ("y = Gather (few, i)", True),
        ("y = Where (c, few, few)", True),
        ("y = Where (c, few, endless)", False),
        ("a = Concat <axis = 0> (few, few) b = Flatten <axis = 0> (a) y = Max (b, few)", True),
        ("a = Cast <to = 1> (c) y = Transpose (a)", True),
        ("a = Exp (few) y = Identity (a)", False),
        ("y = Transpose (x)", False),
    ],
)
def test_what_is_moved_and_chosen_is_as_finite_as_what_it_is_made_of(nodes: str, finite: bool) -> None:
    """By any operator that carries elements; what is computed may be infinite."""
    assert is_finite(known(nodes), "y") is finite


@pytest.mark.parametrize(
    "nodes",
    ["y = Cast <to = 6> (n)", "u = Unsqueeze (n, first) y = Squeeze (u)", "u = Unsqueeze (n, first) y = Identity (u)"],
)
def test_an_extent_is_known_behind_views_and_casts(nodes: str) -> None:
    """The extent that a Gather reads of a shape, however it is handed on."""
    assert extent_of(known(f"s = Shape (x) n = Gather (s, one) {nodes}"), "y") == parsed("S")


POSITIONS = """r = Range (zero, count, one) keys = Unsqueeze (r, first) queries = Unsqueeze (r, last)
    c0 = LessOrEqual (keys, queries)"""
MASKS = """<ir_version: 8, opset_import: ["" : 18]> g (float[B,S] x, bool[S,S] m) => (float[Z] y)
<int64 zero = {0}, int64 one = {1}, int64 count = {7}, int64[1] first = {0},
 int64[1] last = {1}, float half = {-0.5}, float low = {-1e30},
 float[1] many = {3}> {
  NODES
}"""


def masks(nodes: str) -> Graph:
    """Return the graph of a model that gives y after these nodes."""
    model = parse(MASKS.replace("NODES", nodes))
    return Graph(model.graph, infer(model).graph, 18)


def test_a_mask_whose_parts_share_their_origin_is_read_once() -> None:
    """Forty conditions of the same one with itself: whoever looks at both operands of each looks 2^40 times."""
    conditions = " ".join(f"c{n + 1} = And (c{n}, c{n})" for n in range(36))
    graph = masks(f"{POSITIONS} {conditions} y = Cast <to = 1> (c36)")
    assert diagonal(graph, "y") == Seen(1, 0)
    doubled = " ".join(f"m{n + 1} = Or (m{n}, m{n})" for n in range(36)).replace("m0", "m")
    assert not covers(masks(f"{doubled} y = Cast <to = 1> (m36)"), "y", "x")


@pytest.mark.parametrize(
    ("nodes", "number"),
    [
        ("i = Cast <to = 7> (half) y = Cast <to = 1> (i)", 0.0),
        ("b = Cast <to = 9> (half) y = Cast <to = 1> (b)", 1.0),
        ("h = Cast <to = 10> (low) y = Cast <to = 1> (h)", -float("inf")),
        ("i = Cast <to = 6> (low) y = Cast <to = 1> (i)", None),
        ("i = Cast <to = 6> (many) y = Cast <to = 1> (i)", 3.0),
    ],
)
def test_a_number_is_what_its_type_holds(nodes: str, number: float | None) -> None:
    """Behind a Cast: cut off, a truth value, infinite, or not known."""
    assert everywhere(masks(nodes), "y") == number


def test_positions_as_conditions_are_none() -> None:
    """Whether a key's index is 0 says nothing of its query's."""
    conditions = "k = Cast <to = 9> (keys) q = Cast <to = 9> (queries) i = Cast <to = 7> (k) j = Cast <to = 7> (q)"
    assert diagonal(masks(f"{POSITIONS} {conditions} c = LessOrEqual (i, j) y = Cast <to = 1> (c)"), "y") is None
