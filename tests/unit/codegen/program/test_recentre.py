"""Programs with differences from a mean centred once more."""

from typing import Any

import pytest

from bench.cases import ops
from bench.cases.ops import FLOAT, HALF
from bench.cases.rows import TEMPLATES
from onnxfuse import cuda
from onnxfuse.codegen.emit import expressions
from onnxfuse.codegen.operators import read
from onnxfuse.codegen.program.recentre import centred
from onnxfuse.cuda import Arch
from onnxfuse.model.fused import FusedOp


def spelled(fused: FusedOp) -> Any:
    return read.program(fused)


@pytest.mark.parametrize(
    "name", ["layer norm of NCHW", "layer norm of 3 axes", "group norm + silu", "batch statistics"]
)
def test_what_the_mean_leaves_comes_with_the_variance(name: str) -> None:
    """One mean more, and no round more over the row."""
    plain = spelled(TEMPLATES[name].op(FLOAT))
    assert len(expressions.phases(centred(plain))) == len(expressions.phases(plain)) == 2
    more = len(centred(plain).reductions()) - len(plain.reductions())
    # Statistics are sums alone: nothing reads the differences of one element.
    assert more == (name != "batch statistics")


@pytest.mark.parametrize("name", ["norm in float", "log softmax", "l2 norm", "mean of rows"])
def test_what_is_no_norm_stays_as_it_is(name: str) -> None:
    plain = spelled(TEMPLATES[name].op(FLOAT))
    assert centred(plain) is plain


def test_16_bits_do_not_see_it() -> None:
    """What the mean's rounding leaves is less than a rounding of theirs."""
    plain = spelled(TEMPLATES["layer norm of NCHW"].op(HALF))
    assert centred(plain) is plain


def test_a_difference_that_nothing_sums_stays_as_it_is() -> None:
    """It would take a round of its own over the row."""
    text = "(x) => (y) { a = Constant <value_ints = [-1]> () m = ReduceMean (x, a) y = Sub (x, m) }"
    plain = spelled(ops.op(text, (FLOAT,), (FLOAT,), "row"))
    assert centred(plain) is plain


@pytest.mark.parametrize("norm", ["LayerNormalization(p, s)", "LogSoftmax(p)"])
@pytest.mark.parametrize(("extent", "apart"), [(1, True), (2, False)])
def test_what_is_subtracted_from_one_element_is_no_part_of_an_fma(norm: str, extent: int, apart: bool) -> None:
    """x * k less the rounded x * k is 0; of longer rows the kernel stays as it is."""
    op = ops.op(f"(x, k, s) => (y, z) {{ p = Mul(x, k) y = {norm} z = Mul(p, s) }}", (FLOAT,) * 3, (FLOAT,) * 2, "row")
    text = cuda.plan(op, ((100, extent), (1,), (extent,)), True, Arch("sm_90a", 132)).kernel.text
    assert ("= minus(" in text, " - done.r" in text) == (apart, not apart)
