"""How images lie in memory is said in one place."""

import pytest

from bench.cases import ops
from bench.cases.ops import FLOAT
from onnxfuse.codegen.operators import read
from onnxfuse.codegen.program.images import image_problem, image_works
from onnxfuse.codegen.program.program import Contraction, Input, Reduce, Resample, SlidingWindow
from onnxfuse.symbolic.element_types import UnsupportedError


def types_of(text: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    inputs, outputs = (side.count(",") + 1 for side in text.split("{")[0].split("=>"))
    return (FLOAT,) * inputs, (FLOAT,) * outputs


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
