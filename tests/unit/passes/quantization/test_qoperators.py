"""Operators on quantized values become QuantizeLinear of the operator of DequantizeLinears."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests.support.small import assert_same_numbers, ops, optimize, parse, run

HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
SCALES = """float s = {0.02}, uint8 z = {100}, float t = {0.03}, uint8 u = {120}, float r = {0.05}, uint8 v = {110},
 uint8[4,4] w = {1,20,30,41,50,160,70,80,9,100,210,120,130,14,150,160},
 int32[4] b = {10,-20,30,400}, bool[4] c = {1,0,0,1}"""
CASES = {
    "y = QLinearMatMul (x, s, z, w, t, u, r, v)": "MatMul",
    "y = com.microsoft.QGemm (x, s, z, w, t, u, b, r, v)": "Gemm",
    "y = com.microsoft.QGemm <transB = 1> (x, s, z, w, t, u, b, r, v)": "Gemm",
    "y = com.microsoft.QGemm <alpha = 0.5> (x, s, z, w, t, u, b, r, v)": "Gemm",
    "y = com.microsoft.QLinearAdd (x, s, z, w, t, u, r, v)": "Add",
    "y = com.microsoft.QLinearMul (x, s, z, w, t, u, r, v)": "Mul",
    "y = com.microsoft.QLinearSigmoid (x, s, z, r, v)": "Sigmoid",
    "y = com.microsoft.QLinearLeakyRelu <alpha = 0.3> (x, s, z, r, v)": "LeakyRelu",
    "y = com.microsoft.QLinearSoftmax <axis = -1, opset = 17> (x, s, z, r, v)": "Softmax",
    "y = com.microsoft.QLinearConcat <axis = 0> (r, v, x, s, z, w, t, u)": "Concat",
    "y = com.microsoft.QLinearWhere (c, x, s, z, w, t, u, r, v)": "Where",
}


@pytest.mark.parametrize("node", CASES)
def test_qdq_form(node: str) -> None:
    """ONNX Runtime gives at most one step more or less: its kernels round some products of scales otherwise."""
    model = parse(f"{HEAD} g (uint8[4,4] x) => (uint8[M,4] y) <{SCALES}> {{ {node} }}")
    made, _ = optimize(model, "softmax")
    found = " ".join(ops(made)).replace("{", "").replace("}", "").split()
    assert CASES[node] in found
    assert found[-1] == "QuantizeLinear"
    x = np.random.default_rng(0).integers(0, 256, (4, 4)).astype(np.uint8)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    before, after = (
        ort.InferenceSession(m.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for m in (model, made)
    )
    assert np.abs(before.astype(int) - after).max() <= 1


@pytest.mark.parametrize("zero", ["int8[3] u = {0,0,0}", "int8 u = {5}"])
def test_convolution_with_scales_of_each_filter(zero: str) -> None:
    weights = ",".join(str(n * 7 % 127 - 63) for n in range(3 * 2 * 9))
    model = parse(
        f"""{HEAD} g (uint8[N,2,5,5] x) => (uint8[N,3,5,5] y)
