"""A Concat of channels before a convolution: its kernel reads the parts, and what is side by side is never written."""

import numpy as np
import pytest
from onnx import numpy_helper

from onnxfuse.model.fused import fused_ops
from onnxfuse.passes import pipeline
from onnxfuse.rules.language import rule_file
from tests.support.channels_last import weights
from tests.support.small import assert_same_numbers, ops, optimize, parse

NARROW = [one for one in rule_file.shipped() if one.name == "narrow"]
CONV = """image = Transpose <perm = [0,3,1,2]> (x)
  filters = Transpose <perm = [0,3,1,2]> (w)
  c = Conv <pads = [1,1,1,1]> (image, filters)
  m = Transpose <perm = [0,2,3,1]> (c)"""


def net(first: str, p: int = 8, q: int = 24, more: str = "", outputs: str = "") -> str:
    """Return a convolution of `x`, which `first` computes from `p` and `q` channels, with `more` after it."""
    return f"""<ir_version: 8, opset_import: ["" : 20]>
g (float[N,4,5,{p}] p, float[N,4,5,{q}] q, float[16,3,3,{p + q}] w) => (float[N,4,5,16] y{outputs}) {{
  {first}
  {CONV}
  y = Relu (m)
  {more}
}}"""


@pytest.mark.parametrize("axis", [3, -1])
def test_the_concat_is_in_the_convolutions_kernel(axis: int) -> None:
    model = parse(net(f"x = Concat <axis = {axis}> (p, q)"))
    pipeline.run(model, NARROW)
    assert ops(model) == ["{Concat Transpose Transpose Conv Transpose Relu}"]
    assert_same_numbers(parse(net(f"x = Concat <axis = {axis}> (p, q)")), model)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            net("x = Concat <axis = 3> (p, q)", more="z = Relu (x)", outputs=", float[N,4,5,32] z"),
            "read elsewhere, too",
        ),
        (net("x = Concat <axis = 3> (p, q)", 6, 26), "'p' has 6 channels, expected a multiple of 16 bytes"),
    ],
)
def test_a_concat_that_stays_is_told_why(text: str, told: str) -> None:
    """The convolution is a kernel all the same."""
    model = parse(text)
    report = pipeline.run(model, NARROW)
    assert "{Transpose Transpose Conv Transpose Relu}" in ops(model)
    assert "Concat" in ops(model)
    assert told in "\n".join(stop.reason for one in report.applied for stop in one.stops)
    assert_same_numbers(parse(text), model)


def test_images_below_each_other_stay() -> None:
    """A Concat of another axis than the channels."""
    text = net("x = Concat <axis = 1> (p, q)", 16, 16).replace("float[16,3,3,32]", "float[16,3,3,16]")
    text = text.replace("(float[N,4,5,16] y", "(float[N,8,5,16] y")
    model = parse(text)
    pipeline.run(model, NARROW)
    assert ops(model) == ["Concat", "{Transpose Transpose Conv Transpose Relu}"]


def test_a_dense_block_writes_nothing_side_by_side() -> None:
    """As torch exports it: each convolution on all values before it, the last one with the residual."""
    kept = ", ".join([weights("w", 16, 16, 3, 3), weights("v", 16, 32, 3, 3), weights("u", 16, 48, 3, 3)])
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[N,16,H,W] x) => (float[N,16,H,W] y) <{kept}> {{
      c = Conv <pads = [1,1,1,1]> (x, w)
      a = LeakyRelu <alpha = 0.2> (c)
      j = Concat <axis = 1> (x, a)
      d = Conv <pads = [1,1,1,1]> (j, v)
      b = LeakyRelu <alpha = 0.2> (d)
      k = Concat <axis = 1> (x, a, b)
      e = Conv <pads = [1,1,1,1]> (k, u)
      y = Add (x, e)
    }}"""
    made, _ = optimize(parse(text))
    assert "Concat" not in ops(made)
    assert [op.rule for op in fused_ops(made).values()].count("narrow") == 3
    assert_same_numbers(parse(text), made)


# ---- before what computes the left factor of a product


def product(nodes: str, outputs: str = "", inputs: str = "", columns: int = 8, size: str = "N,H,W") -> str:
    """Return a product by weights of `f`, which the nodes compute from `p` and `q`, images of 8 channels each."""
    w = ", ".join(str(15360 + i % 13) for i in range(16 * columns))  # the bits of float16; 15360 is 1
    vectors = ", ".join(f"float16[16] {n} = {{{', '.join(['15360', '14336'] * 8)}}}" for n in "st")
    return f"""<ir_version: 8, opset_import: ["" : 20]>
