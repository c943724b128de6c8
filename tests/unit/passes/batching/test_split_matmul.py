"""A product that is only cut apart is one product for each part, and computes the same."""

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper

from onnxfuse.cuda.costs import library
from onnxfuse.graph.graph import Graph
from onnxfuse.passes.batching.split_matmul import split_matmul
from onnxfuse.shapes.inference import infer
from tests.support.small import assert_same_numbers, halved, ops, optimize, parse


def with_weights(text: str) -> ModelProto:
    """Return the model in `text` with the graph inputs w, b and v as weights of random numbers."""
    model = parse(text)
    weights = [i for i in model.graph.input if i.name in ("w", "b", "v")]
    kept = [i for i in model.graph.input if i.name not in ("w", "b", "v")]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    numbers = np.random.default_rng(0)
    for value in weights:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        model.graph.initializer.append(
            numpy_helper.from_array(numbers.normal(size=shape).astype(np.float32), value.name)
        )
    return model


def graph_of(model: ModelProto, opset: int = 17) -> Graph:
    """Return the graph of a model with its types."""
    return Graph(model.graph, infer(model).graph, opset)


def apart(model: ModelProto) -> list[str]:
    """Return the operators of a model that the step alone made of a model; the numbers must stay the same."""
    made, report = optimize(model, "expand")
    assert report.applied == []
    assert_same_numbers(model, made)
    assert optimize(made, "expand")[0] == made
    return ops(made)


TOO_LONG = library.costs().product_terms + 8
HALVES = {
    "Slice": """<int64[1] zero = {0}, int64[1] half = {16}, int64[1] end = {9223372036854775807},
      int64[1] axis = {-1}> {
      m = MatMul (x, w)  BIAS
      u = Slice (a, zero, half, axis)  g = Slice (a, half, end, axis)  e = Tanh (u)  y = Mul (e, g) }""",
    "Split": """<int64[2] sizes = {16, 16}> {
      m = MatMul (x, w)  BIAS
      u, g = Split <axis = 2> (a, sizes)  e = Tanh (u)  y = Mul (e, g) }""",
    "Split in equal parts": """{
      m = MatMul (x, w)  BIAS
      u, g = Split <axis = -1> (a)  e = Tanh (u)  y = Mul (e, g) }""",
}
"""A gate and what it gates, from one packed weight."""


@pytest.mark.parametrize("by", list(HALVES))
@pytest.mark.parametrize("bias", ["a = Add (m, b)", "a = Add (b, m)", ""])
def test_a_gate_and_what_it_gates(by: str, bias: str) -> None:
    """The bias is cut as the weight is."""
    text = "g (float[N,S,8] x, float[8,32] w, float[32] b) => (float[N,S,16] y) " + HALVES[by].replace("BIAS", bias)
    model = with_weights(text if bias else text.replace("(a", "(m").replace(", float[32] b", ""))
    product = ["MatMul", "Add"] if bias else ["MatMul"]
    assert apart(model) == [*product, *product, "Tanh", "Mul"]


def test_one_kernel_multiplies_both() -> None:
    """What a GeGLU is for: products of one input in one launch, and nothing between it and the gate."""
    text = "g (float[N,S,8] x, float[8,32] w, float[32] b) => (float[N,S,16] y) " + HALVES["Slice"]
    made, _ = optimize(halved(with_weights(text.replace("BIAS", "a = Add (m, b)"))))
    assert len(ops(made)) == 1, ops(made)
    assert ops(made)[0].count("MatMul") == 2


@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("bias", ["float[40] b", "float[1,40] b", ""])
def test_a_gemm(turned: int, bias: str) -> None:
    """Of unequal parts; the columns of a weight that is stored [columns, terms] are its first axis."""
    weight = "float[40,8] w" if turned else "float[8,40] w"
    model = with_weights(f"""g (float[N,8] x, {weight}{", " + bias if bias else ""}) => (float[N,8] y, float[N,32] z)
      <int64[2] sizes = {{8, 32}}> {{
      m = Gemm <alpha = 0.5, beta = 2.0, transB = {turned}> (x, w{", b" if bias else ""})
      p, q = Split <axis = 1> (m, sizes)  y = Tanh (p)  z = Relu (q) }}""")
    assert apart(model) == ["Gemm", "Gemm", "Tanh", "Relu"]


