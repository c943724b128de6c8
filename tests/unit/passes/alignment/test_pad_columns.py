"""Products have as many columns as kernels take, by zeros in their weights and the next, and compute the same."""

import onnx
import pytest

from onnxfuse.graph.graph import Graph
from onnxfuse.passes.alignment.pad_columns import pad_columns
from onnxfuse.shapes.inference import infer
from tests.support.extents import extents
from tests.support.small import assert_same_numbers, fuses, numbers, ops, optimize, parse

TEXT = """g (float[N,S,16] x) => (float[N,S,16] y)
<float three = {3}, float none = {0}, float six = {6}, float[COLUMNS] of_each = {EACH}, float[16,COLUMNS] w = {W},
 float[COLUMNS] b = {B}, float[COLUMNS,16] next = {O}> {
  m = MatMul (x, w)
  a = Add (b, m)
ACT
  o = MatMul (h, next)
  y = Relu (o)
}"""

ACTS = {
    "relu": "  h = Relu (a)",
    "silu": "  s = Sigmoid (a)\n  h = Mul (a, s)",
    "hard swish": "  p = Add (a, three)\n  c = Clip (p, none, six)\n  q = Mul (c, a)\n  h = Div (q, six)",
    "numbers of each": "  d = Sub (a, of_each)\n  e = Mul (of_each, d)\n  h = Softplus (e)",
    "sine": "  h = Sin (a)",
    "turned on the way": "  t = Transpose <perm = [2,0,1]> (a)\n  u = Exp_ (t)\n  h = Transpose <perm = [1,2,0]> (u)",
    "nothing": "  h = Sub (three, a)",
}


def text(act: str, columns: int = 6) -> str:
    """Return two products with so many columns, or terms, and this between them."""
    filled = TEXT.replace("ACT", act.replace("Exp_", "Sigmoid")).replace("COLUMNS", str(columns))
    for name, (count, step) in {"EACH": (1, 3), "W": (16, 5), "B": (1, 7), "O": (16, 11)}.items():
        filled = filled.replace(f"{{{name}}}", f"{{{numbers(count * columns, step)}}}")
    return filled


@pytest.mark.parametrize("act", ACTS)
def test_columns_get_zeros(act: str) -> None:
    """Both weights have eight, once is enough, and each product is one kernel with what stands behind it."""
    model = parse(text(ACTS[act]))
    graph = Graph(model.graph, infer(model).graph, 17)
    assert pad_columns(graph)
    assert not pad_columns(graph)
    assert graph.type("h").shape == extents("N", "S", 8)
    made, _ = optimize(parse(text(ACTS[act])))
    assert_same_numbers(parse(text(ACTS[act])), made)
    assert "MatMul" not in ops(made)
    assert optimize(made)[0] == made


def test_squeeze_and_excite_is_two_products_and_a_gate() -> None:
    """As EfficientNet has it, where a kernel takes no product of 6 columns."""
    left = fuses("""g (float[N,16,H,W] x) => (float[N,16,H,W] y)
<float[6,16,1,1] w = {W}, float[6] b = {1,-1,2,-2,3,-3}, float[16,6,1,1] v = {W}, float[16,3,3,3] k = {K},
 float[16,16,3,3] l = {L}> {
  i = Conv <pads = [1,1,1,1]> (x, l)
  m = GlobalAveragePool (i)
  s = Conv (m, w, b)
  t = Sigmoid (s)
  h = Mul (s, t)
  e = Conv (h, v)
  g = Sigmoid (e)
  z = Mul (i, g)
  y = Conv <pads = [1,1,1,1]> (z, l)
}""".replace("{W}", f"{{{numbers(96, 5)}}}").replace("{L}", f"{{{numbers(2304, 7)}}}")
        .replace("float[16,3,3,3] k = {K},\n", ""))  # fmt: skip
    assert not {"MatMul", "Conv"} & set(left), left
    assert sum(op.count("MatMul") for op in left) == 2, left


