"""Sums of products of float8 numbers lose what tensor cores cut off, and what verify allows for it is no more."""

import ml_dtypes
import numpy as np
import pytest
from onnx import numpy_helper

from onnxfuse.cuda.isa.factors import E4M3
from onnxfuse.cuda.isa.sm_90 import SM_90A
from onnxfuse.verification.reference.float8_sums import float8_products, kept_sums
from onnxfuse.verification.reference.float64_reference import as_tf32
from onnxfuse.verification.reference.reference import to_tf32
from tests.support.small import parse
from tests.unit.passes.quantization.test_modelopt import TERMS, layer

CPU = ["CPUExecutionProvider"]
EIGHT = ml_dtypes.float8_e4m3fn


def drawn(rows: int, terms: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers of float8, as float64."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s) * 60 for s in ((rows, terms), (terms, columns)))
    a, b = (np.clip(x, -448, 448).astype(EIGHT).astype(np.float64) for x in (a, b))
    return a, b


def one_by_one(a: np.ndarray, b: np.ndarray) -> float:
    """Return one sum in Python's integers: of 32 terms in units of the last of 14 bits, four times, then in float64."""
    instruction = SM_90A.wgmma(E4M3)
    assert instruction is not None
    assert (instruction.k, instruction.sum_bits, E4M3.promoted_after) == (32, 14, 128)
    total = 0.0
    for step in range(0, len(a), 128):
        kept = 0.0
        for first in range(step, min(step + 128, len(a)), 32):
            terms = [kept, *(a[first : first + 32] * b[first : first + 32])]
            unit = 2.0 ** (int(np.floor(np.log2(max(map(abs, terms))))) - 13)
            kept = sum(int(t / unit) for t in terms) * unit
            unit = 2.0 ** (int(np.floor(np.log2(abs(kept)))) - 13)
            kept = int(kept / unit) * unit
        total += kept
    return total


@pytest.mark.parametrize("terms", [5, 32, 100, 128, 400])
def test_terms_are_cut_off_behind_fourteen_bits(terms: int) -> None:
    a, b = drawn(3, terms, 4)
    sums = kept_sums(a, b)
    assert [[one_by_one(a[i], b[:, j]) for j in range(4)] for i in range(3)] == sums.tolist()
    assert (sums != a @ b).any()


def test_no_term_is_lost_within_fourteen_bits() -> None:
    """Sums of few equal numbers are exact, zeros are zeros, and no number stays none."""
    a = np.array([[1.0, 1.0, -2.0, 0.0], [0.0, 0.0, 0.0, 0.0], [np.nan, 1.0, 1.0, 1.0]])
    sums = kept_sums(a, np.ones((4, 1)))
    assert sums[:2].tolist() == [[0.0], [0.0]]
    assert np.isnan(sums[2, 0])
    far = kept_sums(np.array([[448.0, 2.0**-9]]), np.array([[448.0], [2.0**-9]]))
    assert far.item() == 448.0**2


FORMS = {
    "a = DequantizeLinear (x, one) b = Cast <to = 1> (w) y = MatMul (a, b)": (1.0, [1.0], False),
    "a = DequantizeLinear (x, half) b = DequantizeLinear (w, half) y = Gemm <alpha = 3.0> (a, b)": (0.5, [0.5], False),
    "a = DequantizeLinear (x, half) b = DequantizeLinear <axis = 0> (v, each) y = Gemm <transB = 1> (a, b)": (
        0.5, [1.0, 2.0], True,
    ),
    "a = DequantizeLinear (x, half) c = DequantizeLinear <axis = 0> (v, each) b = Transpose (c) y = MatMul (a, b)": (
        0.5, [1.0, 2.0], False,
    ),
    "a = DequantizeLinear (x, half) c = Cast <to = 1> (v) b = Transpose <perm = [1, 0]> (c) y = MatMul (a, b)": (
        0.5, [1.0], False,
    ),
}  # fmt: skip
HEAD = """g (float8e4m3fn[N,4] x, float[N,4] r) => (float[N,2] y)
<float8e4m3fn[4,2] w = {56,57,58,59,60,61,62,63}, float8e4m3fn[2,4] v = {56,57,58,59,60,61,62,63},
 float8e4m3fn[4,4] s = {56,57,58,59,60,61,62,63,56,57,58,59,60,61,62,63}, float one = {1}, float half = {0.5},
 float[2] each = {1, 2}, float[4] rows = {1, 2, 3, 4}>"""


@pytest.mark.parametrize("form", FORMS)
def test_products_and_their_scales_are_found(form: str) -> None:
    product = float8_products(parse(f"{HEAD} {{ {form} }}", 21))["y"]
    assert (product.left.item(), product.right.tolist(), product.transposed) == FORMS[form]
    assert product.alpha == (3.0 if "alpha" in form else 1.0)


@pytest.mark.parametrize(
    "form",
    [
        "b = DequantizeLinear (w, half) y = MatMul (r, b)",
        "a = DequantizeLinear <axis = 1> (x, rows) b = DequantizeLinear (w, half) y = MatMul (a, b)",
        "a = DequantizeLinear (x, half) b = DequantizeLinear <axis = 0> (s, rows) y = MatMul (a, b)",
        "c = DequantizeLinear (x, half) a = Relu (c) b = DequantizeLinear (w, half) y = MatMul (a, b)",
    ],
)
def test_other_products_are_none(form: str) -> None:
    """One factor is float, has a scale for each term (of a square weight, too), or is computed from float8 numbers."""
    assert not float8_products(parse(f"{HEAD} {{ {form} }}", 21))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("gemm", [False, True])
def test_a_layer_is_off_by_what_its_sums_lose(dtype: type[np.floating], gemm: bool) -> None:
    model = layer(dtype, float8=True, stored=True, gemm=gemm)
    del model.graph.node[-1]
    model.graph.output[0].name = "sum"
    constants = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer}
    x = np.random.default_rng(1).standard_normal((33, TERMS)) * 2
    numbers = np.clip(x / constants["sx"], -448, 448).astype(EIGHT).astype(np.float64)
    w = constants["w"].T if gemm else constants["w"]
    lost = (kept_sums(numbers, w) - numbers @ w) * constants["sx"] * constants["sw"]
    evaluate = as_tf32(model)
    (y,) = evaluate({"x": x}).values()
    rounded = [to_tf32(f) for f in (numbers * constants["sx"], w * constants["sw"])]
    assert np.abs(lost).max() > 1e-5
    np.testing.assert_allclose(y, rounded[0] @ rounded[1] + constants["b"] + lost, rtol=0, atol=1e-12)
