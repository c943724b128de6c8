"""Folding of nodes that are not defined on their constants."""

import numpy as np
import onnx
import pytest

import onnxfuse
from tests.support.small import assert_same_numbers

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
WEIGHTS = "<float[3] w = {1, 2, 3}, int64[2] i = {1, 9}>"


def test_a_node_that_fails_on_its_constants_stays() -> None:
    """ONNX Runtime opens the model, so it comes out: what runs is its affair."""
    model = onnx.parser.parse_model(
        f"{HEAD} g (float[2] x) => (float[2] y) {WEIGHTS} {{ h = Gather(w, i) y = Add(h, x) }}"
    )
    assert "Gather" in {n.op_type for n in onnxfuse.optimize(model).graph.node}


def test_in_a_branch_it_stays_as_it_is() -> None:
    """The branch may never be taken: the model runs as before."""
    model = onnx.parser.parse_model(
        f"""{HEAD} g (float[2] x, bool c) => (float[2] y) {WEIGHTS} {{
          y = If(c) <then_branch = a () => (float[2] p) {{ p0 = Gather(w, i) p = Neg(p0) }},
                     else_branch = b () => (float[2] q) {{ q0 = Neg(x) q = Neg(q0) }}>
        }}"""
    )
    branches = [a.g for a in onnxfuse.optimize(model).graph.node[0].attribute]
    assert "Gather" in [n.op_type for body in branches for n in body.node]


def test_an_activation_of_weights_alone_is_a_weight() -> None:
    """Torch's newer exporter computes what stands before it, as in tables of positions that an MLP makes (MaxViT)."""
    model = onnx.parser.parse_model(
        f"{HEAD} g (float[3] x) => (float[3] y) <float[3] w = {{-1, 2, 3}}> {{ h = Relu(w) y = Add(h, x) }}"
    )
    made = onnxfuse.optimize(model)
    assert [n.op_type for n in made.graph.node] == ["Add"]
    assert [onnx.numpy_helper.to_array(t).tolist() for t in made.graph.initializer] == [[0, 2, 3]]


TABLE = """g (float16[2,49,49] x) => (float16[2,49,49] y)
<int64[3] square = {2,49,49}, float16[2,13,13] table = {TABLE}, float16[7,7,13] one_hot = {ONES}> {
  rows = Einsum <equation = "nhw,ixh->nixw"> (table, one_hot)
  both = Einsum <equation = "nixw,jyw->nijxy"> (rows, one_hot)
  bias = Reshape (both, square)
  y = Add (x, bias)
}"""


def test_a_bias_that_products_look_up_is_a_weight() -> None:
    """As timm's MaxViT takes it from a table, by a product for each of two axes."""
    ones = np.zeros((7, 7, 13), np.float16)
    for i in range(7):
        for x in range(7):
            ones[i, x, x - i + 6] = 1
    table = np.random.default_rng(0).normal(size=(2, 13, 13)).astype(np.float16)
    text = TABLE
    for name, array in (("TABLE", table), ("ONES", ones)):
        text = text.replace(f"{{{name}}}", "{" + ",".join(map(str, array.view(np.uint16).reshape(-1))) + "}")
    made = onnxfuse.optimize(onnx.parser.parse_model(HEAD + text))
    assert [n.op_type for n in made.graph.node] == ["Add"]
    (bias,) = (onnx.numpy_helper.to_array(t) for t in made.graph.initializer)
    places = [(i, j) for i in range(7) for j in range(7)]
    wanted = [[table[:, x - i + 6, y - j + 6] for x, y in places] for i, j in places]
    np.testing.assert_array_equal(bias, np.moveaxis(np.array(wanted), -1, 0))


def test_a_long_product_of_weights_stays() -> None:
    """Computing it once would take longer than loading the model."""
    size = 512
    model = onnx.parser.parse_model(
        f"""{HEAD} g (float[{size},{size}] x) => (float[{size},{size}] y) <float[{size},{size}] w> {{
          h = Einsum <equation = "ij,jk->ik"> (w, w) y = Add(h, x) }}"""
    )
    weight = onnx.numpy_helper.from_array(np.ones((size, size), np.float32), "w")
    del model.graph.initializer[:]
    model.graph.initializer.append(weight)
    assert [n.op_type for n in onnxfuse.optimize(model).graph.node] == ["MatMul", "Add"]


def test_a_cast_to_the_type_that_is_there_is_no_node() -> None:
    model = onnx.parser.parse_model(
        f"""{HEAD} g (float[N] x) => (float[N] y, int64[1] z) {{
          s = Shape (x) z = Cast <to = 7> (s)
          w = Cast <to = 1> (x) h = Cast <to = 10> (w) b = Cast <to = 1> (h) y = Neg (b)
        }}"""
    )
    made = onnxfuse.optimize(model, only=["softmax"])
    assert [n.op_type for n in made.graph.node] == ["Shape", "Cast", "Cast", "Neg"]