def test_a_table_in_the_place_of_an_input_gets_zeros_alike() -> None:
    """Two constants are multiplied where their product is too big to be folded."""
    table = text("  h = Relu (a)").replace("(float[N,S,16] x)", "(float[N,4,16] z)").replace("[N,S,16] y", "[N,4,16] y")
    table = table.replace("<float three", f"<float[4,16] x = {{{numbers(64, 3)}}}, float three")
    table = table.replace("y = Relu (o)", "r = Relu (o)\n  y = Add (r, z)")
    model = parse(table)
    graph = Graph(model.graph, infer(model).graph, 17)
    assert pad_columns(graph)
    graph.commit()
    onnx.checker.check_model(model, full_check=True)


LEFT = {
    "columns that leave": text("  h = Relu (a)").replace("(float[N,S,16] y)", "(float[N,S,16] y, float[N,S,6] h)"),
    "a sum over them": text("  h = Softmax <axis = -1> (a)"),
    "a quotient of 0 by 0": text("  s = Sigmoid (a)\n  h = Div (s, a)"),
    "a divisor of each": text("  h = Div (a, of_each)"),
    "a logarithm of 0": text("  s = Abs (a)\n  h = Log (s)"),
    "no weights behind": text("  h = Relu (a)").replace("float[N,S,16] x)", "float[N,S,16] x, float[6,16] next)")
    .replace(f", float[6,16] next = {{{numbers(96, 11)}}}", ""),
    "a boundary": text("  h = Relu (a)", 8),
    "much wider ones": text("  h = Relu (a)", 3),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT)
def test_the_rest_stays(name: str) -> None:
    model = parse(LEFT[name])
    assert not pad_columns(Graph(model.graph, infer(model).graph, 17))


@pytest.mark.parametrize("name", ["w", "b", "next"])
def test_numbers_that_were_left_in_their_file_stay(name: str) -> None:
    """As `explain` leaves those of large models."""
    model = parse(text("  h = Relu (a)"))
    tensor = next(t for t in model.graph.initializer if t.name == name)
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    assert not pad_columns(Graph(model.graph, infer(model).graph, 17))


QUANTIZED = """g (uint8[N,4,4,32] x, float s) => (float[N,4,4,32] y) <int8[32,24] w = {W}, int8[24,32] v = {V},
  float[24] k = {K}, float[24] b = {B}, float r = {0.5}, int8 z = {-3}> {
  m = MatMulInteger (x, w)
  f = Cast <to = 1> (m)
  p = Mul (f, k)
  a = Add (p, b)
  q = QuantizeLinear (a, r, z)
READ
  y = Cast <to = 1> (n)
}"""


def quantized(read: str) -> str:
    """Return a product of 24 columns of integers, quantized and read by another product."""
    filled = QUANTIZED.replace("READ", read)
    for name, (count, step) in {"W": (768, 5), "V": (768, 7)}.items():
        filled = filled.replace(f"{{{name}}}", f"{{{','.join(str(n * step % 11 - 5) for n in range(count))}}}")
    for name, step in {"K": 3, "B": 11}.items():
        filled = filled.replace(f"{{{name}}}", f"{{{numbers(24, step)}}}")
    return filled


def test_quantized_columns_are_rows_of_16_bytes() -> None:
    """Its zero point stands in the padded columns, and meets zeros in the next weights."""
    text = quantized("  n = MatMulInteger (q, v)")
    model = parse(text)
    graph = Graph(model.graph, infer(model).graph, 17)
    assert pad_columns(graph)
    assert not pad_columns(graph)
    assert graph.type("q").shape == extents("N", 4, 4, 32)
    assert_same_numbers(parse(text), model)


@pytest.mark.parametrize(
    "read", ["  u = MatMulInteger (q, v, z)\n  n = Add (u, u)", "  t = Flatten (q)\n  n = MatMulInteger (q, v)"]
)
def test_quantized_columns_that_something_else_reads_stay(read: str) -> None:
    """A product's own zero point would be subtracted from the padded columns, too: by then it has become a sum."""
    model = parse(quantized(read))
    assert not pad_columns(Graph(model.graph, infer(model).graph, 17))