HEADS = "g (float[N,S,8] x, float[8,48] w, float[48] b) => (float[N,S,4,4] q, float[N,S,4,4] k, float[N,S,4,4] v) "
END = "q = Tanh (q4)  k = Relu (k4)  v = Neg (v4)"
PACKED = {
    "Split and Squeeze": f"""<int64[5] shape = {{0, 0, 3, 4, 4}}, int64[1] two = {{2}}> {{
      m = MatMul (x, w)  a = Add (m, b)  r = Reshape (a, shape)
      q5, k5, v5 = Split <axis = 2> (r)
      q4 = Squeeze (q5, two)  k4 = Squeeze (k5, two)  v4 = Squeeze (v5, two)  {END} }}""",
    "Gather": f"""<int64[5] shape = {{0, -1, 3, 4, 4}}, int64 zero = {{0}}, int64 one = {{1}}, int64 last = {{-1}}> {{
      m = MatMul (x, w)  a = Add (m, b)  r = Reshape (a, shape)
      q4 = Gather <axis = -3> (r, zero)  k4 = Gather <axis = 2> (r, one)  v4 = Gather <axis = 2> (r, last)  {END} }}""",
    "an open target": f"""<int64 i0 = {{0}}, int64 i1 = {{1}}, int64[1] axis = {{0}}, int64[3] heads = {{3, 4, 4}},
      int64[2] flat = {{-1, 8}}, int64 zero = {{0}}, int64 one = {{1}}, int64 two = {{2}}> {{
      s = Shape (x)  n = Gather (s, i0)  l = Gather (s, i1)  n1 = Unsqueeze (n, axis)  l1 = Unsqueeze (l, axis)
      shape = Concat <axis = 0> (n1, l1, heads)
      x2 = Reshape (x, flat)  m = MatMul (x2, w)  a = Add (m, b)  r = Reshape (a, shape)
      q4 = Gather <axis = 2> (r, zero)  k4 = Gather <axis = 2> (r, one)  v4 = Gather <axis = 2> (r, two)  {END} }}""",
}
"""Queries, keys and values behind a Reshape to [batch, sequence, 3, heads, size]."""


@pytest.mark.parametrize("by", list(PACKED))
def test_heads_behind_a_reshape(by: str) -> None:
    """The axis that they were told apart by is gone."""
    left = apart(with_weights(HEADS + PACKED[by]))
    assert left.count("MatMul") == left.count("Add") == 3
    assert not {"Split", "Squeeze", "Transpose"} & set(left)
    assert left.count("Concat") == (2 if by == "an open target" else 0)  # all three have one target


@pytest.mark.parametrize("perm", ["[2,0,3,1,4]", "[0,3,1,2,4]"])
def test_heads_behind_a_transpose(perm: str) -> None:
    """Each part is turned by itself."""
    axis, out = perm[1:-1].split(",").index("2"), "float[N,4,S,4]"
    model = with_weights(f"""g (float[N,S,8] x, float[8,48] w, float[48] b) => ({out} q, {out} k, {out} v)
      <int64[5] shape = {{0, 0, 3, 4, 4}}, int64 zero = {{0}}, int64 one = {{1}}, int64 two = {{2}}> {{
      m = MatMul (x, w)  a = Add (m, b)  r = Reshape (a, shape)  t = Transpose <perm = {perm}> (r)
      q4 = Gather <axis = {axis}> (t, zero)  k4 = Gather <axis = {axis}> (t, one)  v4 = Gather <axis = {axis}> (t, two)
      {END} }}""")
    left = apart(model)
    assert sorted(left) == sorted([*["MatMul", "Add", "Reshape", "Transpose"] * 3, "Tanh", "Relu", "Neg"])


@pytest.mark.parametrize("axes", ["1", "-2", "0", "0, 2", "-1"])
def test_parts_behind_an_unsqueeze(axes: str) -> None:
    """Shifts and scales of a diffusion transformer get an axis for the tokens before they are cut apart."""
    columns = {"1": 2, "-2": 2, "0": 2, "0, 2": 3, "-1": 1}[axes]
    rank = 4 if "," in axes else 3
    shape = ["N" if a == (1 if axes.startswith("0") else 0) else "1" for a in range(rank)]
    shape[columns] = "16"
    out = f"float[{','.join(shape)}]"
    model = with_weights(f"""g (float[N,8] x, float[8,32] w, float[32] b) => ({out} y, {out} z)
      <int64[{axes.count(",") + 1}] axes = {{{axes}}}> {{
      m = Gemm (x, w, b)  u = Unsqueeze (m, axes)
      p, q = Split <axis = {columns}> (u)  y = Tanh (p)  z = Relu (q) }}""")
    assert sorted(apart(model)) == sorted([*["Gemm", "Unsqueeze"] * 2, "Tanh", "Relu"])


