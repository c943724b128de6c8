"""Heads are as wide as a kernel takes them, by zeros in the weights around, and what is computed stays the same."""

import onnx
import pytest

from onnxfuse.graph.graph import Graph
from onnxfuse.passes.alignment.pad_heads import pad_heads
from onnxfuse.shapes.inference import infer
from tests.support.extents import extents
from tests.support.small import assert_same_numbers, fuses, halved, numbers, ops, optimize, parse

TEXT = """g (float[N,5,8] x, float[N,2,5,5] mask) => (float[N,5,WIDTH] y)
<float scale = {0.25}, int64[4] narrow = {0,5,2,16}, int64[4] wide = {0,5,2,-1}, int64[3] flat = {0,5,WIDTH},
 float[8,32] wq = {Q}, float[8,32] wk = {K}, float[8,WIDTH] wv = {V}, float[32] bias = {B}> {
  mq = MatMul (x, wq)
  q = Add (bias, mq)
  q4 = Reshape (q, narrow)
  qh = Transpose <perm = [0,2,1,3]> (q4)
  k = MatMul (x, wk)
  k4 = Reshape (k, narrow)
  kt = Transpose <perm = [0,2,3,1]> (k4)
  ks = Mul (kt, scale)
  v = MatMul (x, wv)
  v4 = Reshape (v, wide)
  vh = Transpose <perm = [0,2,1,3]> (v4)
  s = MatMul (qh, ks)
  m = Add (mask, s)
  p = Softmax <axis = -1> (m)
  c = MatMul (p, vh)
  ct = Transpose <perm = [0,2,1,3]> (c)
  y = Reshape (ct, flat)
}"""
"""Two heads of 16 elements, whose values have 32, as LeViT's."""


def text(values: int = 64) -> str:
    """Return the model with so many columns of values."""
    weights = {"Q": (8 * 32, 5), "K": (8 * 32, 7), "V": (8 * values, 11), "B": (32, 3)}
    filled = TEXT.replace("WIDTH", str(values))
    for name, (count, step) in weights.items():
        filled = filled.replace(f"{{{name}}}", f"{{{numbers(count, step)}}}")
    return filled


def test_queries_and_keys_get_zeros() -> None:
    """Their heads are as wide as the values', and the weights have as many columns; once is enough."""
    model = parse(text())
    made, _ = optimize(model, "expand")
    assert sorted(tuple(t.dims) for t in made.graph.initializer if len(t.dims) == 2) == [(8, 64)] * 3
    assert ops(made).count("MatMul") == 5
    assert_same_numbers(model, made)
    assert optimize(made, "expand")[0] == made


def test_attention_is_one_op() -> None:
    """As with values of the size of a key."""
    left = fuses(text())
    assert sum("Softmax" in op and op.count("MatMul") == 2 for op in left) == 1, left
    assert not {"Softmax", "Transpose"} & set(left)


LEFT = {
    "values as wide as keys": text(32),
    "much wider values": text(160),
    "values off a boundary that leave": text(48),
    "queries that leave": text().replace("(float[N,5,64] y)", "(float[N,5,64] y, float[N,5,32] q)"),
    "no weight": text().replace("float[N,5,8] x,", "float[N,5,8] x, float[8,32] w,").replace("(x, wk)", "(x, w)"),
    "a factor for each element": text().replace("float scale = {0.25}", f"float[16,1] scale = {{{numbers(16, 3)}}}"),
    "a number divided by keys": text().replace("ks = Mul (kt, scale)", "ks = Div (scale, kt)"),
    "over the queries": text().replace("axis = -1", "axis = 2"),
    "keys that are worked on": text().replace("(k4)", "(kr)").replace("  kt =", "  kr = Relu (k4)\n  kt ="),
}  # fmt: skip


def test_what_is_told_apart() -> None:
    """Each of the models below has one thing else than this one."""
    model = parse(text())
    assert pad_heads(Graph(model.graph, infer(model).graph, 17))


@pytest.mark.parametrize("name", list(LEFT))
def test_the_rest_stays(name: str) -> None:
    model = parse(LEFT[name])
    assert not pad_heads(Graph(model.graph, infer(model).graph, 17))


def test_what_a_file_declares_is_told() -> None:
    """ONNX Runtime does not open a model on the GPU whose declared shapes are not those of its nodes."""
    model = onnx.shape_inference.infer_shapes(parse(text()))
    assert {v.name for v in model.graph.value_info} >= {"q4", "qh", "k4", "kt", "ks"}
    made, _ = optimize(model, "expand")
    declared = {v.name: v.type for v in made.graph.value_info}
    assert len(declared) > len(model.graph.node) // 2
    del made.graph.value_info[:]
    found = {v.name: v.type for v in onnx.shape_inference.infer_shapes(made, strict_mode=True).graph.value_info}
    assert {name: found[name] for name in declared} == declared


# ---- heads off a boundary

PACKED = """g (float[N,S,8] x) => (float[N,S,7] y)
<float scale = {0.25}, int64[5] heads = {0,-1,3,2,SIZE}, int64[3] flat = {0,-1,WIDTH}, int64[1] zero = {0},
 int64[1] one = {1}, int64[1] two = {2}, int64[1] three = {3}, int64 first = {0}, int64 second = {1}, int64 third = {2},
 float[8,PARTS] w = {W}, float[PARTS] b = {B}, float[WIDTH,7] wo = {O}, float[7] bo = {1,2,3,4,5,6,7}> {
  m = MatMul (x, w)
  a = Add (m, b)
CUT
  qs = Mul (q, scale)
  kt = Transpose <perm = [0,1,3,2]> (k)
  s = MatMul (qs, kt)
  p = Softmax <axis = -1> (s)
  c = MatMul (p, v)
  ct = Transpose <perm = [0,2,1,3]> (c)
  o = Reshape (ct, flat)
  yo = MatMul (o, wo)
  y = Add (yo, bo)
}"""
"""Two heads, whose queries, keys and values are one product."""

