"""What would help: a sentence for each kind of refusal, and none that only repeats the reason."""

import pytest

from onnxfuse.rewrite.match.hint import hint, without_names
from onnxfuse.rewrite.match.match import Refusal


@pytest.mark.parametrize(
    ("reason", "subject", "told"),
    [
        ("dtype(x) is float; the rule wants dtype(x) in float16, bfloat16", "dtype(x) in float16, bfloat16",
         "export the model, or convert it, in float16 or bfloat16"),
        ("dim(w, 3) % 8 is 3; the rule wants dim(w, 3) % 8 == 0", "dim(w, 3) % 8 == 0", "a multiple of 8"),
        ("'m' is not known to be 0 everywhere", "zeros(mask)", "where the mask hides nothing"),
        ("dim(x, 1) is not known; the rule wants dim(x, 1) == 4", "dim(x, 1) == 4", "element types and shapes"),
        ("'w' is not a constant", "const(w)", "with constants folded"),
        ("'w' is not a constant: it is quantized", "const(w)", "a quantized model is left to ONNX Runtime's kernels"),
        ("rank(g) is 0; the rule wants rank(g) == 4", "rank(g) == 4", ""),
        ("x is no image", "x is no image", ""),
    ],
)  # fmt: skip
def test_a_condition_is_not_told_twice(reason: str, subject: str, told: str) -> None:
    """What to do where something can be done; the condition itself stands in the reason already."""
    said = hint(Refusal("n", reason, 1, kind="predicate", subject=subject))
    assert said.startswith(told) or told in said
    assert bool(said) == bool(told)


def test_attributes_and_constants_say_what_the_rule_is_for() -> None:
    """A fixed attribute can be left open, one that is the same elsewhere cannot; axes are no number to bind."""
    fixed = Refusal("n", "Gemm has alpha = 2, the rule wants 1", 0, kind="attribute", subject="alpha", wanted="1")
    same = Refusal("n", "Conv has strides = [1], another node of the match [3]", 0, kind="attribute", subject="strides")
    axes = Refusal(
        "n", "has the constant [0 1], the rule wants [1 2]", 1, kind="constant", seen="[0 1]", wanted="[1 2]"
    )
    assert "@alpha" in hint(fixed)
    assert hint(same) == "the rule is for nodes that have the same strides"
    assert "any number" not in hint(axes)


def test_equal_reasons_of_two_layers_are_equal_without_names() -> None:
    """Values and nodes go, numbers stay."""
    first, second = (f"value '/l{i}/x' has 3; /l{i}/Softmax: is fused already" for i in range(2))
    assert without_names(first) == without_names(second) == "a value has 3; is fused already"