def test_heads_cut_across() -> None:
    """Fewer of them are keys than queries."""
    model = with_weights("""g (float[N,S,8] x, float[8,32] w) => (float[N,S,4,4] q, float[N,S,2,4] k, float[N,S,2,4] v)
      <int64[4] shape = {0, 0, 8, 4}, int64[3] sizes = {4, 2, 2}> {
      m = MatMul (x, w)  r = Reshape (m, shape)  q4, k4, v4 = Split <axis = 2> (r, sizes)
      q = Tanh (q4)  k = Relu (k4)  v = Neg (v4) }""")
    assert sorted(apart(model)) == sorted([*["MatMul", "Reshape"] * 3, "Tanh", "Relu", "Neg"])


def test_what_is_made_may_be_given_out() -> None:
    """The names of a model's outputs stay, and columns that nobody keeps are not computed."""
    model = with_weights("""g (float[N,8] x, float[8,32] w) => (float[N,8] y, float[N,16] z)
      <int64[1] zero = {0}, int64[1] eight = {8}, int64[1] half = {16}, int64[1] end = {32}, int64[1] axis = {1}> {
      m = MatMul (x, w)  y = Slice (m, zero, eight, axis)  z = Slice (m, half, end, axis) }""")
    assert apart(model) == ["MatMul", "MatMul"]


TWO = "u, g = Split <axis = -1> (m)  y = Mul (u, g)"
LEFT = {
    "columns kept twice": """g (float[N,8] x, float[8,32] w) => (float[N,24] y)
      <int64[1] zero = {0}, int64[1] eight = {8}, int64[1] far = {24}, int64[1] end = {32}, int64[1] axis = {1}> {
      m = MatMul (x, w)  u = Slice (m, zero, far, axis)  g = Slice (m, eight, end, axis)  y = Mul (u, g) }""",
    "given out": f"g (float[N,8] x, float[8,32] w) => (float[N,16] y, float[N,32] m) {{ m = MatMul (x, w)  {TWO} }}",
    "another reader": f"""g (float[N,8] x, float[8,32] w) => (float[N,16] y, float[N,32] z) {{
      m = MatMul (x, w)  {TWO}  z = Relu (m) }}""",
    "a weight of two products": f"""g (float[N,8] x, float[8,32] w) => (float[N,16] y, float[N,32] z) {{
      m = MatMul (x, w)  {TWO}  o = Tanh (x)  z = MatMul (o, w) }}""",
    "a bias of two": f"""g (float[N,8] x, float[8,32] w, float[32] b) => (float[N,16] y, float[N,32] z) {{
      p = MatMul (x, w)  m = Add (p, b)  {TWO}  z = Add (b, m) }}""",
    "one part": """g (float[N,8] x, float[8,32] w) => (float[N,8] y)
      <int64[1] zero = {0}, int64[1] eight = {8}, int64[1] axis = {1}> {
      m = MatMul (x, w)  u = Slice (m, zero, eight, axis)  y = Relu (u) }""",
    "every other column": """g (float[N,8] x, float[8,32] w) => (float[N,16] y)
      <int64[1] zero = {0}, int64[1] one = {1}, int64[1] end = {32}, int64[1] axis = {1}, int64[1] step = {2}> {
      m = MatMul (x, w)  u = Slice (m, zero, end, axis, step)  g = Slice (m, one, end, axis, step)  y = Mul (u, g) }""",
    "along the rows": """g (float[4,8] x, float[8,32] w) => (float[2,32] y) {
      m = MatMul (x, w)  u, g = Split <axis = 0> (m)  y = Mul (u, g) }""",
    "narrow parts": f"g (float[N,8] x, float[8,8] w) => (float[N,4] y) {{ m = MatMul (x, w)  {TWO} }}",
    "one number of a bias for all": f"""g (float[N,8] x, float[8,32] w, float[1] b) => (float[N,16] y) {{
      m = Gemm (x, w, b)  {TWO} }}""",
    "a turned input": f"g (float[8,N] x, float[8,32] w) => (float[N,16] y) {{ m = Gemm <transA = 1> (x, w)  {TWO} }}",
    "sums of seven": f"g (float[N,7] x, float[7,32] w) => (float[N,16] y) {{ m = MatMul (x, w)  {TWO} }}",
    "long sums": f"""g (float[N,{TOO_LONG}] x, float[{TOO_LONG},32] w) => (float[N,16] y) {{
      m = MatMul (x, w)  {TWO} }}""",
    "a batch of weights": f"g (float[2,N,8] x, float[2,8,32] w) => (float[2,N,16] y) {{ m = MatMul (x, w)  {TWO} }}",
    "a weight that is computed": f"g (float[N,8] x, float[8,32] c) => (float[N,16] y) {{ m = MatMul (x, c)  {TWO} }}",
    "an axis among heads": """g (float[N,8] x, float[8,32] w) => (float[N,1,16] y)
      <int64[3] shape = {0, 2, 16}, int64[1] axes = {1}, int64 zero = {0}, int64 one = {1}> {
      m = MatMul (x, w)  r = Reshape (m, shape)  h = Unsqueeze (r, axes)
      u = Gather <axis = 2> (h, zero)  g = Gather <axis = 2> (h, one)  y = Mul (u, g) }""",
    "rows mixed with columns": """g (float[4,8] x, float[8,24] w) => (float[6,8] y) <int64[2] shape = {6, 16}> {
      m = MatMul (x, w)  r = Reshape (m, shape)  u, g = Split <axis = 1> (r)  y = Mul (u, g) }""",
}