TURNED = """  h = Reshape (a, heads)
  t = Transpose <perm = [2,0,3,1,4]> (h)
"""

CUTS = {
    "slices with steps": TURNED + "".join(
        f"  {v}1 = Slice (t, {start}, {end}, zero, one)\n  {v} = Squeeze ({v}1, zero)\n"
        for v, start, end in (("q", "zero", "one"), ("k", "one", "two"), ("v", "two", "three"))
    ),
    "elements": TURNED + "".join(
        f"  {v} = Gather <axis = 0> (t, {n})\n" for v, n in (("q", "first"), ("k", "second"), ("v", "third"))
    ),
    "parts of the axis in front": TURNED + "  q1, k1, v1 = Split <axis = 0> (t, ones)\n" + "".join(
        f"  {v} = Squeeze ({v}1, zero)\n" for v in "qkv"
    ),
    "one part in heads": "  q1, k1, v1 = Split <axis = -1, num_outputs = 3> (a)\n" + "".join(
        f"  {v}4 = Reshape ({v}1, four)\n  {v} = Transpose <perm = [0,2,1,3]> ({v}4)\n" for v in "qkv"
    ),
    "parts of told sizes": "  q1, k1, v1 = Split <axis = 2> (a, sizes)\n" + "".join(
        f"  {v}4 = Reshape ({v}1, four)\n  {v} = Transpose <perm = [0,2,1,3]> ({v}4)\n" for v in "qkv"
    ),
}  # fmt: skip
"""How exporters cut the product apart."""


def packed(cut: str, size: int) -> str:
    """Return the model with heads of so many elements."""
    more = f"<int64[4] four = {{0,-1,2,{size}}}, int64[3] sizes = {{{2 * size},{2 * size},{2 * size}}}, "
    more += "int64[3] ones = {1,1,1}, "
    filled = PACKED.replace("CUT\n", CUTS[cut]).replace("PARTS", str(6 * size)).replace("WIDTH", str(2 * size))
    filled = filled.replace("SIZE", str(size)).replace("<float scale", more + "float scale")
    for name, (count, step) in {"W": (48 * size, 5), "B": (6 * size, 7), "O": (14 * size, 11)}.items():
        filled = filled.replace(f"{{{name}}}", f"{{{numbers(count, step)}}}")
    return filled


@pytest.mark.parametrize("size", [15, 20])
@pytest.mark.parametrize("cut", CUTS)
def test_heads_off_a_boundary_get_zeros(cut: str, size: int) -> None:
    """The attention is one op, and nothing is cut or turned before it."""
    left = fuses(packed(cut, size), opset=18)
    assert sum("Softmax" in op and op.count("MatMul") == 2 for op in left) == 1, left
    assert not {"Softmax", "Transpose", "Split", "Slice", "Gather", "Squeeze"} & set(left), left


def test_heads_of_shifted_windows_get_zeros() -> None:
    """Scores whose mask by window is added on an axis of its own: SwinIR's heads of 30."""
    windows = """r5 = Reshape (s, apart) h5 = Add (r5, windows) r4 = Reshape (h5, together)
      p = Softmax <axis = -1> (r4)"""
    more = f"""<int64[5] apart = {{2,3,2,3,3}}, int64[4] together = {{6,2,3,3}},
      float[1,3,1,3,3] windows = {{{numbers(27, 5)}}}, """
    text = packed("elements", 15).replace("[N,S,", "[6,3,").replace("p = Softmax <axis = -1> (s)", windows)
    left = fuses(text.replace("<", more, 1), opset=18)
    assert sum("Softmax" in op and op.count("MatMul") == 2 for op in left) == 1, left


@pytest.mark.parametrize(("half", "size", "width"), [(False, 20, 32), (True, 20, 24), (True, 15, 16), (False, 24, 32)])
def test_a_boundary_is_that_of_the_type(half: bool, size: int, width: int) -> None:
    model = parse(packed("elements", size), opset=18)
    model = halved(model) if half else model
    graph = Graph(model.graph, infer(model).graph, 18)
    assert pad_heads(graph)
    assert not pad_heads(graph)
    assert {graph.type(v).shape for v in "qkv"} == {extents("N", 2, "S", width)}


@pytest.mark.parametrize(("half", "size"), [(True, 24), (False, 4)])
def test_heads_stay_where_a_kernel_takes_them_or_that_would_be_much(half: bool, size: int) -> None:
    """A float16 head of 24 is on a boundary; heads of 4 elements would be four times as wide in float32."""
    model = parse(packed("elements", size), opset=18)
    model = halved(model) if half else model
    assert not pad_heads(Graph(model.graph, infer(model).graph, 18))


def test_heads_that_something_else_reads_stay() -> None:
    """What reads all elements of a head is not to see zeros."""
    text = packed("elements", 15).replace("(float[N,S,7] y)", "(float[N,S,7] y, float[N,2,S,1] z)")
    model = parse(text.replace("  qs =", "  z = ReduceMax <keepdims = 1> (v, last)\n  qs =").replace(
        "int64 first", "int64[1] last = {3}, int64 first"), opset=18)  # fmt: skip
    assert not pad_heads(Graph(model.graph, infer(model).graph, 18))
