"""The products around a Softmax are found through what keeps the scores' matrices, and nothing else."""

import pytest

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.softmax_products import result_product, score_product
from tests.support.small import graph_of, parse

WINDOWS = "int64[5] apart = {1,3,2,7,7}, int64[4] back = {3,2,7,7}"


def softmax_in(nodes: str, opset: int = 17) -> tuple[Graph, Node]:
    """Return the graph of these nodes with its Softmax: queries, keys and values q, k, v of [3, 2, 7, 8]."""
    inputs = "float[3,2,7,8] q, float[3,2,8,7] k, float[3,2,7,8] v, float[3,2,7,7] mask, float[3,1,7,7] other"
    constants = f"float scale = {{0.25}}, int64[4] flat = {{3,2,1,49}}, int64[4] swapped = {{3,7,2,7}}, {WINDOWS}"
    graph = graph_of(parse(f"g ({inputs}) => (float[3,2,7,8] y) <{constants}> {{ {nodes} }}", opset))
    (softmax,) = [n for n in graph.nodes if n.op == ops.Softmax]
    return graph, softmax


def named(node: Node | None) -> str | None:
    return None if node is None else node.outputs[0]


AFTER = "p = Softmax <axis = -1> (a) y = MatMul (p, v)"


@pytest.mark.parametrize(
    "between",
    [
        "a = Identity (s)",
        "a = Mul (s, scale)",
        "a = Div (s, scale)",
        "c = Constant <value = float {0.25}> () a = Mul (c, s)",
        "a = Add (s, mask)",
        "a = Add (mask, s)",
        "b = Mul (s, scale) a = Add (mask, b)",
        "b = Reshape (s, apart) c = Mul (b, scale) a = Reshape (c, back)",
    ],
)
def test_the_scores_are_found_through_scales_masks_and_windows(between: str) -> None:
    graph, softmax = softmax_in(f"s = MatMul (q, k) {between} {AFTER}")
    assert named(score_product(graph, softmax)) == "s"


@pytest.mark.parametrize(
    "before",
    [
        "a = Add (mask, other)",
        "s = MatMul (q, k) t = Neg (other) a = Add (s, t)",
        "s = MatMul (q, k) t = Reshape (s, flat) u = Mul (t, scale) r = Shape (mask) a = Reshape (u, r)",
        "s = MatMul (q, k) t = Reshape (s, swapped) u = Mul (t, scale) a = Reshape (u, back)",
        "s = MatMul (q, k) t = Transpose <perm = [0,1,3,2]> (s) a = Mul (t, scale)",
    ],
    ids=["no product", "two values are computed", "matrices as rows", "axes that move", "transposed scores"],
)
def test_what_is_no_score_product(before: str) -> None:
    """The rows of the Softmax would not be those of the product."""
    graph, softmax = softmax_in(f"{before} {AFTER}")
    assert score_product(graph, softmax) is None


SCORES = "s = MatMul (q, k)"


@pytest.mark.parametrize("axis", [-1, 3])
def test_the_result_is_found_over_the_last_axis(axis: int) -> None:
    graph, softmax = softmax_in(f"{SCORES} p = Softmax <axis = {axis}> (s) y = MatMul (p, v)")
    assert named(result_product(graph, softmax)) == "y"


def test_the_default_axis_is_that_of_the_opset() -> None:
    """Until opset 12 it was 1, and the rest was one row."""
    nodes = f"{SCORES} p = Softmax (s) y = MatMul (p, v)"
    assert named(result_product(*softmax_in(nodes, 13))) == "y"
    assert result_product(*softmax_in(nodes, 12)) is None


@pytest.mark.parametrize(
    "nodes",
    [
        "p = Softmax <axis = 2> (s) y = MatMul (p, v)",
        "p = Softmax <axis = -1> (s) y = MatMul (v, p)",
        "p = Softmax <axis = -1> (s) r = Mul (p, scale) y = MatMul (r, v)",
        "p = Softmax <axis = -1> (s) o = MatMul (p, v) r = ReduceSum <keepdims = 0> (p) y = Add (o, r)",
    ],
    ids=["over the queries", "from the right", "scaled probabilities", "probabilities that are read elsewhere"],
)
def test_what_is_no_result_product(nodes: str) -> None:
    """Softmax and product are not what one attention computes."""
    graph, softmax = softmax_in(f"{SCORES} {nodes}")
    assert result_product(graph, softmax) is None


def test_probabilities_that_the_caller_reads_have_no_result_product() -> None:
    text = """g (float[3,2,7,7] s, float[3,2,7,8] v) => (float[3,2,7,8] y, float[3,2,7,7] p) {
      p = Softmax <axis = -1> (s) y = MatMul (p, v)
    }"""
    graph = graph_of(parse(text))
    assert result_product(graph, graph.nodes[0]) is None


def test_another_library_s_product_is_none() -> None:
    """What it computes is not known, whatever its name."""
    text = """<ir_version: 8, opset_import: ["" : 17, "other" : 1]>
    g (float[3,2,7,8] q, float[3,2,8,7] k, float[3,2,7,8] v) => (float[3,2,7,8] y) {
      s = other.MatMul (q, k) p = Softmax <axis = -1> (s) y = other.MatMul (p, v)
    }"""
    graph = graph_of(parse(text))
    softmax = graph.nodes[1]
    assert (softmax.op, score_product(graph, softmax), result_product(graph, softmax)) == (ops.Softmax, None, None)
