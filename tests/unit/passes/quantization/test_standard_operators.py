"""QuantizeLinear and DequantizeLinear of other domains become ONNX's own, where the operator set has them."""

import numpy as np
import onnx
import pytest

from tests.support.quantized_models import IMAGES, OLD_TOKENS, drawn, static
from tests.support.small import halved, ops, optimize, parse, run

DOMAINS = '<ir_version: 10, opset_import: ["" : {}, "com.microsoft" : 1, "trt" : 1]>'


def operators(model: onnx.ModelProto) -> set[str]:
    """Return the operators that quantize or dequantize, with their domains."""
    return {f"{n.domain}.{n.op_type}" for n in model.graph.node if "Quantize" in n.op_type or "quantize" in n.op_type}


@pytest.mark.parametrize("opset", [10, 13, 21])
@pytest.mark.parametrize("text", [IMAGES, OLD_TOKENS], ids=["images", "tokens"])
def test_files_of_the_tool(text: str, opset: int) -> None:
    """With `UseQDQContribOps` a file fuses as it does without, and gives the numbers of ONNX Runtime."""
    files = [
        static(
            text, "QDQ", "QUInt8", "QInt8", per_channel=opset >= 13, reduce_range=True, opset=opset,
            UseQDQContribOps=own,
        )
        for own in (True, False)
    ]  # fmt: skip
    assert operators(files[0]) == {"com.microsoft.QuantizeLinear", "com.microsoft.DequantizeLinear"}
    made, plain = (optimize(file)[0] for file in files)
    assert ops(made) == ops(plain)
    inputs = {"x": drawn(text, 9)}
    np.testing.assert_allclose(run(made, inputs)[0], run(files[0], inputs)[0], rtol=0, atol=2e-5)


@pytest.mark.parametrize("types", ["QInt16", "QUInt16"])
def test_activations_of_16_bits(types: str) -> None:
    """The tool raises the operator set to 21; a MaxPool of 16-bit integers there is none."""
    model = static(IMAGES, "QDQ", types, "QInt8", per_channel=True, opset=17, UseQDQContribOps=True)
    made, _ = optimize(model)
    assert not operators(made) & {"com.microsoft.QuantizeLinear", "com.microsoft.DequantizeLinear"}
    inputs = {"x": drawn(IMAGES, 9)}
    np.testing.assert_allclose(run(made, inputs)[0], run(model, inputs)[0], rtol=0, atol=1e-4)


PAIR = """g (float[N,4] x) => (float[N,4] y) <float{size} s = {{{scales}}}, {integer}{size} z = {{{zeros}}}> {{
  q = com.microsoft.QuantizeLinear {axis} (x, s, z)
  y = com.microsoft.DequantizeLinear {axis} (q, s, z)
}}"""
ONE = {"size": "", "scales": "0.25", "zeros": "3", "axis": ""}
SEVERAL = {"size": "[4]", "scales": "0.25,0.5,1,2", "zeros": "3,-3,0,7", "axis": "<axis = 1>"}


@pytest.mark.parametrize(
    ("opset", "number", "integer", "scales", "after"),
    [
        (17, "float", "int8", ONE, "QuantizeLinear DequantizeLinear"),
        (17, "float16", "int8", ONE, "Cast QuantizeLinear DequantizeLinear Cast"),
        (19, "float16", "int8", ONE, "QuantizeLinear DequantizeLinear"),
        (17, "float", "int8", SEVERAL, "QuantizeLinear DequantizeLinear"),
        (12, "float", "int8", SEVERAL, ""),
        (17, "float", "int16", ONE, ""),
        (21, "float", "int16", ONE, "QuantizeLinear DequantizeLinear"),
    ],
)
def test_what_the_operator_set_has(opset: int, number: str, integer: str, scales: dict[str, str], after: str) -> None:
    """Pairs stay whole where ONNX's own operators have not their types or scales; else they give the same numbers."""
    model = parse(DOMAINS.format(opset) + PAIR.format(integer=integer, **scales))
    model = halved(model) if number == "float16" else model
    made, _ = optimize(model, "softmax")
    assert all(n.domain == ("" if after else "com.microsoft") for n in made.graph.node)
    assert [n.op_type for n in made.graph.node] == (after or "QuantizeLinear DequantizeLinear").split()
    dtype = np.float16 if number == "float16" else np.float32
    x = (np.random.default_rng(0).standard_normal((64, 4)) * 20).astype(dtype)
    np.testing.assert_array_equal(run(made, {"x": x})[0], run(model, {"x": x})[0])


TRT = """g (float[N,4] x) => (float[N,4] y) <float s = {0.25}, uint8[N,4] q> {
  q = trt.TRT_FP8QuantizeLinear (x, s)
  y = trt.TRT_FP8DequantizeLinear (q, s)
}"""


@pytest.mark.parametrize("number", ["float", "float16"])
def test_float8_of_tensorrt(number: str) -> None:
    """ONNX Runtime has no such operators; ONNX's own saturate at 448 steps and keep NaN."""
    model = parse(DOMAINS.format(19) + TRT)
    model = halved(model) if number == "float16" else model
    made, _ = optimize(model, "softmax")
    onnx.checker.check_model(made, full_check=True)
    assert [(n.domain, n.op_type) for n in made.graph.node] == [("", "QuantizeLinear"), ("", "DequantizeLinear")]
    dtype = np.float16 if number == "float16" else np.float32
    x = np.array([[0.25, 0.3, -0.27, 1000], [-1000, np.nan, 111.9, 0]], dtype)
    y = np.array([[0.25, 0.3125, -0.28125, 112], [-112, np.nan, 112, 0]], dtype)
    np.testing.assert_array_equal(run(made, {"x": x})[0], y)


def test_float8_of_tensorrt_before_opset_19_stays() -> None:
    model = parse(DOMAINS.format(17) + TRT)
    made, _ = optimize(model, "softmax")
    assert {n.domain for n in made.graph.node} == {"trt"}


def test_float8_of_tensorrt_that_something_else_reads_stays() -> None:
    """Another operator may rely on the type uint8 that the exporter declared."""
    text = TRT.replace("(float[N,4] y)", "(float[N,4] y, uint8[N,4] q)").replace(", uint8[N,4] q>", ">")
    made, _ = optimize(parse(DOMAINS.format(19) + text), "softmax")
    assert {n.domain for n in made.graph.node} == {"trt"}
