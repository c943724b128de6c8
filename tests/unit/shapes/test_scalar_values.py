"""What shapes are computed by, element by element: as ONNX computes it, or unknown."""

import math
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from onnxfuse.ops import scalar
from onnxfuse.ops.scalar import Function
from onnxfuse.ops.shapes.extents import UnknownError
from onnxfuse.shapes.scalar_values import Whole
from onnxfuse.shapes.value_facts import Ratio
from onnxfuse.symbolic.integer import Int, ceiling
from tests.support.small import graph_of, parse

N = Int.name("n", least=1)
OPEN = Int.name("o", least=0)
ANY = Int.name("d") - 7
"""An integer of either sign."""


def whole(*elements: Any, floats: bool = False) -> Whole:
    return Whole(np.array(elements, object), floats)


def only(function: Function, *elements: Any, floats: bool = False) -> Any:
    """Return what a function gives of one element each."""
    found = function(*(whole(e, floats=floats) for e in elements))
    assert isinstance(found, Whole)
    return found.array.item()


@pytest.mark.parametrize(
    ("function", "a", "b", "result"),
    [
        (scalar.add, N, 3, N + 3), (scalar.sub, N, N, 0), (scalar.mul, 2, N, 2 * N),
        (scalar.div, 7, 2, 3), (scalar.div, N * 4, 2, N * 2), (scalar.div, N, 2, N // 2),
        (scalar.div, N, OPEN, N // OPEN), (scalar.div, OPEN, 2, OPEN // 2),
        (scalar.div, ANY, 2, None), (scalar.div, 7, 0, None), (scalar.div, N, 0, None),
        (scalar.mod_integer, 7, 4, 3), (scalar.mod_integer, -7, 4, 1), (scalar.mod_integer, 7, -4, -1),
        (scalar.mod_integer, N, 4, N % 4),
        (scalar.mod_integer, OPEN, 4, OPEN % 4), (scalar.mod_integer, N, OPEN, N % OPEN),
        (scalar.mod_integer, ANY, 4, None), (scalar.mod_integer, 7, 0, None),
        (scalar.fmod_integer, 7, 4, 3), (scalar.fmod_integer, -7, 4, None), (scalar.fmod_integer, 7, 0, None),
        (scalar.maximum, 3, 5, 5), (scalar.minimum, 3, 5, 3),
        (scalar.equal, N, N, 1), (scalar.equal, N, 0, 0), (scalar.equal, -N, 0, 0), (scalar.equal, N, 1, None),
        (scalar.less, 0, N, 1), (scalar.less, N, 1, 0), (scalar.less, N, 2, None), (scalar.less, 2, 2, 0),
        (scalar.greater, N, 0, 1), (scalar.greater, 1, N, 0), (scalar.greater, N, 1, None),
        (scalar.less_equal, 1, N, 1), (scalar.less_equal, N, 0, 0), (scalar.less_equal, N, 1, None),
        (scalar.greater_equal, N, 1, 1), (scalar.greater_equal, 0, N, 0), (scalar.greater_equal, 1, N, None),
        (scalar.logical_and, 1, 0, 0), (scalar.logical_or, 1, 0, 1),
        (scalar.add, None, 3, None), (scalar.add, Ratio(N, 2), 3, None),
    ],
)  # fmt: skip
def test_functions_of_two_integers(function: Function, a: Any, b: Any, result: Any) -> None:
    """None where it depends on a sign that is not known, or a number is not."""
    assert only(function, a, b) == result


def test_functions_of_one_integer() -> None:
    assert only(scalar.neg, N) == -N
    assert only(scalar.logical_not, 1) == 0
    assert only(scalar.logical_not, None) is None
    with pytest.raises(UnknownError, match="of integers"):
        only(scalar.exp, 3)


def test_real_quotients_are_rounded_where_the_file_says_so() -> None:
    """Down, up, or towards zero by a Cast; of two integers at once."""
    half = scalar.div(whole(N, floats=True), whole(2, floats=True))
    assert half.array.item() == Ratio(N, 2)
    assert half.floats
    assert scalar.floor(half).array.item() == N // 2
    assert scalar.ceil(half).array.item() == ceiling(N, 2)
    assert half.cast(TensorProto.INT64).array.item() == N // 2
    assert half.cast(TensorProto.FLOAT16) == half
    # what was rounded is a floating-point number still: its quotient is not
    assert scalar.div(scalar.floor(half), whole(2, floats=True)).array.item() == Ratio(N // 2, 2)
    assert not half.cast(TensorProto.INT64).floats
    below = scalar.div(whole(ANY, floats=True), whole(2, floats=True))
    assert below.cast(TensorProto.INT64).array.item() is None  # down or up
    assert scalar.floor(below).array.item() == ANY // 2
    assert only(scalar.div, N * 2, 2, floats=True) == N
    for divisor in (0, -2, N):
        assert only(scalar.div, ANY, divisor, floats=True) is None


def test_an_extent_that_is_rounded_twice_is_that_of_onnx() -> None:
    """A quarter of three rows, rounded down and then up, is one."""
    text = """g (float[N,8] x) => (float[M] y) <float two = {2}> {
      s = Shape <start = 0, end = 1> (x) f = Cast <to = 1> (s) h = Div (f, two) d = Floor (h) q = Div (d, two)
      c = Ceil (q) i = Cast <to = 7> (c) z = ConstantOfShape <value = float[1] {1}> (i) y = Neg (z) }"""
    (extent,) = graph_of(parse(text)).type("y").shape or ()
    assert isinstance(extent, Int)
    assert [extent.substitute(N=n) for n in range(1, 10)] == [math.ceil(n // 2 / 2) for n in range(1, 10)]


def test_a_cast_to_truth_tells_zero_from_the_rest() -> None:
    found = whole(0, 5, -N, ANY, None).cast(TensorProto.BOOL).array.tolist()
    assert found == [0, 1, 1, None, None]


def test_a_choice_takes_the_type_of_what_is_chosen() -> None:
    """A condition that is not known chooses nothing."""
    chosen = scalar.where(whole(1, 0, None), whole(N, N, N, floats=True), whole(2, 3, 4, floats=True))
    assert chosen.array.tolist() == [N, 3, None]
    assert chosen.floats
    assert not scalar.less(whole(N, floats=True), whole(2, floats=True)).floats


def test_elements_broadcast_and_a_number_is_a_whole_one() -> None:
    assert scalar.add(whole(N, 2), 1).array.tolist() == [N + 1, 3]
    assert (Whole(np.array([[1], [2]], object), False) + whole(10, 20)).array.tolist() == [[11, 21], [12, 22]]
    with pytest.raises(UnknownError, match=r"a computation with 0\.5"):
        scalar.add(whole(N), 0.5)


def test_only_one_known_integer_is_a_literal() -> None:
    assert whole(3).literal == 3
    assert [whole(*e).literal for e in ((3, 3), (N,), (None,))] == [None] * 3
    assert (whole(3).dtype, whole(3, floats=True).dtype) == (TensorProto.INT64, TensorProto.FLOAT)
    assert whole(3, floats=True).is_computed_as(TensorProto.FLOAT16)
    assert not whole(3).is_computed_as(TensorProto.FLOAT)
    assert not whole(3, floats=True).is_computed_as(TensorProto.INT64)
