"""Products by weights between Transposes run along the other axis, compute the same, and nothing is turned."""

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import onnxfuse
from onnxfuse.graph.graph import Graph
from onnxfuse.passes.batching import matmul_transpose
from onnxfuse.passes.batching.matmul_transpose import absorb_matmul_transposes
from onnxfuse.shapes.inference import infer
from tests.support.small import assert_same_numbers, halved, ops, optimize, parse

TURN = "Transpose <perm = [0, 2, 1]>"

MIXER = f"""g (float[N,45,40] x, float[45,33] w, float[33] b, float[33,45] v, float[45] c) => (float[N,45,40] y) {{
  t = {TURN} (x)
  m = MatMul (t, w)  h = Add (b, m)  e = Erf (h)  g = Mul (h, e)
  n = MatMul (g, v)  o = Add (n, c)
  u = {TURN} (o)  y = Add (u, x)
}}"""
"""A layer that mixes tokens: two products with a bias each, an activation between them, a residual."""

GATE = f"""g (float[N,45,40] x, float[N,45,40] r, float[45,33] w, float[33,45] v, float[1,40,1] b)
=> (float[N,45,40] y) {{
  t = {TURN} (x)  s = {TURN} (r)  a = Mul (t, b)
  m = MatMul (a, w)  e = Tanh (m)  n = MatMul (e, v)  h = Mul (n, s)  q = Add (h, t)
  y = {TURN} (q)
}}"""
"""What is turned over twice and meets, a scale by channel, and a residual that is inside."""


AROUND = f"""g (float[N,45,40] x, float[45,45] w) => (float[N,45,40] y) {{
  t = {TURN} (x)  m = MatMul (t, w)  u = {TURN} (m)  s = Softmax (u)
  v = {TURN} (s)  h = Add (m, v)  n = MatMul (h, w)  y = {TURN} (n)
}}"""
"""What is turned back goes around, through what knows no turning, and comes in again."""


def with_weights(text: str, dtype: int = TensorProto.FLOAT16) -> ModelProto:
    """Return the model in `text` with the graph inputs w, v, b and c as weights of random numbers."""
    model = parse(text)
    kept = [i for i in model.graph.input if i.name in ("x", "r", "k")]
    numbers = np.random.default_rng(0)
    for value in [i for i in model.graph.input if i not in kept]:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        array = (numbers.normal(size=shape) / 4).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, value.name))
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return halved(model) if dtype == TensorProto.FLOAT16 else model


def graph_of(model: ModelProto, opset: int = 17) -> Graph:
    return Graph(model.graph, infer(model).graph, opset)


@pytest.mark.parametrize("text", [MIXER, GATE, AROUND])
def test_nothing_is_turned(text: str) -> None:
    """And again nothing changes."""
    model = with_weights(text)
    made, report = optimize(model, "expand")
    assert report.applied == []
    assert "Transpose" not in ops(made)
    assert_same_numbers(model, made)
    assert optimize(made, "expand")[0] == made


