"""What a caller of the fused model would hit before anything runs: other names, types, shapes, another order."""

import pytest

from onnxfuse.verification.run.interface import belong_together, interface_problems
from tests.support.small import parse

ORIGINAL = "g (float[N,4] x, int64[2] i) => (float[N,4] y, bool[N] m) { }"


def problems(fused: str, original: str = ORIGINAL, *, lower: bool = False) -> list[str]:
    return interface_problems(parse(original), parse(fused), lower=lower)


@pytest.mark.parametrize("lower", [False, True])
def test_the_same_interface_has_no_problem(lower: bool) -> None:
    assert problems(ORIGINAL, lower=lower) == []


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("x,", "z,", ["input 'x' is missing in the fused model", "input 'z' is not in the original"]),
        (", bool[N] m", "", ["output 'm' is missing in the fused model"]),
        ("bool[N] m", "bool[N] m, bool[N] o", ["output 'o' is not in the original"]),
        ("float[N,4] x", "float[N,5] x", ["input 'x' is float[N,5] in the fused model, float[N,4] in the original"]),
        ("float[N,4] y", "float[N,4,1] y",
         ["output 'y' is float[N,4,1] in the fused model, float[N,4] in the original"]),
        ("int64[2] i", "int32[2] i", ["input 'i' is int32[2] in the fused model, int64[2] in the original"]),
        ("float[N,4] x, int64[2] i", "int64[2] i, float[N,4] x", ["inputs are in another order: i, x; original: x, i"]),
        ("float[N,4] y, bool[N] m", "bool[N] m, float[N,4] y", ["outputs are in another order: m, y; original: y, m"]),
    ],
)  # fmt: skip
def test_each_difference_is_one_sentence(old: str, new: str, told: list[str]) -> None:
    assert old in ORIGINAL
    found = problems(ORIGINAL.replace(old, new, 1))
    assert found == told
    assert belong_together(found) == (not any(" is missing " in line or "is not in" in line for line in told))


@pytest.mark.parametrize("x", ["float[M,4]", "float[3,4]", "float[N,M]", "float[]"])
def test_sizes_that_are_not_fixed_in_both_may_differ(x: str) -> None:
    """A name says nothing about the size, and a shape that nobody wrote nothing about the rank."""
    assert problems(ORIGINAL.replace("float[N,4] x", f"{x} x")) == []
    assert problems(ORIGINAL, ORIGINAL.replace("float[N,4] x", f"{x} x")) == []


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_a_half_type_is_right_where_it_was_wanted(half: str) -> None:
    """In place of float32 alone, and never the other way round."""
    fused = ORIGINAL.replace("float[N,4] y", f"{half}[N,4] y")
    assert problems(fused, lower=True) == []
    assert problems(fused) == [f"output 'y' is {half}[N,4] in the fused model, float[N,4] in the original"]
    assert len(problems(ORIGINAL, fused, lower=True)) == 1
    assert len(problems(ORIGINAL.replace("int64[2] i", f"{half}[2] i"), lower=True)) == 1


def test_weights_that_are_listed_as_inputs_are_none() -> None:
    text = "g (float[N,4] x, float[4] w) => (float[N,4] y) <float[4] w = {1,2,3,4}> { y = Add (x, w) }"
    assert problems(text.replace(", float[4] w)", ")"), text) == []
