"""What indices are known to count, and what they are not."""

import pytest

from onnxfuse.graph.facts.indices import in_order
from onnxfuse.graph.graph import Graph
from onnxfuse.shapes.inference import infer
from tests.support.small import parse

MODEL = """<ir_version: 8, opset_import: ["" : 18]>
g (int64 n, int64 m, float[N,3] x, float[B,L,S] z) => (int64[A] y)
<int64 zero = {0}, int64 one = {1}, int64 two = {2}, int64 three = {3}, int64[1] ahead = {0}, int64[1] last = {-1},
 int64[3] few = {0,1,2}, int64[3] backwards = {2,1,0}, int64[2,3] table = {0,1,2,3,4,5},
 int64[2,3] turned = {0,2,4,1,3,5}, float[3] f = {0,1,2}, int64[2] wide = {4,3}, int64[1,1] single = {0}> {
  NODES
}"""


SIZES = """size = Shape (z) b = Gather (size, zero) l = Gather (size, one) s = Gather (size, two)
  batches = Range (zero, b, one) rows = Range (zero, l, one) columns = Range (zero, s, one)"""
THREE = """ls = Mul (batches, l) lss = Mul (ls, s) a1 = Unsqueeze (lss, last) a = Unsqueeze (a1, last)
  cs = Mul (rows, s) c = Unsqueeze (cs, last)"""


@pytest.mark.parametrize(
    ("nodes", "counts"),
    [
        ("y = Range (zero, n, one)", True),
        ("y = Range (one, n, one)", False),
        ("y = Range (zero, n, three)", False),
        ("r = Range (zero, n, one) y = Unsqueeze (r, ahead)", True),
        ("r = Range (zero, n, one) m3 = Mul (r, three) u = Unsqueeze (m3, last) y = Add (u, few)", True),
        ("r = Range (zero, n, one) m3 = Mul (three, r) u = Unsqueeze (m3, last) y = Add (u, few)", True),
        ("r = Range (zero, n, one) m3 = Mul (r, three) u = Unsqueeze (m3, last) y = Add (u, backwards)", False),
        ("r = Range (zero, n, one) u = Unsqueeze (r, last) y = Add (u, few)", False),
        ("r = Range (zero, n, one) s = Range (zero, m, one) y = Add (r, s)", False),
        ("r = Range (zero, n, one) u = Unsqueeze (r, ahead) y = Add (u, single)", True),
        (f"{SIZES} start = Mul (rows, s) far = Unsqueeze (start, last) y = Add (far, columns)", True),
        (f"{SIZES} start = Mul (s, rows) far = Unsqueeze (start, last) y = Add (columns, far)", True),
        (f"{SIZES} start = Mul (rows, l) far = Unsqueeze (start, last) y = Add (far, columns)", False),
        (f"{SIZES} start = Mul (rows, n) far = Unsqueeze (start, last) y = Add (far, columns)", False),
        (f"{SIZES} start = Mul (columns, l) far = Unsqueeze (start, last) y = Add (far, rows)", True),
        (f"{SIZES} {THREE} first = Add (a, c) y = Add (first, columns)", True),
        (f"{SIZES} {THREE} y = Add (a, columns)", False),
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
    """The last axis moves first; an open extent may be the first alone, or is known by its name."""
    model = parse(MODEL.replace("NODES", nodes))
    assert in_order(Graph(model.graph, infer(model).graph, 18), "y") is counts
