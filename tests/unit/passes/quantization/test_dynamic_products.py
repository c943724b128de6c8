"""ONNX Runtime's operators of dynamic quantization become their standard parts, and fuse as these."""

import itertools

import numpy as np
import onnx
import pytest

from tests.support.quantized_models import TOKENS, drawn, dynamic, saved_by_ort
from tests.support.small import NO_RULE, evaluate, ops, optimize, parse, run

HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
W = ",".join(str(n * 37 % 127 - 63) for n in range(16 * 8))
WEIGHT = f"""int8[16,8] w = {{{W}}}, float[8] sw = {{0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8}},
 int8[8] zw = {{1,-2,3,0,4,5,-6,7}}, float[8] b = {{1,-2,3,-4,5,-6,7,-8}}"""
OPTIONAL = [*itertools.product(("", "zw"), ("", "b"))]
"""The weight's zero point and the bias, or none."""


def before_and_after(model: onnx.ModelProto, x: np.ndarray) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return the operators of a model after the passes alone, and the results of the original and the optimized one."""
    (before,) = run(model, {"x": x})
    made, _ = optimize(model, NO_RULE)
    (after,) = run(made, {"x": x})
    (fused,) = run(optimize(model)[0], {"x": x})
    np.testing.assert_allclose(fused, before, rtol=0, atol=2e-6 * np.abs(before).max())
    return ops(made), before, after


@pytest.mark.parametrize(("zero", "bias"), OPTIONAL)
def test_dynamic_quantize_matmul(zero: str, bias: str) -> None:
    reads = f"x, w, sw, {zero}, {bias}".rstrip(", ")
    model = parse(
        f"{HEAD} g (float[N,16] x) => (float[N,8] y) <{WEIGHT}> {{ y = com.microsoft.DynamicQuantizeMatMul ({reads}) }}"
    )
    x = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)
    left, before, after = before_and_after(model, x)
    assert left == ["DynamicQuantizeLinear", "MatMulInteger", "Cast", "Mul", "Mul", *["Add"][: bool(bias)]]
    np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("offset", ["", "zx"])
@pytest.mark.parametrize(("zero", "bias"), OPTIONAL)
def test_matmul_integer_to_float(offset: str, zero: str, bias: str) -> None:
    reads = f"x, w, sx, sw, {offset}, {zero}, {bias}".rstrip(", ")
    model = parse(
        f"""{HEAD} g (uint8[N,16] x) => (float[N,8] y) <{WEIGHT}, float sx = {{0.02}}, uint8 zx = {{100}}> {{
  y = com.microsoft.MatMulIntegerToFloat ({reads})
}}"""
    )
    x = np.random.default_rng(0).integers(0, 256, (5, 16)).astype(np.uint8)
    left, before, after = before_and_after(model, x)
    assert left == ["MatMulInteger", "Cast", "Mul", *["Add"][: bool(bias)]]
    np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-6)


def test_products_of_the_same_activations_quantize_them_once() -> None:
    """And what two of them multiply alike is multiplied once."""
    model = parse(
        f"""{HEAD} g (float[N,16] x) => (float[N,8] y) <{WEIGHT}> {{
  q, s, z = DynamicQuantizeLinear (x)
  a = com.microsoft.DynamicQuantizeMatMul (x, w, sw)
  c = com.microsoft.DynamicQuantizeMatMul (x, w, sw, zw, b)
  d = com.microsoft.MatMulIntegerToFloat (q, w, s, sw, z, zw)
  e = Add (a, c)
  y = Add (e, d)
}}"""
    )
    x = np.random.default_rng(0).standard_normal((5, 16)).astype(np.float32)
    left, before, after = before_and_after(model, x)
    assert left.count("DynamicQuantizeLinear") == 1
    assert left.count("MatMulInteger") == 2
    np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-5)


def test_scales_of_16_bits_are_multiplied_in_32() -> None:
    """Sums of 16 products of 8 bits exceed what float16 holds. ONNX Runtime's CPU provider has no such kernel."""
    model = parse(
        f"""{HEAD} g (uint8[N,16] x) => (float16[N,8] y) <int8[16,8] w = {{{W}}}> {{
  y = com.microsoft.MatMulIntegerToFloat (x, w, sx, sw, , , b)
}}"""
    )
    sx, sw, b = (np.asarray(a, np.float16) for a in (0.0005, 0.002, range(-4, 4)))
    for name, array in {"sx": sx, "sw": sw, "b": b}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    made, _ = optimize(model)
    assert "MatMulIntegerToFloat" not in ops(made)
    x = np.full((2, 16), 255, np.uint8)
    (after,) = evaluate(made, {"x": x})
    w = onnx.numpy_helper.to_array(model.graph.initializer[0]).astype(np.float64)
    wanted = x @ w * sx.astype(np.float64) * sw + b
    assert after.dtype == np.float16
    np.testing.assert_allclose(after, wanted, rtol=2**-11)


@pytest.mark.parametrize("form", ["a scale for each row", "a weight of unknown rank"])
def test_what_is_left_to_onnx_runtime(form: str) -> None:
    rows = form == "a scale for each row"
    model = parse(
        f"""{HEAD} g (uint8[5,16] x, int8[16,8] w, float{"[5]" if rows else ""} sx, int64[R] s) => (float[5,8] y)
<float sw = {{0.5}}> {{
  v = {"Identity (w)" if rows else "Reshape (w, s)"}
  y = com.microsoft.MatMulIntegerToFloat (x, v, sx, sw)
}}"""
    )
    assert ops(optimize(model)[0])[-1] == "MatMulIntegerToFloat"


@pytest.mark.parametrize("per_channel", [True, False])
def test_files_saved_by_onnx_runtime_fuse_as_those_of_its_tool(per_channel: bool) -> None:
    """Both products in kernels, none of their activations quantized on the CPU."""
    written = dynamic(TOKENS, "QInt8", per_channel=per_channel)
    saved = saved_by_ort(written)
    assert ops(saved).count("DynamicQuantizeMatMul") == 2
    made, _ = optimize(saved)
    found = ops(made)
    assert sum("MatMulInteger" in op for op in found if op.startswith("{")) == 2
    assert not {"DynamicQuantizeMatMul", "DynamicQuantizeLinear", "MatMulInteger"} & {*found}
    (before,) = run(written, {"x": drawn(TOKENS, 9)})
    (after,) = run(made, {"x": drawn(TOKENS, 9)})
    np.testing.assert_allclose(after, before, rtol=0, atol=2e-6 * np.abs(before).max())