g (float16[{size},8] p, float16[{size},8] q{inputs}) => (float16[{size},{columns}] y{outputs})
<float16[16,{columns}] w = {{{w}}}, {vectors}> {{ {nodes} y = MatMul (f, w) }}"""


def fused(text: str) -> list[str]:
    """Return the operators that are left of a model whose numbers stay the same."""
    model = parse(text)
    pipeline.run(model)
    assert_same_numbers(parse(text), model)
    return ops(model)


@pytest.mark.parametrize(
    "nodes",
    [
        "x = Concat <axis = 3> (p, q) a = Mul (x, s) b = Add (a, t) f = Relu (b)",
        "x = Concat <axis = -1> (q, p, p) a = Gelu (x) f = Mul (a, x)",
    ],
)
def test_a_product_reads_what_lies_side_by_side(nodes: str) -> None:
    """One kernel, which writes neither what is put side by side nor what is made of it."""
    text = product(nodes)
    if "p, p" in nodes:
        text = text.replace("float16[16,8] w", "float16[24,8] w").replace("w = {", "w = {" + "15360, " * 64)
    (one,) = fused(text)
    assert one.startswith("{Concat ")
    assert one.endswith(" MatMul}")


@pytest.mark.parametrize(
    "text",
    [
        product("x = Concat <axis = 3> (p, q) f = Relu (x) z = Neg (x)", ", float16[N,H,W,16] z"),
        product("x = Concat <axis = 3> (p, q) f = Mul (x, g)", inputs=", float16[N,H,W,16] g"),
        product("x = Concat <axis = 3> (p, q) z = Concat <axis = 3> (q, p) f = Max (x, z)"),
        product("x = Concat <axis = 3> (p, q) f = Relu (x)", columns=136),
    ],
    ids=["read elsewhere", "beside a matrix", "two of them", "many columns"],
)
def test_what_lies_side_by_side_otherwise_stays(text: str) -> None:
    """The product by itself; what stands before it has a kernel of its own."""
    assert not any("Concat" in one and "MatMul" in one for one in fused(text))


@pytest.mark.parametrize(
    ("more", "outputs", "free"),
    [
        ("", "", True),
        ("z = Neg (p)", ", float16[32,28,28,8] z", False),
        ("", ", float16[32,28,28,8] p", False),
    ],
    ids=["read once", "read elsewhere", "an output"],
)
def test_a_concat_of_parts_that_only_it_reads_costs_nothing(more: str, outputs: str, free: bool) -> None:
    """What computes them writes them where they are read; otherwise they would be copied."""
    text = product(f"p = Abs (k) f = Concat <axis = 3> (p, q) {more}", outputs, size="32,28,28")
    report = pipeline.run(parse(text.replace("28,8] p,", "28,8] k,", 1)))
    (reason,) = (one.refusal.reason for one in report.stopped if one.rule == "joined_factor")
    assert ("is all written in place" in reason) is free


@pytest.mark.parametrize(
    ("size", "joins"),
    [
        ("32,14,14", True), ("1,64,64", True), ("N,28,28", True), ("32,H,W", True),
        ("1,14,14", False), ("20,14,14", False), ("1,56,56", False), ("N,14,14", False),
    ],
)  # fmt: skip
def test_few_rows_stay(size: str, joins: bool) -> None:
    """Known to be few, or perhaps few: of small images, however many there are."""
    model = parse(product("x = Concat <axis = 3> (p, q) f = Relu (x)", size=size))
    assert pipeline.run(model).by_rule().get("joined_factor", 0) == joins


def test_a_dense_layer_is_two_kernels() -> None:
    """As torch exports it, channels first: norm, ReLU and a convolution of one pixel, then one of three by three."""
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {"u": (64, 64, 3, 3), "w": (32, 128, 1, 1), "v": (32, 32, 3, 3)}
    shapes |= dict.fromkeys(("scale", "shift", "mean"), (128,))
    kept = {n: rng.standard_normal(s) for n, s in shapes.items()} | {"variance": rng.uniform(1, 2, 128)}
    model = parse("""<ir_version: 8, opset_import: ["" : 17]>
    g (float16[N,64,H,W] x) => (float16[N,32,H,W] y) {
      p = Conv <pads = [1,1,1,1]> (x, u)
      q = Conv <pads = [1,1,1,1]> (p, u)
      j = Concat <axis = 1> (p, q)
      n = BatchNormalization (j, scale, shift, mean, variance)
      a = Relu (n)
      c = Conv (a, w)
      b = Relu (c)
      y = Conv <pads = [1,1,1,1]> (b, v)
    }""")
    model.graph.initializer.extend(numpy_helper.from_array(v.astype(np.float16), n) for n, v in kept.items())
    made, _ = optimize(model)
    (layer,) = [op for op in fused_ops(made).values() if op.rule == "joined_factor"]
    assert [n.op_type for n in layer.body.node if n.op_type in ("Concat", "MatMul", "Relu")] == [
        "Concat", "Relu", "MatMul", "Relu",
    ]  # fmt: skip
    assert not any(n.op_type == "Concat" for n in made.graph.node)
