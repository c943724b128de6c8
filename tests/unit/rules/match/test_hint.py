"""What would help: a sentence for each kind of refusal, and none that only repeats the reason."""

import pytest

from onnxfuse.rules.match.cause import Cause
from onnxfuse.rules.match.hint import hint, without_names

TYPE = Cause("type", "dtype(x)", "dtype(x) is float", "dtype(x) in (float16, bfloat16)", "float16 or bfloat16")

MULTIPLE = Cause("multiple", "dim(w, 3)", "dim(w, 3) % 8 is 3", "dim(w, 3) % 8 == 0", "8")

RANK = Cause("relation", "rank(g)", "rank(g) is 0", "rank(g) == 4")


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        (TYPE, "export the model, or convert it, in float16 or bfloat16"),
        (MULTIPLE, "a multiple of 8"),
        (Cause("mask", "everywhere(mask)", wanted="everywhere(mask) == 0"), "if the mask hides nothing"),
        (Cause("unknown", "dim(x, 1)", wanted="dim(x, 1) == 4"), "element types and shapes"),
        (Cause("not constant", "w"), "with constants folded"),
        (Cause("quantized", "w"), "the rule is for floating-point weights"),
        (RANK, ""),
        (
            Cause("operand", "'b'", "a constant", "Reshape"),
            "this node reads a constant, the rule is for the result of a R",
        ),
        (Cause("slower", seen="slower on sm_90"), "another GPU"),
        (Cause("excluded", "dim(x, 1) == 1"), ""),
        (Cause("none of", wanted="rank(g) == 4 or dim(w, 3) % 8 == 0", parts=(RANK, MULTIPLE)), "a multiple of 8"),
    ],
)
def test_a_condition_is_not_told_twice(cause: Cause, told: str) -> None:
    """What to do where something can be done; the condition itself stands in the reason already."""
    said = hint(cause)
    assert told in said
    assert bool(said) == bool(told)


def test_attributes_and_constants_say_what_the_rule_is_for() -> None:
    """A fixed attribute can be left open, one that is the same elsewhere cannot; axes are no number to bind."""
    assert "@alpha" in hint(Cause("attribute", "alpha", "2", "1", "Gemm"))
    assert (
        hint(Cause("same attribute", "strides", "[1]", "[3]", "Conv"))
        == "the rule is for nodes that have the same strides"
    )
    assert "any number" not in hint(Cause("list", "axes", "[0 1]", "[1 2]"))


def test_equal_reasons_of_two_layers_are_equal_without_names() -> None:
    """Values and nodes go, numbers stay."""
    first, second = (f"value '/l{i}/x' has 3; /l{i}/Softmax: already fused" for i in range(2))
    assert without_names(first) == without_names(second) == "a value has 3; already fused"
    before = Cause("between", "Mul layer.{}/Mul_1", "Add", "Mul").text
    assert before == "is an Add, the rule wants a Mul; the node before it, Mul layer.{}/Mul_1, is one: both sides match"
    assert without_names(before.format(1)) == without_names(before.format(2)) != before.format(1)
