"""Reductions in the body language: over which axes, with or without them in the result, and norms as their formulas."""

from typing import Any

import pytest
from onnx import TensorProto

from bench.cases import ops
from onnxfuse.codegen.operators import read
from onnxfuse.codegen.program.movement import Squeezed
from onnxfuse.codegen.program.program import Move, Reduce
from onnxfuse.symbolic.element_types import UnsupportedError

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def values(text: str, types: tuple[int, ...] = (FLOAT,), to: int = FLOAT) -> list[Any]:
    """Return the values of a body's program."""
    return list(read.program(ops.op(text, types, (to,))).values)


def reductions(
    text: str, types: tuple[int, ...] = (FLOAT,), to: int = FLOAT
) -> list[tuple[str, tuple[int, ...], bool]]:
    """Return kind and axes of each reduction of a body, and whether all axes after them go, too."""
    return [(v.kind, v.axes, v.onward) for v in values(text, types, to) if isinstance(v, Reduce)]


def squeezed(text: str, to: int = FLOAT) -> list[object]:
    """Return the axes that are left out of results; None is all."""
    return [v.how.axes for v in values(text, to=to) if isinstance(v, Move) and isinstance(v.how, Squeezed)]


AXES = "a = Constant <value = int64[2] {-1, 1}> ()"


@pytest.mark.parametrize(
    ("text", "found", "gone"),
    [
        (f"(x) => (y) {{ {AXES} y = ReduceSum (x, a) }}", [("sum", (-1, 1), False)], []),
        (f"(x) => (y) {{ {AXES} y = ReduceSum <keepdims = 0> (x, a) }}", [("sum", (-1, 1), False)], [(-1, 1)]),
        ("(x) => (y) { y = ReduceMax <axes = [2]> (x) }", [("max", (2,), False)], []),
        ("(x) => (y) { y = ReduceMean (x) }", [("mean", (0,), True)], []),
        ("(x) => (y) { y = ReduceMean <keepdims = 0> (x) }", [("mean", (0,), True)], [None]),
        ("(x) => (y) { y = ReduceSum <noop_with_empty_axes = 1> (x) }", [], []),
    ],
)
def test_axes_are_an_attribute_an_input_or_all(
    text: str, found: list[tuple[str, tuple[int, ...], bool]], gone: list[object]
) -> None:
    """Or none at all, where the node says so: then it is no reduction."""
    assert reductions(text) == found
    assert squeezed(text) == gone


def test_a_formula_around_a_reduction_stays_where_nothing_is_reduced() -> None:
    """A sum of squares over no axes is the squares."""
    text = "(x) => (y) { y = ReduceSumSquare <noop_with_empty_axes = 1> (x) }"
    assert reductions(text) == []
    assert len(values(text)) > 1


@pytest.mark.parametrize(
    ("attributes", "kind", "gone"),
    [
        ("axis = -1", "argmax", []),
        ("axis = 1, keepdims = 0", "argmax", [(1,)]),
        ("axis = 0, select_last_index = 1", "argmax_last", []),
    ],
)
def test_an_index_is_that_of_the_first_or_the_last(attributes: str, kind: str, gone: list[object]) -> None:
    """Along one axis, as int64."""
    text = f"(x) => (y) {{ y = ArgMax <{attributes}> (x) }}"
    ((found, axes, onward),) = reductions(text, to=INT64)
    assert (found, len(axes), onward) == (kind, 1, False)
    assert squeezed(text, to=INT64) == gone


@pytest.mark.parametrize(
    "text",
    [
        "(x, s, b) => (y) { y = InstanceNormalization (x, s, b) }",
        "(x, s, b) => (y) { y = GroupNormalization <num_groups = 2> (x, s, b) }",
    ],
)
def test_a_norm_of_channels_takes_mean_and_variance_in_two_passes(text: str) -> None:
    """Over all axes after the channels."""
    assert reductions(text, (FLOAT,) * 3) == [("mean", (2,), True)] * 2


def test_a_group_norm_needs_its_groups() -> None:
    with pytest.raises(UnsupportedError, match="without num_groups"):
        values("(x, s, b) => (y) { y = GroupNormalization <num_groups = 0> (x, s, b) }", (FLOAT,) * 3)