<float s = {{0.02}}, uint8 z = {{100}}, int8[3,2,3,3] w = {{{weights}}}, float[3] t = {{0.01,0.02,0.03}},
 {zero}, float r = {{0.5}}, uint8 v = {{110}}, int32[3] b = {{100,-200,300}}> {{
  y = QLinearConv <pads = [1,1,1,1]> (x, s, z, w, t, u, r, v, b)
}}"""
    )
    made, _ = optimize(model, "softmax")
    assert "Conv" in ops(made)
    assert ops(made)[-1] == "QuantizeLinear"
    x = np.random.default_rng(0).integers(0, 256, (2, 2, 5, 5)).astype(np.uint8)
    before, after = (
        ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for m in (model, made)
    )
    assert np.abs(before.astype(int) - after).max() <= 1


CHANNELS = """float s = {0.02}, uint8 z = {100}, int8[4,4] w = {1,20,-30,41,50,-60,70,80,9,100,-110,120,13,14,-15,16},
 float[4] t = {0.01,0.02,0.03,0.04}, float r = {0.05}, uint8 v = {110}, int32[4] b = {100,-200,300,40}"""


@pytest.mark.parametrize(
    "node",
    [
        "y = QLinearMatMul (x, s, z, w, t, u, r, v)",
        "y = com.microsoft.QGemm (x, s, z, w, t, u, b, r, v)",
        "y = com.microsoft.QGemm <alpha = 0.5, transB = 1> (x, s, z, w, t, u, , r, v)",
    ],
)
@pytest.mark.parametrize("zero", ["int8[4] u = {0,0,0,0}", "int8[4] u = {5,5,5,5}"])
@pytest.mark.parametrize("opset", [10, 12, 13])
def test_scales_of_channels(opset: int, zero: str, node: str) -> None:
    """Before DequantizeLinear has scales of channels, they are multiplied behind the product; a Gemm of opset 10 has a
    bias."""
    domains = f'<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
    model = parse(f"{domains} g (uint8[4,4] x) => (uint8[M,4] y) <{CHANNELS}, {zero}> {{ {node} }}")
    made, _ = optimize(model, "softmax")
    onnx.checker.check_model(made)
    assert not any(op.startswith("Q") and op != "QuantizeLinear" for op in ops(made))
    assert ("Mul" in ops(made)) == (opset < 13)
    x = np.random.default_rng(0).integers(0, 256, (4, 4)).astype(np.uint8)
    (before,), (after,) = run(model, {"x": x}), run(made, {"x": x})
    assert np.abs(before.astype(int) - after).max() <= 1


def test_zero_points_that_differ_stay_where_there_is_no_axis() -> None:
    domains = '<ir_version: 8, opset_import: ["" : 12, "com.microsoft" : 1]>'
    node = "y = QLinearMatMul (x, s, z, w, t, u, r, v)"
    zero = "int8[4] u = {0,1,0,2}"
    model = parse(f"{domains} g (uint8[4,4] x) => (uint8[M,4] y) <{CHANNELS}, {zero}> {{ {node} }}")
    made, _ = optimize(model, "softmax")
    assert ops(made) == ["QLinearMatMul"]


@pytest.mark.parametrize("node", ["QLinearAveragePool", "QLinearGlobalAveragePool"])
def test_channels_last_pools_stay(node: str) -> None:
    size = "kernel_shape = [2,2], " if node == "QLinearAveragePool" else ""
    model = parse(
        f"""{HEAD} g (uint8[N,4,4,2] x) => (uint8[N,H,W,2] y) <float s = {{0.02}}, uint8 z = {{100}}> {{
  y = com.microsoft.{node} <{size}channels_last = 1> (x, s, z, s, z)
}}"""
    )
    made, _ = optimize(model, "softmax")
    assert ops(made) == [f"com.microsoft.{node}"] or ops(made) == [node]


def test_scales_of_16_bits() -> None:
    model = parse(
        """<ir_version: 10, opset_import: ["" : 21]>
g (uint8[2,4] x) => (uint8[2,2] y)
<float16 s = {1}, uint8 z = {3}, uint8[4,2] w = {100,150,1,2,3,4,5,6}, float16 r = {40}> {
  y = QLinearMatMul (x, s, z, w, s, z, r, z)
}"""
    )
    made, _ = optimize(model, "softmax")
    assert ops(made)[-1].strip("{}") == "QuantizeLinear"
    assert_same_numbers(model, made)


def test_scales_of_rows_stay() -> None:
    model = parse(
        """g (uint8[2,4] x) => (uint8[2,2] y)
<float[2] s = {0.5,1}, uint8[2] z = {3,3}, uint8[4,2] w = {1,2,3,4,5,6,7,8}, float t = {0.5}, uint8 u = {2}> {
  y = QLinearMatMul (x, s, z, w, t, u, t, u)
}"""
    )
    made, _ = optimize(model, "softmax")
    assert ops(made) == ["QLinearMatMul"]
