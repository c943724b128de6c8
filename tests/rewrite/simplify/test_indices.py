"""What indices are known to count, and what they are not."""

import pytest

from onnxfuse.model.graph import Graph
from onnxfuse.model.types import infer
from onnxfuse.rewrite.simplify.indices import in_order
from tests.rewrite.small import parse

MODEL = """<ir_version: 8, opset_import: ["" : 18]>
g (int64 n, int64 m, float[N,3] x) => (int64[A] y)
<int64 zero = {0}, int64 one = {1}, int64 three = {3}, int64[1] ahead = {0}, int64[1] last = {-1},
 int64[3] few = {0,1,2}, int64[3] backwards = {2,1,0}, int64[2,3] table = {0,1,2,3,4,5},
 int64[2,3] turned = {0,2,4,1,3,5}, float[3] f = {0,1,2}, int64[2] wide = {4,3}, int64[1,1] single = {0}> {
  NODES
}"""


@pytest.mark.parametrize(
    ("nodes", "counts"),
    [
        ("y = Range (zero, n, one)", True),
        ("y = Range (one, n, one)", False),
        ("y = Range (zero, n, three)", False),
        ("r = Range (zero, n, one) y = Unsqueeze (r, ahead)", True),
        ("r = Range (zero, n, one) m3 = Mul (r, three) u = Unsqueeze (m3, last) y = Add (u, few)", True),
        ("r = Range (zero, n, one) m3 = Mul (three, r) u = Unsqueeze (m3, last) y = Add (u, few)", False),
        ("r = Range (zero, n, one) m3 = Mul (r, three) u = Unsqueeze (m3, last) y = Add (u, backwards)", False),
        ("r = Range (zero, n, one) u = Unsqueeze (r, last) y = Add (u, few)", False),
        ("r = Range (zero, n, one) s = Range (zero, m, one) y = Add (r, s)", False),
        ("r = Range (zero, n, one) u = Unsqueeze (r, ahead) y = Add (u, single)", True),
        ("y = Expand (few, wide)", False),
        ("y = Identity (few)", True),
        ("y = Identity (table)", True),
        ("y = Identity (turned)", False),
        ("y = Identity (backwards)", False),
        ("y = Cast <to = 7> (f)", False),
        ("y = Identity (n)", False),
    ],
)
def test_only_what_counts_in_its_order_is_said_to(nodes: str, counts: bool) -> None:
    """The last axis moves first; an open extent may be the first alone; a factor stands behind what it multiplies."""
    model = parse(MODEL.replace("NODES", nodes))
    assert in_order(Graph(model.graph, infer(model).graph, 18), "y") is counts
