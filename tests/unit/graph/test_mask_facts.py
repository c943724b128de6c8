"""What is known of the values of masks and of positions."""

import pytest

from onnxfuse.graph.graph import Graph
from onnxfuse.graph.mask_facts import extent_of, is_finite
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
