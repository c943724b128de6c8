"""explain says of each quantized product and convolution whether it multiplies integers, and why not."""

import math

import onnx
import pytest

from onnxfuse.api.request.options import Options
from onnxfuse.explanation.explaining import Explained, explain
from onnxfuse.passes.quantization import products
from onnxfuse.rules.language.rule_file import shipped
from onnxfuse.rules.match.cause import Cause
from onnxfuse.rules.match.match import Refusal
from onnxfuse.rules.match.report import Near, OptimizeReport
from onnxfuse.support.screen import Line
from tests.support.quantized_models import IMAGES, TOKENS, dynamic, saved_by_ort, static
from tests.support.small import graph_of, ops, parse

HEAD = '<ir_version: 10, opset_import: ["" : 21]>'


def eights(*shape: int) -> str:
    """Return integers of 8 bits for a constant of this shape."""
    return ",".join(str(n * 37 % 127 - 63) for n in range(math.prod(shape)))


NETWORK = f"""{HEAD}
g (float[2,3,10,10] image, float[N,40,16] words, float8e4m3fn[N,16] small)
 => (float[2,16,8,8] c, float[N,40,40] scores, float[N,40,24] d, float[N,8] e)
<float s = {{0.02}}, uint8 z = {{3}}, int8[16,3,3,3] w1 = {{{eights(16, 3, 3, 3)}}},
 int8[16,16,3,3] w2 = {{{eights(16, 16, 3, 3)}}}, float[16] b = {{{",".join(["0.5"] * 16)}}},
 int8[16,24] w3 = {{{eights(16, 24)}}}, float8e4m3fn[16,8] w4 = {{{",".join(str(n % 100) for n in range(128))}}}> {{
  iq = QuantizeLinear (image, s, z)
  id = DequantizeLinear (iq, s, z)
  k1 = DequantizeLinear (w1, s)
  [stem] c1 = Conv (id, k1, b)
  c1q = QuantizeLinear (c1, s, z)
  c1d = DequantizeLinear (c1q, s, z)
  k2 = DequantizeLinear (w2, s)
  [block] c = Conv <pads = [1,1,1,1]> (c1d, k2, b)
  wq = QuantizeLinear (words, s, z)
  wd = DequantizeLinear (wq, s, z)
  t = Transpose <perm = [0,2,1]> (wd)
  [scored] scores = MatMul (wd, t)
  k3 = DequantizeLinear (w3, s)
  [dense] d = MatMul (wd, k3)
  sd = DequantizeLinear (small, s)
  k4 = DequantizeLinear (w4, s)
  [float8] e = MatMul (sd, k4)
}}"""

SENTENCE = (
    "quantized: 4 of 5 products and convolutions in 8 bits; 1 stays floating-point: MatMul scored (both factors are "
    "computed)"
)

W = f"<int8[16,16] w = {{{eights(16, 16)}}}, float s = {{0.1}}> {{ b = DequantizeLinear (w, s)"

F = f"<int8[16,16,1,1] w = {{{eights(16, 16)}}}, float s = {{0.1}}> {{ b = DequantizeLinear (w, s)"

STAYING = {
    "a scale for each channel of the activations": (
        f"g (int8[N,16] x, float[16] t) => (float[N,16] y) {W} a = DequantizeLinear <axis = 1> (x, t) "
        "y = MatMul (a, b) }",
        "quantized_product", "size(sx) is 16", True,
    ),
    "16 bits": (
        f"g (int16[N,16] x) => (float[N,16] y) {W} a = DequantizeLinear (x, s) y = MatMul (a, b) }}",
        "quantized_product", "dtype(x) is int16", True,
    ),
    "a weight with a zero point": (
        f"g (uint8[N,16] x) => (float[N,16] y) <uint8[16,16] w = {{{','.join(str(n % 251) for n in range(256))}}}, "
        "float s = {0.1}, uint8 z = {7}> "
        "{ a = DequantizeLinear (x, s) b = DequantizeLinear (w, s, z) y = MatMul (a, b) }",
        "quantized_product", "its weight has a zero point", True,
    ),
    "a weight that is not quantized": (
        "g (int8[N,16] x, float[16,16] w) => (float[N,16] y) <float s = {0.1}> "
        "{ a = DequantizeLinear (x, s) y = MatMul (a, w) }",
        "quantized_product", "reads 'w', an input of the graph, where the rule wants a DequantizeLinear", False,
    ),
    "groups": (
        f"g (int8[1,64,4,4] x) => (float[1,4,4,4] y) <int8[4,32,1,1] w = {{{eights(4, 32, 1, 1)}}}, "
        "float s = {0.1}> { a = DequantizeLinear (x, s) b = DequantizeLinear (w, s) "
        "y = Conv <group = 2> (a, b) }",
        "quantized_conv", "value(groups) is 2 and dim(w, 2) * dim(w, 3) is 1 and dim(w, 1) is 32", True,
    ),
    "an operator that no rule knows": (
        f"g (int8[1,16,4,4] x) => (float[1,16,4,4] y) {F} a = DequantizeLinear (x, s) y = ConvTranspose (a, b) }}",
        "", "no rule makes a product of integers of it", True,
    ),
    "integers of few channels": (
        "g (int8[1,3,4,4] x) => (float[1,8,4,4] y) <int8[8,3,1,1] w = "
        f"{{{eights(8, 3, 1, 1)}}}> {{ [y] m = ConvInteger (x, w) y = Cast <to = 1> (m) }}",
        "float_integers", "rule float_integers computes it with floating-point numbers", False,
    ),
}  # fmt: skip


