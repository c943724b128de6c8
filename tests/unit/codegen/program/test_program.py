"""The program of a body: contractions, windows, resampling and attention as values, and parts of it as programs."""

import numpy as np
import pytest

from bench.cases import ops
from bench.cases.ops import FLOAT, HALF
from onnxfuse import cuda
from onnxfuse.codegen.operators import read
from onnxfuse.codegen.program.images import image_problem, image_works
from onnxfuse.codegen.program.program import Attend, Contraction, Input, Reduce, Resample, SlidingWindow
from onnxfuse.codegen.program.slices import between, canonical
from onnxfuse.cuda.templates.gemm.body import anatomy
from onnxfuse.symbolic.element_types import UnsupportedError

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


@pytest.mark.parametrize("template", ["pointwise", "row"])
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("(x, w) => (y) { y = MatMul(x, w) }", "a matrix product in a"),
        ("(x, w) => (y) { y = Conv(x, w) }", "a window over images in a"),
        ("(x) => (y) { y = MaxPool <kernel_shape = [2,2]> (x) }", "a window over images in a"),
        (SHAPED["resizing"][0], "a Resize by linear interpolation in a"),
        (SHAPED["expanded as others are long"][0], "an Expand to extents of other values in a"),
    ],
)
def test_what_memory_bounds_holds_no_other_work(text: str, told: str, template: str) -> None:
    assert f"{told} {template} body" in (cuda.supports(ops.op(text, *types_of(text), template)) or "")


def test_a_body_out_of_order_is_refused_with_the_reason() -> None:
    fused = ops.op("(x) => (y) { y = Relu(a) a = Abs(x) }", (HALF,), (HALF,))
    assert cuda.supports(fused) == "Relu of 'a', which no node before it computes"


# ---- images

FIRST, BACK = "perm = [0,3,1,2]", "perm = [0,2,3,1]"
X, W, Y = f"i = Transpose <{FIRST}> (x)", f"f = Transpose <{FIRST}> (w)", f"y = Transpose <{BACK}> (c)"
LAYOUTS = {
    "channels first": ("(x, w) => (y) { y = Conv(x, w) }", Contraction, (False, False, (), 0)),
    "channels last": (f"(x, w) => (y) {{ {X} {W} c = Conv(i, f) {Y} }}", Contraction, (True, True, (0, 3, 1, 2), 4)),
    "packed by pixel": (
        f"(x, w) => (y) {{ {X} f = Transpose <perm = [2,3,0,1]> (w) c = Conv(i, f) {Y} }}", Contraction,
        (True, True, (2, 3, 0, 1), 4),
    ),
    "result alone": (
        f"(x, w) => (y) {{ t = Transpose <{BACK}> (x) i = Transpose <{FIRST}> (t) c = Conv(i, w) {Y} }}", Contraction,
        (False, True, (), 4),
    ),
    "signal": (
        "(x, w) => (y) { i = Transpose <perm = [0,2,1]> (x) c = Conv(i, w) y = Transpose <perm = [0,2,1]> (c) }",
        Contraction, (True, True, (), 3),
    ),
    "pooling": (f"(x) => (y) {{ {X} c = MaxPool <kernel_shape = [2,2]> (i) {Y} }}", Reduce, (True, True, (), 4)),
    "resizing": (
        f"""(x) => (y) {{ {X} s = Constant <value = float[4] {{1, 1, 2, 2}}> () c = Resize <mode = "linear"> (i, , s)
            {Y} }}""", Resample, (True, True, (), 4),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_one_place_tells_how_images_lie(name: str) -> None:
    text, kind, layout = LAYOUTS[name]
    program = read.program(ops.op(text, *types_of(text)))
    (index,) = image_works(program)
    work = image_problem(program, index)
    assert isinstance(work.core, kind)
    assert (work.images_last, work.channels_last, work.packing, work.rank) == layout
    assert program.is_output(work.result)
    assert program.values[work.x] == Input(0, FLOAT)
    assert work.window is None or isinstance(work.window, SlidingWindow)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"(x, w) => (y) {{ {X} {W} y = Conv(i, f) }}", "between transposes by"),
        (f"(x, w) => (y, c) {{ {X} {W} c = Conv(i, f) {Y} }}", "between transposes by"),
        (f"(x, w) => (y, z) {{ {X} {W} c = Conv(i, f) {Y} z = Relu(c) }}", "between transposes by"),
        (f"(x, w) => (y) {{ {X} {W} c = Conv <strides = [1]> (i, f) {Y} }}", "1 dimension over images of rank 4"),
    ],
)
def test_images_that_lie_otherwise(text: str, told: str) -> None:
    program = read.program(ops.op(text, *types_of(text)))
    (index,) = image_works(program)
    with pytest.raises(UnsupportedError, match=told):
        image_problem(program, index)


# ---- parts of a program


def test_products_side_by_side_may_share_their_numbers() -> None:
    """The constants of Clip stand in the program once; each product's epilogue is the same program still."""
    text = """(x, u, v, b, c) => (y, z) {
      low = Constant <value = float {0.0}> () high = Constant <value = float {6.0}> ()
      m = MatMul(x, u) k = Add(m, b) y = Clip(k, low, high)
      n = MatMul(x, v) l = Add(c, n) z = Clip(l, low, high) }"""
    parts = anatomy(ops.op(text, (FLOAT,) * 5, (FLOAT,) * 2, "gemm"))
    assert [(e.products, e.operands, e.outputs) for e in parts.epilogues] == [((0,), (3,), (0,)), ((1,), (4,), (1,))]
    first, second = (e.program for e in parts.epilogues)
    assert first != second
    assert canonical(first) == canonical(second)


def test_a_part_begins_at_the_values_it_is_given() -> None:
    text = "(x, w, b) => (y) { m = MatMul(x, w) n = Add(m, b) s = Sigmoid(n) y = Mul(n, s) }"
    program = read.program(ops.op(text, (HALF,) * 3, (HALF,)))
    product = next(i for i, v in enumerate(program.values) if isinstance(v, Contraction))
    part = between(program, (product, 2), program.outputs)
    assert part.inputs == (HALF, HALF)
    assert part.is_pointwise()
    assert [getattr(v, "op", "") for v in part.values] == ["", "", "add", "sigmoid", "mul"]
    assert part.shapes(((4, 6), (6,)))[-1] == (4, 6)
