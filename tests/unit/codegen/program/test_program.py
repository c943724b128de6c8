"""The program of a body: contractions, windows, resampling and attention as values, and parts of it as programs."""

import pytest

from bench.cases import ops
from bench.cases.ops import HALF
from onnxfuse import cuda
from tests.unit.codegen.operators.test_read import SHAPED, types_of


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