@pytest.mark.parametrize("text", [MIXER, GATE, AROUND])
def test_sums_have_the_same_terms(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, where no rounding hides another one."""
    monkeypatch.setattr(matmul_transpose, "TYPES", (TensorProto.FLOAT,))
    model = with_weights(text, TensorProto.FLOAT)
    made, _ = optimize(model, "expand")
    assert "Transpose" not in ops(made)
    assert_same_numbers(model, made)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_each_product_is_one_kernel(dtype: str) -> None:
    """With all that stands after it; a weight of 45 terms has rows of 48."""
    model = with_weights(MIXER)
    if dtype == "bfloat16":
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.elem_type = TensorProto.BFLOAT16
        for tensor in model.graph.initializer:
            array = numpy_helper.to_array(tensor).astype(helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16))
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    made, report = optimize(model)
    assert ops(made) == ["{Slice MatMul Add Erf Mul}", "{Slice MatMul Add Add}"]
    assert report.by_rule() == {"left_weight": 2}
    stored = {t.name: tuple(t.dims) for t in made.graph.initializer if t.name.endswith(".padded")}
    assert stored == {"w.turned.padded": (33, 48), "v.turned.padded": (45, 40)}
    onnx.checker.check_model(made, full_check=True)
    if dtype == "float16":  # ONNX Runtime's CPU has few operators of bfloat16
        assert_same_numbers(model, made)


def test_what_is_undone_computes_the_same_from_the_weights_of_before() -> None:
    """No row is padded any more, and nothing is cut."""
    model = with_weights(MIXER)
    made = onnxfuse.optimize(model)
    with pytest.warns(UserWarning, match="0 of the original's 9 nodes are back as they were"):
        undone = onnxfuse.unfuse(made)
    assert ops(undone) == ["MatMul", "Add", "Erf", "Mul", "MatMul", "Add", "Add"]
    assert {t.name: tuple(t.dims) for t in undone.graph.initializer} == {
        "w.turned": (33, 45), "b.turned": (33, 1), "v.turned": (45, 33), "c.turned": (45, 1),
    }  # fmt: skip
    assert_same_numbers(model, undone)


def test_a_weight_that_two_layers_share_is_turned_once() -> None:
    text = f"""g (float[N,45,40] x, float[45,45] w, float[45] b) => (float[N,45,40] y) {{
      t = {TURN} (x)  m = MatMul (t, w)  h = Add (m, b)  u = {TURN} (h)  a = Softmax (u)
      s = {TURN} (a)  n = MatMul (s, w)  o = Add (n, b)  y = {TURN} (o) }}"""
    model = with_weights(text)
    made, _ = optimize(model)
    assert [t.name for t in made.graph.initializer if len(t.dims) == 2 and t.dims[1] > 1] == ["w.turned.padded"]
    assert_same_numbers(model, made)
    undone = onnxfuse.unfuse(made)
    assert [t.name for t in undone.graph.initializer if len(t.dims) == 2 and t.dims[1] > 1] == ["w.turned"]
    assert_same_numbers(model, undone)


def test_a_weight_of_another_meaning_keeps_its_name() -> None:
    """A name that is taken is not one's own."""
    text = MIXER.replace("float[45] c)", "float[45] c, float[33,45] k)").replace("y = Add (u, x)", "y = Add (u, x)")
    model = with_weights(text.replace(" k)", " d)"))
    model.graph.initializer[-1].name = "w.turned"
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT16, [33, 45]))
    model.graph.node.append(helper.make_node("Neg", ["w.turned"], ["z"]))
    made, _ = optimize(model)
    assert_same_numbers(model, made)


LEFT = {
    "the turned value leaves": MIXER.replace("=> (", "=> (float[N,40,45] o, "),
    "another reads it": MIXER.replace("u = Tr", "k = Softmax (o)  z = ReduceSum (k)  u = Tr").replace(
        "=> (", "=> (float[1,1,1] z, "
    ),
    "few channels": MIXER.replace("40", "24"),
    "channels off the boundary": MIXER.replace("40", "42"),
    "channels that are not known": MIXER.replace("40", "C"),
    "a weight of few rows": MIXER.replace("33", "16"),
    "a weight that is computed": MIXER.replace("float[45,33] w", "float[45,33] k").replace("(t, w)", "(t, k)"),
    "a product by one of each batch": MIXER.replace("float[45,33] w", "float[1,45,33] w"),
    "no product": f"""g (float[N,45,40] x) => (float[N,45,40] y) {{
      t = {TURN} (x) e = Tanh (t) z = {TURN} (e) y = Neg (z) }}""",
    "other axes": MIXER.replace("[0, 2, 1]", "[2, 0, 1]", 1).replace("[N,", "[40,"),
    "a norm between": MIXER.replace("e = Erf (h)", "e = Softmax (h)"),
    "an image": MIXER.replace("float[N,45,40] x", "float[N,5,9,40] x").replace(
        f"t = {TURN} (x)", f"s = Constant <value = int64[3] {{0, 45, 40}}> () z = Reshape (x, s)  t = {TURN} (z)"
    ).replace("(u, x)", "(u, z)"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(LEFT))
def test_the_rest_stays(name: str) -> None:
    """Where not all is products by weights and elementwise work, or no kernel would multiply them."""
    graph = graph_of(with_weights(LEFT[name]))
    before = list(graph.nodes)
    assert not absorb_matmul_transposes(graph)
    assert graph.nodes == before


def test_products_of_other_types_between_stay() -> None:
    """The rule that takes every product that is written so takes none of float32."""
    text = MIXER.replace("m = MatMul (t, w)", "s = Cast <to = 1> (t)  p = MatMul (s, w)  m = Cast <to = 10> (p)")
    model = with_weights(text)
    weight = model.graph.initializer[0]
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight).astype(np.float32), "w"))
    assert not absorb_matmul_transposes(graph_of(model))


def test_other_types_stay() -> None:
    """What float32 kernels would take is not measured."""
    assert not absorb_matmul_transposes(graph_of(with_weights(MIXER, TensorProto.FLOAT)))
    assert absorb_matmul_transposes(graph_of(with_weights(MIXER)))
