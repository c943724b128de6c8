"""A model that runs with an empty batch runs with it once it is optimized: no Reshape has to find out an extent, a -1,
beside one that is 0."""

import numpy as np
import pytest
from onnx import ModelProto

from onnxfuse.shapes.extents import reshape_target
from onnxfuse.symbolic.integer import Int
from tests.support.small import numbers, ops, optimize, parse, run
from tests.unit.passes.layout import test_subpixel

ROWS = "s = Shape (x) front = Slice (s, zero, two)"

MODELS = {
    "Einsum, rows joined": (
        """g (float[N,3,W,8] x, float[N,8,4] w) => (float[N,3,W,4] y) {
          y = Einsum <equation = "bhwc,bcd->bhwd"> (x, w) }""",
        ["Einsum"],
    ),
    "Einsum, known rows joined": (
        """g (float[N,3,5,8] x, float[N,8,4] w) => (float[N,3,5,4] y) {
          y = Einsum <equation = "bhwc,bcd->bhwd"> (x, w) }""",
        ["Reshape", "MatMul", "Reshape"],
    ),
    "flat_rows": (
        f"""g (float[N,S,2,3] x) => (float[N,S,4] y) <float[6,4] w = {{{numbers(24, 5)}}}, float[4] b = {{1,2,3,4}},
        int64[2] flat = {{-1,6}}, int64[1] zero = {{0}}, int64[1] two = {{2}}, int64[1] four = {{4}}> {{
          {ROWS} shape = Concat <axis = 0> (front, four) r = Reshape (x, flat) g = Gemm (r, w, b) y = Reshape (g, shape)
        }}""",
        ["Reshape", "MatMul", "{Add}"],
    ),
    "batch_first": (
        f"""g (float[N,2,S,3] c) => (float[N,S,4] y) <float[6,4] w = {{{numbers(24, 5)}}}, int64[1] zero = {{0}},
        int64[1] two = {{2}}, int64[1] six = {{6}}> {{
          x = Transpose <perm = [2,0,1,3]> (c) {ROWS} shape = Concat <axis = 0> (front, six)
          r = Reshape (x, shape) m = MatMul (r, w) y = Transpose <perm = [1,0,2]> (m)
        }}""",
        ["Transpose", "Reshape", "MatMul"],
    ),
    "one_position": (
        """g (float[N,2,S,3] c) => (float[N,6] y) <int64 i = {-1}, int64[1] zero = {0}, int64[1] two = {2},
        int64[1] six = {6}> {
          x = Transpose <perm = [0,2,1,3]> (c) s = Shape (x) front = Slice (s, zero, two)
          shape = Concat <axis = 0> (front, six) r = Reshape (x, shape) g = Gather <axis = 1> (r, i) y = Relu (g)
        }""",
        ["{Transpose Reshape Gather Relu}"],
    ),
    "token_images": (
        """g (float[N,4,3,5] x) => (float[N,15,4] y) <float one = {1}, int64[3] shape = {0,4,15}> {
          r = Reshape (x, shape) t = Transpose <perm = [0,2,1]> (r) y = Add (t, one) }""",
        ["{Transpose Reshape Add}"],
    ),
    "token_images of any size": (
        """g (float[N,4,H,W] x) => (float[N,S,4] y) <float one = {1}, int64[1] zero = {0}, int64[1] four = {4},
        int64[2] sides = {2,3}> {
          s = Shape (x) n = Gather (s, zero) plane = Gather (s, sides) tokens = ReduceProd (plane)
          shape = Concat <axis = 0> (n, four, tokens) r = Reshape (x, shape) t = Transpose <perm = [0,2,1]> (r)
          y = Add (t, one) }""",
        ["Shape", "Gather", "Gather", "ReduceProd", "Concat", "Reshape", "{Transpose Add}"],
    ),
    "packed_heads by a convolution": (
        f"""g (float[N,2,2,3] x) => (float[N,2,2,6] y) <float[12,2,1,1] w = {{{numbers(24, 5)}}},
        int64[4] shape = {{0,2,6,6}}> {{
          c = Conv <kernel_shape = [1,1]> (x, w) r = Reshape (c, shape) q, k, v = Split <axis = 2> (r)
          s = Add (q, k) y = Mul (s, v) }}""",
        ["Transpose", "Reshape", *["MatMul", "Reshape"] * 3, "{Transpose Transpose Transpose Add Mul}"],
    ),
    "packed_heads by a convolution of any size": (
        f"""g (float[2,2,H,W] x) => (float[2,2,2,S] y) <float[12,2,1,1] w = {{{numbers(24, 5)}}},
        int64[4] shape = {{0,2,6,-1}}> {{
          c = Conv <kernel_shape = [1,1]> (x, w) r = Reshape (c, shape) q, k, v = Split <axis = 2> (r)
          s = Add (q, k) y = Mul (s, v) }}""",
        ["Transpose", "Reshape", *["MatMul", "Reshape", "Transpose"] * 2, "MatMul", "Reshape", "{Transpose Add Mul}"],
    ),
}  # fmt: skip
"""Models by the pass or rule that writes a Reshape, and what is left of each."""


@pytest.mark.parametrize("name", MODELS)
def test_an_optimized_model_runs_with_an_empty_batch(name: str) -> None:
    """What the original gives for no rows is what the optimized model gives."""
    text, left = MODELS[name]
    model = parse(text)
    made, _ = optimize(model)
    assert ops(made) == left
    _assert_same_shapes(model, made)


@pytest.mark.parametrize("name", test_subpixel.TAKEN)
def test_a_transposed_convolution_runs_with_an_empty_batch(name: str) -> None:
    """The pixels of blocks are joined by a target that is computed, if no constant says it."""
    rank, kernel, size, attributes = test_subpixel.TAKEN[name]
    model = test_subpixel.model(rank, kernel, size, **attributes)
    _assert_same_shapes(model, test_subpixel.optimized(model))


def _assert_same_shapes(model: ModelProto, made: ModelProto) -> None:
    sizes = {"N": 0, "S": 3}
    inputs = {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        inputs[value.name] = np.zeros([sizes.get(d.dim_param, d.dim_value or 6) for d in dims], np.float32)
    assert [y.shape for y in run(made, inputs)] == [y.shape for y in run(model, inputs)]


def test_the_target_of_a_reshape_is_written_only_where_a_session_finds_it_out() -> None:
    """0 copies, one -1 stands for the rest, and never both."""
    n, h, w = (Int.name(name) for name in "nhw")
    assert reshape_target((n, h, 8), (n, h, 2, 4)) == [0, 0, 2, 4]
    assert reshape_target((n, h, 8), (n * h, 8)) == [-1, 8]
    assert reshape_target((2, h, w, 8), (2, h * w, 8)) == [2, -1, 8]
    assert reshape_target((n, h, w, 8), (n, h * w, 8)) is None
    assert reshape_target((n, 3, 4), (3, n, 4)) == [3, -1, 4]
    assert reshape_target((n, 8), (0, 8)) is None
    assert reshape_target((n, h), (h, n)) is None