@pytest.mark.parametrize("name", list(LEFT))
def test_the_rest_stays(name: str) -> None:
    """What keeps the whole, or parts that would not be multiplied side by side."""
    assert not split_matmul(graph_of(with_weights(LEFT[name])))


def test_doubles_and_old_opsets_stay() -> None:
    """The gemm kernels multiply no doubles; before opset 13 Split has its sizes elsewhere."""
    text = f"g (float[N,8] x, float[8,32] w) => (float[N,16] y) {{ m = MatMul (x, w)  {TWO} }}"
    assert not split_matmul(graph_of(with_weights(text), 12))
    model = parse(text.replace("float[", "double["))
    model.graph.initializer.append(numpy_helper.from_array(np.ones((8, 32)), "w"))
    del model.graph.input[1]
    assert not split_matmul(graph_of(model))
    assert split_matmul(graph_of(with_weights(text)))


def test_rules_go_first() -> None:
    """What packed_qkv takes is its own; without it the step cuts the same product."""
    model = with_weights("""g (float[N,S,8] x, float[8,48] w, float[48] b)
      => (float[N,S,4,4] q, float[N,S,4,4] k, float[N,S,4,4] v) <int64[4] shape = {0, 0, 4, 4}> {
      m = MatMul (x, w)  a = Add (m, b)  q3, k3, v3 = Split <axis = -1> (a)
      q4 = Reshape (q3, shape)  k4 = Reshape (k3, shape)  v4 = Reshape (v3, shape)
      q = Tanh (q4)  k = Relu (k4)  v = Neg (v4) }""")
    made, report = optimize(model, "packed_qkv")
    assert report.by_rule() == {"packed_qkv": 1}
    assert_same_numbers(model, made)
    assert sorted(apart(model)) == sorted(ops(made))


def test_halves_of_channels_are_products_of_one_kernel() -> None:
    """A 1x1 convolution is a product once images are channels last: SimpleGate and GLU of images never copy a half."""
    text = """g (float[2,16,12,12] x, float[32,16,3,3] w, float[32,32,1,1] v, float[32] b, float[16,16,1,1] u)
      => (float[2,16,12,12] y) {
      c = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w)
      d = Conv <kernel_shape = [1,1]> (c, v, b)
      p, q = Split <axis = 1> (d)
      m = Mul (p, q)
      y = Conv <kernel_shape = [1,1]> (m, u) }"""
    model = parse(text)
    weights = {"w": (32, 16, 3, 3), "v": (32, 32, 1, 1), "b": (32,), "u": (16, 16, 1, 1)}
    inputs = [i for i in model.graph.input if i.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    numbers = np.random.default_rng(0)
    for name, shape in weights.items():
        array = (0.1 * numbers.normal(size=shape)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    model = halved(model)
    made, _ = optimize(model)
    assert not any("Split" in op for op in ops(made)), ops(made)
    assert sum(op.count("MatMul") == 2 and "Mul}" in op for op in ops(made)) == 1, ops(made)
    assert_same_numbers(model, made)
