"""What is computed twice is computed once, and extents are read where they first appear."""

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.graph.constant_folding import (
    common_subexpressions,
    identity_elimination,
    redundant_expand_elimination,
    reuse_extents,
)
from onnxfuse.graph.graph import Graph
from onnxfuse.rules.rewriting.normal_forms import normal_form
from onnxfuse.shapes import inference
from tests.support.small import assert_same_numbers, ops, optimize, parse

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'


def shared(text: str) -> tuple[onnx.ModelProto, bool]:
    """Return the model with equal nodes made one, and whether there were any."""
    model = parse(HEAD + text)
    graph = Graph(model.graph, inference.infer(model).graph, 17)
    changed = common_subexpressions(graph)
    graph.eliminate_dead_code()
    graph.commit()
    onnx.checker.check_model(model, full_check=True)
    assert_same_numbers(parse(HEAD + text), model)
    return model, changed


def test_equal_chains_become_one() -> None:
    """What follows equal nodes is equal, too; a constant is known by its numbers, not by its name."""
    model, changed = shared("""g (float[N,4] x) => (float[N,4] y) <float[1] k = {2}, float[1] l = {2}> {
      a = Mul (x, k)  b = Exp (a)
      c = Mul (x, l)  d = Exp (c)
      y = Add (b, d)
    }""")
    assert changed
    assert ops(model) == ["Mul", "Exp", "Add"]


@pytest.mark.parametrize(
    "other",
    [
        "b = Softmax <axis = 0> (x)",  # another attribute
        "k = Constant <value = float {2.0}> ()  b = Mul (x, k)",  # another operator
    ],
)
def test_what_differs_stays(other: str) -> None:
    """Attributes and operators are compared, too."""
    model, changed = shared(
        f"g (float[N,4] x) => (float[N,4] y) {{ a = Softmax <axis = 1> (x)  {other}  y = Add (a, b) }}"
    )
    assert not changed
    assert "Add" in ops(model)


def test_a_graph_output_keeps_its_name() -> None:
    """Two outputs that are equal are still two outputs."""
    model, changed = shared("g (float[N,4] x) => (float[N,4] y, float[N,4] z) { y = Exp (x)  z = Exp (x) }")
    assert not changed
    assert ops(model) == ["Exp", "Exp"]


def test_what_two_kernels_compute_of_one_value_one_computes() -> None:
    """Exporters spell a value again for each reader, and so the readers each got a kernel for it."""
    text = """g (float[8,8] x, float[8,8] z, float[8,8] v) => (float[8,8] p, float[8,8] q, float[8,8] r) {
      a = Tanh (x)  b = Exp (a)  p = MatMul (b, v)
      c = Tanh (x)  d = Exp (c)  q = MatMul (v, d)
      e = Tanh (z)  f = Exp (e)  r = MatMul (f, v)
    }"""
    made, _ = optimize(parse(text))
    assert sorted(ops(made)) == ["MatMul"] * 3 + ["{Tanh Exp}"] * 2
    assert_same_numbers(parse(text), made)


def test_noise_is_not_shared() -> None:
    """What is random differs each time."""
    text = "g (float[N,4] x) => (float[N,4] y) { a = RandomNormalLike (x)  b = RandomNormalLike (x)  y = Sub (a, b) }"
    model = parse(HEAD + text)
    assert not common_subexpressions(Graph(model.graph, inference.infer(model).graph, 17))


@pytest.mark.parametrize(
    "asked",
    [
        "two = Constant <value_ints = [2]> ()  four = Constant <value_ints = [4]> ()  "
        "s = Shape (h)  n = Slice (s, two, four)",
        "n = Shape <start = 2> (h)",
        "i = Constant <value_ints = [-2, 3]> ()  s = Shape (h)  n = Gather (s, i)",
        "i = Constant <value_ints = [0, 2]> ()  s = Shape (h)  n = Gather (s, i)",
    ],
)
def test_extents_are_read_at_home(asked: str) -> None:
    """Slice, Gather or Shape of some: the value that was asked is free, the numbers are those of the input."""
    text = HEAD + "g (float[N,S,4] x) => (float[N,4,S,1] h, int64[2] n1) { t = Transpose <perm = [0,2,1]> (x)\n"
    text += "  one = Constant <value_ints = [-1]> ()  e = Exp (t)  h = Unsqueeze (e, one)\n"
    text += f"  {asked}  n1 = Abs (n) }}"
    model = parse(text)
    for number, node in enumerate(model.graph.node):
        node.name = f"node{number}"
    graph = Graph(model.graph, inference.infer(model).graph, 17)
    assert reuse_extents(graph)
    graph.eliminate_dead_code()
    graph.commit()
    names = [n.name for n in model.graph.node if n.name]
    assert len(names) == len(set(names)), "ONNX Runtime refuses two nodes of one name"
    assert all(n.input[0] == "x" for n in model.graph.node if n.op_type == "Shape")
    onnx.checker.check_model(model, full_check=True)
    assert_same_numbers(parse(text), model)


