"""A Slice says its steps where they are not 1."""

import pytest

from onnxfuse.rules.rewriting.normal_forms import normal_form
from tests.support.small import assert_same_numbers, graph_of, optimize, parse

TEXT = """g (float[N,6,8] x STEPS_INPUT) => (float[N,P,Q] y)
<int64[2] starts = {1,-6}, int64[2] ends = {5,8}, int64[2] axes = {1,2}, int64[2] steps = {STEPS}> {
  s = Slice (x, starts, ends, axes, steps)
  y = Relu (s)
}"""


def text(steps: str) -> str:
    """Return the model with these steps."""
    return TEXT.replace(" STEPS_INPUT", "").replace("STEPS", steps)


def test_steps_of_1_are_left_out() -> None:
    model = parse(text("1,1"))
    made, _ = optimize(model, "expand")
    assert [len(n.input) for n in made.graph.node] == [4, 1]
    assert_same_numbers(model, made)


@pytest.mark.parametrize("steps", ["1,2", "-1,1"])
def test_other_steps_stay(steps: str) -> None:
    model = parse(text(steps))
    assert not normal_form("canonical_slices")(graph_of(model))


def test_steps_that_are_not_known_stay() -> None:
    model = parse(TEXT.replace("STEPS_INPUT", ", int64[2] steps").replace(", int64[2] steps = {STEPS}", ""))
    assert not normal_form("canonical_slices")(graph_of(model))