@pytest.mark.parametrize(
    ("write", "wanted"),
    [
        ("ScatterND (w, places, u)", [7, 2, 8]),
        ("ScatterElements (w, order, u)", [8, 2, 7]),
        ('ScatterND <reduction = "add"> (w, places, u)', [8, 2, 11]),
        ("ScatterND (w, nowhere, nothing)", [1, 2, 3]),
    ],
)
def test_what_is_written_into_weights_is_a_weight(write: str, wanted: list[int]) -> None:
    """The masks of shifted windows, region by region, some of them empty (Swin3D: 43 launches of each run)."""
    text = f"""<ir_version: 8, opset_import: ["" : 18]> g (float[N,3] x) => (float[N,3] y)
    <float[3] w = {{1, 2, 3}}, int64[2,1] places = {{0, 2}}, int64[2] order = {{2, 0}}, float[2] u = {{7, 8}},
     int64[0,1] nowhere = {{}}, float[0] nothing = {{}}> {{ h = {write} y = Add (h, x) }}"""
    made = onnxfuse.optimize(onnx.parser.parse_model(text))
    assert [n.op_type for n in made.graph.node] == ["Add"]
    assert [onnx.numpy_helper.to_array(t).tolist() for t in made.graph.initializer] == [wanted]


def test_any_elementwise_operator_of_weights_alone_is_a_weight() -> None:
    """Rounded once to its type, of ONNX Runtime's own domain too."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 22, "com.microsoft" : 1]>
        g (float[3] x) => (float[3] y) <float[3] w = {-12, 2, 12}> {
          s = Softplus(w) q = com.microsoft.QuickGelu(s) y = Add(q, x)
        }"""
    )
    made = onnxfuse.optimize(model)
    assert [n.op_type for n in made.graph.node] == ["Add"]
    s = np.logaddexp(np.array([-12.0, 2, 12]), 0).astype(np.float32).astype(np.float64)
    (found,) = (onnx.numpy_helper.to_array(t) for t in made.graph.initializer)
    np.testing.assert_array_equal(found, (s / (1 + np.exp(-float(np.float32(1.702)) * s))).astype(np.float32))


def large(text: str) -> onnx.ModelProto:
    """Return the model with a weight w of 6x400x200, too large for a file to hold twice."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> {text}')
    w = np.random.default_rng(0).normal(size=(6, 400, 200)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    return model


def test_parts_of_a_weight_in_another_order_are_a_weight() -> None:
    """Torch's newer exporter orders the gates of a recurrent layer so: three Slices of each weight, and a Concat."""
    model = large("""g (float[N,200,4] x) => (float[6,N,400,4] y)
    <int64[1] a = {0}, int64[1] b = {2}, int64[1] c = {4}, int64[1] d = {6}, int64[1] n = {1}> {
      first = Slice (w, a, b, a)  second = Slice (w, b, c, a)  third = Slice (w, c, d, a)
      gates = Concat <axis = 0> (second, first, third)
      apart = Unsqueeze (gates, n)  y = MatMul (apart, x)
    }""")
    made = onnxfuse.optimize(model, rules=[])
    assert [n.op_type for n in made.graph.node] == ["MatMul"]
    assert_same_numbers(model, made)


def test_a_weight_split_for_several_products_is_several() -> None:
    """As nn.MultiheadAttention splits its packed projection."""
    model = large("""g (float[N,6,200,4] x) => (float[N,6,200,4] y) {
      p, q = Split <axis = 1, num_outputs = 2> (w)
      a = MatMul (p, x)  b = MatMul (q, x)  y = Sub (a, b)
    }""")
    made = onnxfuse.optimize(model, rules=[])
    assert [n.op_type for n in made.graph.node] == ["MatMul", "MatMul", "Sub"]
    assert_same_numbers(model, made)


BESIDE_THE_WHOLE = """g (float[N,6,200,4] x, float[N,3,200,4] z) => (float[N,6,400,4] a, float[N,3,400,4] b)
<int64[1] s = {0}, int64[1] e = {3}> {
  p = Slice (w, s, e, s)
  a = MatMul (w, x)  b = MatMul (p, z)
}"""

OVERLAPPING = """g (float[N,4,200,4] x) => (float[N,4,400,4] y)
<int64[1] s = {0}, int64[1] t = {1}, int64[1] e = {4}, int64[1] f = {5}> {
  p = Slice (w, s, e, s)  q = Slice (w, t, f, s)
  a = MatMul (p, x)  b = MatMul (q, x)  y = Add (a, b)
}"""


@pytest.mark.parametrize("text", [BESIDE_THE_WHOLE, OVERLAPPING])
def test_parts_that_would_be_in_the_file_twice_stay(text: str) -> None:
    """Beside the whole weight, or beside parts that overlap them."""
    model = large(text)
    made = onnxfuse.optimize(model, rules=[])
    assert "Slice" in {n.op_type for n in made.graph.node}
    assert made.ByteSize() < 1.1 * model.ByteSize()