def lines(explained: Explained) -> list[str]:
    """Return the lines of the screen of a whole model, without its tables."""
    return [block.text for block in explained.screen() if isinstance(block, Line)]


def test_the_sentence() -> None:
    """What became integers is counted, what did not is named with the reason."""
    found = explain(parse(NETWORK))
    assert str(found.quantized) == SENTENCE
    assert SENTENCE in lines(found)
    facts = found.as_dict()["quantized"]
    assert [(k["node"], k["rule"]) for k in facts["kernels"]] == [
        ("Conv stem", "direct"), ("Conv block", "conv_integer"), ("MatMul dense", "matmul_integer"),
        ("MatMul float8", "float8_product"),
    ]  # fmt: skip
    assert found.optimized is not None
    assert {k["op"] for k in facts["kernels"]} < {node.op_type for node in found.optimized.graph.node}
    assert [(f["node"], f["rule"], f["dequantizes_once"]) for f in facts["floating_point"]] == [
        ("MatMul scored", "quantized_product", False),
    ]  # fmt: skip
    assert facts["library"] == facts["gone"] == []


def test_one_node() -> None:
    """Asked about a node, explain says of that one why it stays floating-point."""
    found = explain(parse(NETWORK), at=("scored", "dense"))
    assert "stays floating-point: both factors are computed" in found.at("scored")[0]
    assert not any("floating-point" in event for event in found.at("dense")[0])


@pytest.mark.parametrize("name", STAYING)
def test_the_reason(name: str) -> None:
    text, rule, reason, once = STAYING[name]
    found = explain(parse(f"{HEAD} {text}")).quantized
    assert found is not None
    (product,) = found.floating_point
    assert (product.rule, product.reason, product.dequantizes_once) == (rule, reason, once)
    assert not found.kernels
    assert not found.library
    assert str(found).startswith("quantized: 0 of 1 product or convolution in 8 bits; 1 stays floating-point: ")


def test_integers_that_no_kernel_multiplies() -> None:
    """Products that ONNX Runtime multiplies are in 8 bits, too, and say why it does."""
    text = f"{HEAD} g (uint8[2,16] x, uint8[16,8] w) => (int32[2,8] y) {{ y = MatMulInteger (x, w) }}"
    assert str(explain(parse(text)).quantized) == (
        "quantized: 1 of 1 product or convolution in 8 bits; 1 of them by ONNX Runtime: MatMulInteger y ('w' is not a "
        "constant)"
    )


def test_rules_that_are_not_chosen() -> None:
    """Without the rule that would make integers of it, a product stays floating-point, and no rule has refused it."""
    found = explain(parse(NETWORK), Options(skip=("quantized_product",))).quantized
    assert found is not None
    assert {p.node: p.reason for p in found.floating_point}["MatMul dense"] == (
        "no rule makes a product of integers of it"
    )


def test_the_rule_that_got_furthest() -> None:
    """Of two rules that refuse a product, the one that matched more of it gives the reason, whichever came last."""
    text = f"{HEAD} g (int16[N,16] x) => (float[N,16] y) {W} a = DequantizeLinear (x, s) y = MatMul (a, b) }}"
    graph = graph_of(parse(text))
    far = Near("quantized_product", "MatMul y", Refusal("y", Cause("type", seen="far"), depth=3, size=3))
    near = Near("quantized_conv", "MatMul y", Refusal("y", Cause("type", seen="near"), depth=1, size=3))
    for stopped in ([far, near], [near, far]):
        report = OptimizeReport(stopped=stopped)
        products.record(graph, report, {"y": "MatMul y"})
        products.explain(graph, report, shipped())
        assert report.products["y"].rule == far.rule


def test_a_floating_point_model_has_no_sentence() -> None:
    found = explain(parse(f"{HEAD} g (float[N,16] x, float[16,16] w) => (float[N,16] y) {{ y = MatMul (x, w) }}"))
    assert not str(found.quantized)
    assert not any("quantized" in line for line in lines(found))


def test_fused_ops_of_the_file_are_not_counted() -> None:
    """They hold products of the original: of a file with some, the sentence would be of the rest alone."""
    optimized = explain(parse(NETWORK)).optimized
    assert optimized is not None
    found = explain(optimized)
    assert found.quantized is None
    assert "quantized" not in found.as_dict()


WHOLE = {
    "QDQ": lambda text: static(text, "QDQ", "QUInt8", "QInt8", per_channel=True),
    "QOperator": lambda text: static(text, "QOperator", "QInt8", "QInt8", per_channel=False),
    "dynamic": lambda text: dynamic(text, "QInt8", per_channel=False),
    "dynamic, saved": lambda text: saved_by_ort(dynamic(text, "QInt8", per_channel=False)),
}


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("form", WHOLE)
@pytest.mark.parametrize("text", [IMAGES, TOKENS], ids=["images", "tokens"])
def test_no_product_is_lost(text: str, form: str, named: bool) -> None:
    """Whatever forms a product passes through, it is found again, also where the file's nodes have no names: all four
    of the images and both of the tokens; as many in fused ops as have products of integers."""
    model: onnx.ModelProto = WHOLE[form](text)
    for node in model.graph.node:
        node.name = node.name if named else ""
    explained = explain(model)
    found = explained.quantized
    assert found is not None
    assert len(found.kernels) + len(found.library) + len(found.floating_point) == (4 if text == IMAGES else 2)
    assert not found.gone
    assert explained.optimized is not None
    assert len(found.kernels) == sum(op.startswith("{") and "Integer" in op for op in ops(explained.optimized))
    assert len(found.kernels) == (3 if text == IMAGES else 2)
