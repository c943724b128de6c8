"""`--keep-fp32`: nodes by their names, their outputs, their operators, or a pattern of these."""

import pytest

from onnxfuse.precision import user_pins
from onnxfuse.precision.plan import FloatNode, float_nodes, opsets_of
from onnxfuse.precision.scopes import scopes_of
from onnxfuse.support.errors import UsageError
from tests.support.small import parse

TEXT = """g (float[4] x, int64[4] i) => (float[4] y) {
  [head_exp] e = Exp (x) [head_neg] n = Neg (e) a = Abs (n) [count] j = Neg (i) [Abs] f = Exp (a) y = Add (f, x)
}"""


@pytest.fixture(scope="module")
def nodes() -> dict[str, FloatNode]:
    model = parse(TEXT)
    return float_nodes(scopes_of(model), opsets_of(model))


@pytest.mark.parametrize(
    ("word", "kept"),
    [
        ("head_exp", "e"),
        ("n", "n"),
        ("Exp", "e f"),
        ("Neg", "n"),
        ("Abs", "a f"),
        ("head_*", "e n"),
        ("*", "e n a f y"),
        ("A?d", "y"),
        ("a", "a"),
    ],
)
def test_a_word_keeps_every_node_that_it_names(nodes: dict[str, FloatNode], word: str, kept: str) -> None:
    """Of those with float32 values; a name of one and the operator of another are both."""
    assert user_pins.of(nodes, [word]) == dict.fromkeys(kept.split(), f"--keep-fp32 {word} says so")


def test_a_name_as_it_stands_is_no_pattern() -> None:
    """Names with brackets or stars are those that exporters write."""
    model = parse(TEXT)
    model.graph.node[0].name, model.graph.node[1].name = "head[0]", "head0"
    assert user_pins.of(float_nodes(scopes_of(model), opsets_of(model)), ["head[0]"]).keys() == {"e"}


def test_the_first_word_is_the_reason(nodes: dict[str, FloatNode]) -> None:
    found = user_pins.of(nodes, ["head_*", "Exp"])
    assert {key: reason.split()[1] for key, reason in found.items()} == {"e": "head_*", "n": "head_*", "f": "Exp"}
    assert user_pins.of(nodes, []) == {}


@pytest.mark.parametrize("word", ["head_ex", "count", "HEAD_*", ""])
def test_a_word_that_names_nothing_is_refused(nodes: dict[str, FloatNode], word: str) -> None:
    """Also one that names a node of integers alone; letters count as they are written."""
    with pytest.raises(UsageError, match="no node that computes with float32 has that name") as caught:
        user_pins.of(nodes, ["Exp", word])
    assert str(caught.value).startswith(f"--keep-fp32 {word}: ")
    assert ("Did you mean head_exp?" in str(caught.value)) == (word == "head_ex")
