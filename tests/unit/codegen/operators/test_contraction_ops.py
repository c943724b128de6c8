"""Products in the body language: which axes are contracted, in which type sums are taken, and what is refused."""

from typing import Any

import pytest
from onnx import TensorProto

from bench.cases import ops
from onnxfuse.codegen.operators import read
from onnxfuse.codegen.operators.contraction_ops import CONTRACTION, accumulator
from onnxfuse.codegen.program.program import Apply, Contraction
from onnxfuse.symbolic.element_types import UnsupportedError

FLOAT, HALF, BF16, DOUBLE = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE
INT8, UINT8, INT32 = TensorProto.INT8, TensorProto.UINT8, TensorProto.INT32


def values(text: str, *types: int, to: int = FLOAT) -> list[Any]:
    """Return the values of a body's program, the inputs left out."""
    return list(read.program(ops.op(text, types, (to,))).values)


def product(text: str, *types: int, to: int = FLOAT) -> Contraction:
    """Return the only contraction of a body."""
    (found,) = (v for v in values(text, *types, to=to) if isinstance(v, Contraction))
    return found


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("(x, w) => (y) { y = MatMul (x, w) }", (-1, -2)),
        ("(x, w) => (y) { y = Gemm (x, w) }", (-1, -2)),
        ("(x, w) => (y) { y = Gemm <transA = 1> (x, w) }", (-2, -2)),
        ("(x, w) => (y) { y = Gemm <transB = 1> (x, w) }", (-1, -1)),
        ("(x, w) => (y) { y = Gemm <transA = 1, transB = 1> (x, w) }", (-2, -1)),
    ],
)
def test_the_contracted_axes_are_those_that_the_node_says(text: str, axes: tuple[int, int]) -> None:
    found = product(text, FLOAT, FLOAT)
    assert (found.axes, found.groups) == (axes, 1)


@pytest.mark.parametrize(("dtype", "sums"), [(HALF, FLOAT), (BF16, FLOAT), (FLOAT, FLOAT), (DOUBLE, DOUBLE)])
def test_sums_are_taken_in_float32_or_wider(dtype: int, sums: int) -> None:
    """And the result has the type of the factors."""
    found = product("(x, w) => (y) { y = MatMul (x, w) }", dtype, dtype, to=dtype)
    assert (found.accumulator, found.dtype, accumulator(dtype)) == (sums, dtype, sums)


def test_a_gemm_scales_and_adds_in_float32_and_rounds_once() -> None:
    """With neither scale nor bias it is the product itself; a bias that is scaled by 0 is none."""
    plain = "(x, w) => (y) { y = Gemm (x, w) }"
    assert not [v for v in values(plain, HALF, HALF, to=HALF) if isinstance(v, Apply)]
    scaled = "(x, w, b) => (y) { y = Gemm <alpha = 0.5, beta = 2.0> (x, w, b) }"
    applied = [v for v in values(scaled, HALF, HALF, HALF, to=HALF) if isinstance(v, Apply)]
    assert applied[-1].dtype == HALF
    assert {v.dtype for v in applied[:-1]} == {FLOAT}
    none = "(x, w, b) => (y) { y = Gemm <beta = 0.0> (x, w, b) }"
    assert len([v for v in values(none, HALF, HALF, HALF, to=HALF) if isinstance(v, Apply)]) < len(applied)


def test_products_of_integers_are_exact() -> None:
    """In int32; a zero point that is 0 is none."""
    text = "(x, w) => (y) { z = Constant <value = uint8 {0}> () y = MatMulInteger (x, w, z) }"
    found = product(text, UINT8, INT8, to=INT32)
    assert (found.accumulator, found.dtype, found.axes) == (INT32, INT32, (-1, -2))


@pytest.mark.parametrize(
    ("text", "types", "told"),
    [
        ("(x, w) => (y) { y = MatMul (x, w) }", (HALF, FLOAT), "products of FLOAT and FLOAT16"),
        ("(x, w) => (y) { z = Constant <value = uint8 {7}> () y = MatMulInteger (x, w, z) }", (UINT8, INT8),
         "with a zero point other than 0"),
    ],
)  # fmt: skip
def test_what_no_kernel_multiplies_is_refused(text: str, types: tuple[int, ...], told: str) -> None:
    with pytest.raises(UnsupportedError, match=told):
        values(text, *types)


def test_every_product_of_the_registry_that_kernels_compute_is_here() -> None:
    """Under its domain; others are matched by rules or left to the library."""
    assert {op for domain, op in CONTRACTION if not domain} >= {"MatMul", "Gemm", "MatMulInteger"}
    assert ("com.microsoft", "MatMulNBits") in CONTRACTION