def test_a_chain_of_identities_goes() -> None:
    """One after the other, and the output keeps its name."""
    text = (
        HEAD
        + """g (float[N,4] x) => (float[N,4] y, float[N,4] z) {
      a = Exp (x)  b = Identity (a)  c = Identity (b)  d = Identity (c)  y = Neg (d)  e = Relu (c)  z = Identity (e)
    }"""
    )
    model = parse(text)
    graph = Graph(model.graph, inference.infer(model).graph, 17)
    eliminate_identities(graph)
    graph.commit()
    assert ops(model) == ["Exp", "Neg", "Relu"]
    onnx.checker.check_model(model, full_check=True)
    assert_same_numbers(parse(text), model)


def eliminate_identities(graph: Graph) -> None:
    """Write what is an identity as one, and eliminate them, to a fixed point."""
    while normal_form("identities")(graph) | identity_elimination(graph):
        pass


def same(text: str) -> list[str]:
    """Return the operators left of a model without its identities, which computes the same."""
    model = parse(HEAD + text)
    graph = Graph(model.graph, inference.infer(model).graph, 17)
    eliminate_identities(graph)
    graph.commit()
    onnx.checker.check_model(model, full_check=True)
    assert_same_numbers(parse(HEAD + text), model)
    return ops(model)


def test_a_product_with_one_passes_on_its_value() -> None:
    """Not where the one has more axes, nor for other numbers; quotients by one alone."""
    left = same("""g (float[N,4] x) => (float[N,4] y, float[1,N,4] z, float[N,4] v)
    <float one = {1}, float[1,1] row = {1}, float[1,1,1] cube = {1}, float two = {2}> {
      a = Mul (x, one)  b = Mul (row, a)  c = Div (b, one)  y = Relu (c)
      d = Mul (cube, x)  z = Neg (d)
      e = Div (one, x)  f = Mul (e, two)  v = Exp (f)
    }""")
    assert left == ["Relu", "Mul", "Neg", "Div", "Mul", "Exp"]


def test_what_reads_one_value_alone_passes_it_on() -> None:
    """A Concat or a sum of one value is a copy; of two it is not."""
    left = same("""g (float[N,4] x) => (float[N,4] y, float[N,8] z) {
      a = Concat <axis = 1> (x)  b = Sum (a)  c = Max (b)  y = Neg (c)  z = Concat <axis = 1> (a, x)
    }""")
    assert left == ["Neg", "Concat"]


def test_a_slice_of_all_passes_it_on() -> None:
    """Whatever the end is that the exporter writes; not from the second element on, nor backwards."""
    left = same("""g (float[N,4] x) => (float[N,4] y, float[N,3] z, float[N,4] v)
    <int64[2] first = {0,0}, int64[2] end = {1000000000,9223372036854775807}, int64[2] axes = {0,1},
     int64[1] second = {1}, int64[1] last = {-1}, int64[1] before = {-1000000}, int64[1] beyond = {2147483647}> {
      a = Slice (x, first, end, axes)  y = Neg (a)
      b = Slice (x, second, beyond, second)  z = Exp (b)
      c = Slice (x, last, before, second, last)  v = Abs (c)
    }""")
    assert left == ["Neg", "Slice", "Exp", "Slice", "Abs"]


def biased(heads: int, tokens: int, table: int) -> onnx.ModelProto:
    """Return scores of windows with a bias that is gathered from a table of positions, as exporters write it."""
    model = parse(
        HEAD
        + f"""g (float16[N,{heads},{tokens},{tokens}] x) => (float16[N,{heads},{tokens},{tokens}] y) {{
      b = Gather <axis = 0> (table, index)  r = Reshape (b, square)
      t = Transpose <perm = [2, 0, 1]> (r)  u = Unsqueeze (t, first)  y = Add (x, u)
    }}"""
    )
    rng = np.random.default_rng(0)
    numbers: dict[str, np.ndarray] = {
        "table": rng.standard_normal((table, heads)).astype(np.float16),
        "index": rng.integers(0, table, tokens * tokens),
        "square": np.array([tokens, tokens, heads]),
        "first": np.array([0]),
    }
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, name) for name, a in numbers.items())
    return model


