"""A body becomes a program, once, with the shapes that ONNX gives it."""

import numpy as np
import pytest

from bench.cases import ops
from bench.cases.ops import FLOAT, HALF
from onnxfuse.codegen.operators import read
from onnxfuse.codegen.program.program import Attend

SHAPED: dict[str, tuple[str, list[tuple[int, ...]]]] = {
    "matrices": ("(x, w) => (y) { y = MatMul(x, w) }", [(3, 1, 4, 5), (2, 5, 6)]),
    "both factors turned": ("(x, w) => (y) { y = Gemm <transA = 1, transB = 1> (x, w) }", [(5, 4), (6, 5)]),
    "Gemm with all it has": (
        "(x, w, b) => (y) { y = Gemm <alpha = 0.5, beta = 2.0> (x, w, b) }", [(4, 5), (5, 6), (6,)],
    ),
    "convolution": (
        "(x, w) => (y) { y = Conv <pads = [1,2,0,1], strides = [2,3], dilations = [1,2]> (x, w) }",
        [(2, 6, 14, 20), (8, 6, 3, 5)],
    ),
    "convolution in groups, padded alike": (
        '(x, w) => (y) { y = Conv <auto_pad = "SAME_UPPER", strides = [2,2], group = 3> (x, w) }',
        [(2, 6, 9, 10), (9, 2, 3, 3)],
    ),
    "signal": ("(x, w) => (y) { y = Conv <pads = [1,1]> (x, w) }", [(2, 6, 14), (8, 6, 3)]),
    "pooling that goes on": (
        "(x) => (y) { y = MaxPool <kernel_shape = [3,2], strides = [2,2], ceil_mode = 1> (x) }", [(2, 6, 14, 15)],
    ),
    "mean of a signal": ("(x) => (y) { y = AveragePool <kernel_shape = [3], strides = [2]> (x) }", [(2, 6, 14)]),
    "resizing": (
        """(x) => (y) { s = Constant <value = float[4] {1, 1, 1.5, 2}> ()
           y = Resize <mode = "linear"> (x, , s) }""", [(2, 3, 5, 7)],
    ),
    "expanded as others are long": (
        """(x, q, k) => (y) { one = Constant <value = int64[1] {1}> () a = Shape (q) b = Shape (k) n = Gather (a, one)
           m = Gather (b, one) two = Constant <value = int64[1] {2}> () h = Div (m, two)
           s = Concat <axis = 0> (one, n, h) y = Expand (x, s) }""", [(3, 1), (2, 3, 4), (2, 8, 4)],
    ),
}  # fmt: skip
"""Bodies, and the shapes of their inputs."""


def types_of(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    inputs, outputs = (side.count(",") + 1 for side in text.split("{")[0].split("=>"))
    return (FLOAT,) * inputs, (FLOAT,) * outputs


@pytest.mark.parametrize("name", SHAPED)
def test_values_have_the_shapes_that_onnx_gives_them(name: str) -> None:
    text, shapes = SHAPED[name]
    fused = ops.op(text, *types_of(text))
    program = read.program(fused)
    (made,) = ops.truth(fused, [np.ones(shape, np.float32) for shape in shapes])
    assert program.shapes(tuple(shapes))[program.outputs[0].value] == made.shape


def test_attention_has_the_shape_of_queries_of_values() -> None:
    text = "(q, k, v) => (y) { y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v) }"
    program = read.program(ops.op(text, (HALF,) * 3, (HALF,)))
    assert program.shapes(((2, 5, 8), (2, 7, 8), (2, 7, 6)))[-1] == (2, 5, 6)
    assert program.values[-1] == Attend((0, 1, 2), 2, 0.0, False, HALF)


def test_a_body_is_read_once_whatever_it_is_called() -> None:
    one, other = (ops.op("(x) => (y) { y = Relu(x) }", (HALF,), (HALF,), kind) for kind in ("pointwise", "row"))
    assert read.program(one) is read.program(other)
    assert read.program(one) is not read.program(ops.op("(x) => (y) { y = Relu(x) }", (FLOAT,), (FLOAT,)))
