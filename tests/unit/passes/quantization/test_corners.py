"""Corners of quantized products and convolutions: the integers of ONNX Runtime, in 8 bits where a kernel can.

Integers are the same in 99.9% of the elements, and never more than one step apart. By scales whose products put no sum
half-way between two steps: there the file's rounded sum and the exact one differ often.
"""

import numpy as np
import onnx
import pytest

from tests.support.small import ops, optimize, parse, run

TERMS, COLUMNS = 16, 8
WEIGHTS = ",".join(str(n * 37 % 127 - 63) for n in range(TERMS * COLUMNS))
"""Of 7 bits: sums of products do not saturate on processors without VNNI."""
SCALES = ",".join(f"0.01{n + 1}" for n in range(COLUMNS))
HEAD = "float s = {0.05}, int8 z = {3}, float t = {0.5}, int8 u = {-4}, float[8] b = {1,-2,3,-4,5,-6,7,-8}"
IN, OUT = "q = QuantizeLinear (x, s, z)  d = DequantizeLinear (q, s, z)", "o = QuantizeLinear (p, t, u)"


def numbers(model: onnx.ModelProto, made: onnx.ModelProto, scale: float = 4.0) -> np.ndarray:
    """Return what ONNX Runtime gives for a model, after the comparison with the optimized one."""
    shape = [d.dim_value or 33 for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = (np.random.default_rng(0).standard_normal(shape) * scale).astype(np.float32)
    (before,), (after,) = run(model, {"x": x}), run(made, {"x": x})
    difference = np.abs(before.astype(int) - after.astype(int))
    assert difference.max() <= 1
    assert (difference > 0).mean() <= 0.001
    return before


SEVERAL = f"float[8] r = {{{SCALES}}}"
EACH = "p = MatMul (d, e)"
PRODUCTS = {
    "one scale, no zero point": ("float r = {0.0193}", f"e = DequantizeLinear (w, r) {EACH}"),
    "vectors of one element": (
        "float[1] r = {0.0193}, int8[1] none = {0}", f"e = DequantizeLinear (w, r, none) {EACH}"
    ),
    "negative scale": ("float r = {-0.0193}", f"e = DequantizeLinear (w, r) {EACH}"),
    "scales of columns, negative axis": (SEVERAL, f"e = DequantizeLinear <axis = -1> (w, r) {EACH}"),
    "scales of columns, no axis": (SEVERAL, f"e = DequantizeLinear (w, r) {EACH}"),
    "scales of both signs": (SEVERAL.replace("0.012", "-0.012"), f"e = DequantizeLinear (w, r) {EACH}"),
    "zero points of columns, all 0": (
        f"{SEVERAL}, int8[8] none = {{0,0,0,0,0,0,0,0}}", f"e = DequantizeLinear <axis = 1> (w, r, none) {EACH}"
    ),
    "bias of another scale": (
        "float r = {0.0193}, float c = {0.3}, int32[8] k = {10,-20,30,-40,50,-60,70,-80}",
        "e = DequantizeLinear (w, r)  g = DequantizeLinear (k, c)  m = MatMul (d, e)  p = Add (m, g)",
    ),
    "Gemm": ("float r = {0.0193}", "e = DequantizeLinear (w, r)  p = Gemm (d, e, b)"),
}  # fmt: skip


def product(constants: str, nodes: str) -> onnx.ModelProto:
    """Return a quantized product of `x` and `w`."""
    weight = f"int8[16,8] w = {{{WEIGHTS}}}"
    return parse(f"g (float[M,16] x) => (int8[M,8] o) <{HEAD}, {constants}, {weight}> {{ {IN}  {nodes}  {OUT} }}")


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_in_8_bits(name: str) -> None:
    model = product(*PRODUCTS[name])
    made, _ = optimize(model)
    assert "MatMulInteger" in " ".join(ops(made))
    numbers(model, made)


FLOATING = {
    "zero points of columns that differ": (
        f"{SEVERAL}, int8[8] zeros = {{0,1,2,3,-4,-5,6,7}}", f"e = DequantizeLinear <axis = 1> (w, r, zeros) {EACH}"
    ),
    "Gemm of alpha and beta": (
        "float r = {0.0193}", "e = DequantizeLinear (w, r)  p = Gemm <alpha = 0.5, beta = 2.0> (d, e, b)"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FLOATING)
def test_products_of_numbers(name: str) -> None:
    """What is no product of two scales stays a floating-point product, of a weight that is dequantized once."""
    model = product(*FLOATING[name])
    made, _ = optimize(model)
    assert "MatMulInteger" not in " ".join(ops(made))
    assert not any(t.data_type == onnx.TensorProto.INT8 and len(t.dims) == 2 for t in made.graph.initializer)
    numbers(model, made)


def test_saturation() -> None:
    """Inputs and outputs lie far beyond the range."""
    model = product("float r = {0.1937}", f"e = DequantizeLinear (w, r) {EACH}")
    made, _ = optimize(model)
    assert {-128, 127} <= {*numbers(model, made, scale=1000).flat}


def test_a_weight_that_two_nodes_dequantize() -> None:
    """By scales of their own; both products are of 8 bits."""
    model = product(
        "float r = {0.0193}, float r2 = {0.0307}",
        """e = DequantizeLinear (w, r)  f = DequantizeLinear (w, r2)
        m = MatMul (d, e)  h = Relu (m)  n = MatMul (d, f)  k = Sigmoid (n)  p = Add (h, k)""",
    )
    made, _ = optimize(model)
    assert " ".join(ops(made)).count("MatMulInteger") == 2
    numbers(model, made)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_between_quantized_values(mode: str) -> None:
    """Numbers between two pixels are those of numbers, not of integers rounded twice."""
    model = parse(
        f"""g (float[M,8,5,5] x) => (int8[M,8,10,10] o) <{HEAD}, float[4] twice = {{1,1,2,2}}> {{
  {IN}  p = Resize <mode = "{mode}"> (d, , twice)  {OUT}
}}"""
    )
    made, _ = optimize(model)
    numbers(model, made)