@pytest.mark.parametrize(
    ("heads", "tokens", "table", "left"),
    [
        (32, 49, 169, ["Add"]),  # 154 kB of 11
        (24, 256, 961, ["Gather", "Reshape", "Transpose", "Unsqueeze", "Add"]),  # 3 MB of 46 kB
    ],
)
def test_a_bias_gathered_from_a_table_is_a_constant(heads: int, tokens: int, table: int, left: list[str]) -> None:
    """Windows' positions are, unless the file grew by megabytes."""
    model = biased(heads, tokens, table)
    fused = onnxfuse.optimize(model, rules=[])
    assert ops(fused) == left
    assert_same_numbers(model, fused)
    assert onnxfuse.optimize(fused, rules=[]).SerializeToString() == fused.SerializeToString()


def test_a_number_in_many_places_stays_one() -> None:
    """A file does not hold 400 kB that are one number."""
    text = """g (float[N,100000] x) => (float[N,100000] y)
      <float k = {2}, int64[1] many = {100000}> { b = Expand (k, many)  y = Add (x, b) }"""
    assert onnxfuse.optimize(parse(HEAD + text), rules=[]).ByteSize() < 1000


def test_a_whole_shape_in_another_order_stays() -> None:
    """Two nodes give it, an extent at a time six. Channels-last regions write it so, and come out as they went in."""
    norm = """flat{n} = Constant <value_ints = [0, 1, -1]> ()  s{n} = Shape ({v})  r{n} = Reshape ({v}, flat{n})
      i{n} = InstanceNormalization (r{n}, scale, zero)  b{n} = Reshape (i{n}, s{n})"""
    model = parse(
        HEAD
        + f"""g (float16[N,3,H,W] x) => (float16[N,16,P,Q] y)
        <float16[1] scale = {{1}}, float16[1] zero = {{0}}, float16[16] shift = {{{", ".join("1" * 16)}}}> {{
      c = Conv <kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]> (x, w)  {norm.format(n=0, v="c")}
      d = Conv <kernel_shape = [1,1]> (b0, v)  a = Add (c, d)  {norm.format(n=1, v="a")}
      y = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (b1, u, shift)
    }}"""
    )
    rng = np.random.default_rng(0)
    for name, shape in {"w": (16, 3, 3, 3), "v": (16, 16, 1, 1), "u": (16, 16, 3, 3)}.items():
        weight = rng.standard_normal(shape).astype(np.float16)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    made = onnxfuse.optimize(model)
    shapes = [n.op_type for n in made.graph.node if n.op_type in ("Shape", "Gather", "Concat")]
    assert shapes == ["Shape", "Gather"] * 2
    assert onnxfuse.optimize(made).SerializeToString(deterministic=True) == made.SerializeToString(deterministic=True)


def test_an_expand_to_the_shape_that_a_value_has_goes() -> None:
    """Named extents are those of the value; others may be 1 there, and stay."""
    text = (
        HEAD
        + """g (float[N,4] x, float[1,4] b) => (float[N,4] y, float[N,4] z) {
      s = Shape (x)  e = Expand (x, s)  y = Exp (e)  f = Expand (b, s)  z = Neg (f)
    }"""
    )
    model = parse(text)
    graph = Graph(model.graph, inference.infer(model).graph, 17)
    redundant_expand_elimination(graph)
    graph.eliminate_dead_code()
    graph.commit()
    assert ops(model) == ["Shape", "Exp", "Expand", "Neg"]
    assert_same_numbers(parse(text), model)


@pytest.mark.parametrize(
    ("own", "wide", "gone"),
    [
        ("float16", "double", True), ("bfloat16", "float", True), ("int32", "double", True), ("bool", "int64", True),
        ("int32", "float", False), ("double", "float", False), ("int64", "int32", False),
        ("float16", "bfloat16", False),
    ],
)  # fmt: skip
def test_a_cast_back_from_a_type_that_held_all_of_a_value_goes(own: str, wide: str, gone: bool) -> None:
    """Both Casts go, and the value is read itself; where the type between rounds, they stay."""
    types = {n: getattr(onnx.TensorProto, n.upper()) for n in (own, wide)}
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]> g ({own}[N] x) => ({own}[N] y) {{
          a = Cast <to = {types[wide]}> (x)  b = Cast <to = {types[own]}> (a)  y = Identity (b) }}"""
    )
    graph = Graph(model.graph, inference.infer(model).graph, 17)
    eliminate_identities(graph)
    graph.eliminate_dead_code()
    assert [n.op for n in graph.nodes] == (["Identity"] if gone else ["Cast", "Cast"])
