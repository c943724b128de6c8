"""Types of a model whose declarations contradict its operators: these are believed, and declarations fill in."""

import pytest

from onnxfuse.shapes.lenient_inference import infer
from onnxfuse.shapes.types import value_types
from tests.support.small import parse


def types(text: str) -> dict[str, str]:
    """Return the inferred types by value, as text."""
    return {name: str(t) for name, t in value_types(infer(parse(text)).graph).items()}


def test_operators_are_believed_before_declarations() -> None:
    """Of values on the way and of outputs; an unknown extent is the declared one."""
    found = types("""g (float[2,3] x, int64[1] i) => (float[9,9] y, float[5,N] z) <float[7] a> {
      a = Relu (x)  y = Neg (a)  z = Gather (x, i)  }""")
    assert found["a"] == found["y"] == "float[2,3]"
    assert found["z"] == "float[1,3]"


@pytest.mark.parametrize(
    ("declared", "inferred"),
    [
        ("float[K,4]", "float[K,4]"),
        ("float[?,4]", "float[?,4]"),
        ("float[K]", "float[?,4]"),
    ],
)
def test_declarations_fill_in_what_is_not_inferred(declared: str, inferred: str) -> None:
    """Of the same element type and rank."""
    text = f"g (float[M,4] x, bool[M] c) => ({declared} y) {{ y = Compress <axis = 0> (x, c) }}"
    assert types(text)["y"] == inferred


def test_what_operators_do_not_tell_is_declared() -> None:
    """Of a domain that is not imported, too, and the imports stay."""
    text = "g (float[2] x) => (float[3,K] y) <float[4] a> { a = mine.Thing (x)  y = other.Thing (a) }"
    found = types(text)
    assert (found["a"], found["y"]) == ("float[4]", "float[3,K]")
    assert [o.domain for o in infer(parse(text)).opset_import] == [""]


def test_bodies_are_inferred_in_the_same_way() -> None:
    """A wrong declaration in a branch."""
    model = infer(
        parse("""g (float[2,3] x, bool c) => (float[2,3] y) {
      y = If (c) <then_branch = t () => (float[7] a) <float[8] h> { h = Relu (x) a = Neg (h) },
                  else_branch = e () => (float[2,3] b) { b = Abs (x) }> }""")
    )
    branch = model.graph.node[0].attribute[0].g
    assert str(value_types(branch)["h"]) == "float[2,3]"


def test_a_model_that_contradicts_itself_has_its_declarations() -> None:
    """Where operators alone do not go together, nothing is inferred."""
    found = types("g (float[2,3] x) => (float[4] y) { a = MatMul (x, x)  y = Relu (a) }")
    assert found["y"] == "float[4]"
