"""Attention over several batch axes has one inside, and computes the same."""

import pytest

from onnxfuse.graph.graph import Graph
from onnxfuse.passes.batching.einsum_to_matmul import einsum_to_matmul
from onnxfuse.passes.batching.merge_windows import merge_windows
from onnxfuse.shapes.inference import infer
from tests.support.small import assert_same_numbers, fuses, ops, optimize, parse

WINDOWS = """g (float[N,3,5,32] q, float[N,3,5,32] k, float[N,3,5,32] v) => (float[N,3,5,32] y)
<float scale = {0.25}, int64[5] heads = {-1,3,5,2,16}, int64[4] flat = {-1,3,5,32}, float[BIAS] bias = {VALUES}> {
  q5 = Reshape (q, heads)
  qh = Transpose <perm = [0,1,3,2,4]> (q5)
  k5 = Reshape (k, heads)
  kh = Transpose <perm = [0,1,3,2,4]> (k5)
  v5 = Reshape (v, heads)
  vh = Transpose <perm = [0,1,3,2,4]> (v5)
  ks = Mul (kh, scale)
  s = Einsum <equation = "bghid,bghjd->bghij"> (qh, ks)
  b = Add (s, bias)
  p = Softmax <axis = AXIS> (b)
  c = Einsum <equation = "bghij,bghjd->bghid"> (p, vh)
  ct = Transpose <perm = [0,1,3,2,4]> (c)
  y = Reshape (ct, flat)
}"""
"""Windows in an axis of their own, as torchvision's MaxViT has them."""


def windows(bias: str = "1,2,5,5", axis: int = -1, batch: str = "N") -> str:
    """Return the model with a bias of this shape."""
    count = 1
    for extent in bias.split(","):
        count *= int(extent)
    values = ",".join(str(n % 7 / 4 - 1) for n in range(count))
    text = WINDOWS.replace("BIAS", bias).replace("VALUES", values).replace("AXIS", str(axis))
    return text.replace("[N,", f"[{batch},")


@pytest.mark.parametrize("bias", ["1,2,5,5", "2,5,5", "1,1,2,5,5", "1,1,1,1,5", "5"])
@pytest.mark.parametrize("axis", [-1, 4])
@pytest.mark.parametrize("batch", ["N", "1", "3"])
def test_batch_and_windows_are_one_axis(bias: str, axis: int, batch: str) -> None:
    """Whatever is the same for all windows, and with a batch that is a number."""
    model = parse(windows(bias, axis, batch))
    made, _ = optimize(model, "expand")
    left = ops(made)
    assert left.count("MatMul") == 2
    assert left.count("Reshape") == 4  # to heads, three times, and back
    assert "Squeeze" not in left
    turns = [list(a.ints) for n in made.graph.node if n.op_type == "Transpose" for a in n.attribute]
    assert turns
    assert all(len(perm) == 4 for perm in turns)
    assert_same_numbers(model, made)
    assert optimize(made, "expand")[0] == made


def test_attention_of_windows_is_one_op() -> None:
    """With a scale on the keys and a bias by head."""
    left = fuses(windows())
    assert sum("Softmax" in op and op.count("MatMul") == 2 for op in left) == 1, left
    assert not {"Softmax", "MatMul", "Mul"} & set(left)


def test_a_computed_bias_loses_axes_of_one() -> None:
    """It is no constant whose axes could be left out ahead of time."""
    text = windows("1,1,2,5,5").replace("  b = Add (s, bias)", "  t = Mul (bias, z)\n  b = Add (s, t)")
    model = parse(text.replace("float[N,3,5,32] v)", "float[N,3,5,32] v, float[1,1,1,1,1] z)"))
    made, _ = optimize(model, "expand")
    assert ops(made).count("Squeeze") == 1
    assert_same_numbers(model, made)


def leaving(value: str) -> str:
    """Return the model with one output more."""
    return windows().replace("(float[N,3,5,32] y)", f"(float[N,3,5,32] y, {value})")


LEFT = {
    "a bias by window": windows("1,3,2,5,5"),
    "probabilities leave": leaving("float[N,3,2,5,5] p"),
    "over windows": windows(axis=1),
    "a sum over windows": leaving("float[N,1,2,5,16] sum").replace(
        "  ct =", "  one = Constant <value_ints = [1]> ()\n  sum = ReduceSum (c, one)\n  ct ="
    ),
}


def graph_of(text: str, opset: int = 17) -> Graph:
    """Return the graph of a model in which products are MatMul."""
    model = parse(text)
    einsum_to_matmul(graph := Graph(model.graph, infer(model).graph, 17))
    graph.commit()
    return Graph(model.graph, infer(model).graph, opset)


@pytest.mark.parametrize("name", list(LEFT))
def test_the_rest_stays(name: str) -> None:
    """Also before opset 13, where a Softmax is of all axes behind its own."""
    assert merge_windows(graph_of(windows()))
    assert not merge_windows(graph_of(windows(), 12))
    assert not merge_windows(graph_of(LEFT[name]))
