"""The words of rules: what each says of a graph, and that each is described as it is written."""

import re
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from onnxfuse.graph.graph import Graph
from onnxfuse.rules.language.vocabulary import DTYPES, TERMS, TESTS, _holds_all
from onnxfuse.rules.match.match import Match
from onnxfuse.rules.pattern import expression
from onnxfuse.rules.pattern.pattern import parse as parse_pattern
from tests.support.small import graph_of, parse

PATTERN = parse_pattern("(x) => (y) { y = Relu (x) }", "here")
WEIGHTS = """float[2] ones = {1, 1}, float[1] one = {0.5}, int64[1] five = {5}, float[2] odd = {0.5, 1},
int64[3] order = {0, 1, 2}, int64[3] other = {1, 0, 2}, float[3,3] causal = {0, -1e9, -1e9, 0, 0, -1e9, 0, 0, 0}"""
GRAPH = f"""g (float[N,3,3] x, float16[4] h, uint8[2] u) => (float[N,3,3] y, int64[3] z) <{WEIGHTS}> {{
  y = Relu (x)
  t = Tanh (x)
  r = Reshape (t, other)
  s = Softmax (x)
  d = DequantizeLinear (u, one)
  z = Identity (order)
}}"""


@pytest.fixture(scope="module")
def graph() -> Graph:
    """Return a graph with a value for each word."""
    return graph_of(parse(GRAPH))


def called(graph: Graph, word: str, *arguments: Any, **labels: Any) -> Any:
    """Return what a word says; a name of the pattern is the value of the same name in the graph."""
    match = Match(PATTERN, values={a: a for a in arguments if isinstance(a, str)}, labels=labels)
    return (TESTS | TERMS)[word].meaning(graph, match, *arguments)


@pytest.mark.parametrize(
    ("word", "arguments", "holds"),
    [
        ("const", ("ones",), True), ("const", ("ones", "x"), False), ("const", ("x",), False), ("const", ("d",), False),
        ("finite", ("ones",), True), ("finite", ("x",), False),
        ("whole", ("ones",), True), ("whole", ("odd",), False), ("whole", ("z",), True), ("whole", ("z", "x"), False),
        ("counted", ("order",), True), ("counted", ("other",), False), ("counted", ("x",), False),
        ("output", ("y",), True), ("output", ("t",), False),
        ("read_by", ("t", "Reshape"), True), ("read_by", ("x", "Relu"), False), ("read_by", ("y", "Relu"), False),
        ("refused_by", ("u", "Relu"), True), ("refused_by", ("x", "Relu"), False),
        ("let_go", ("other",), True), ("let_go", ("x",), False),
        ("exact", ("h", "x"), True), ("exact", ("x", "h"), False), ("exact", ("u", "h"), True),
    ],
)  # fmt: skip
def test_a_condition_holds_or_says_why_not(graph: Graph, word: str, arguments: tuple[str, ...], holds: bool) -> None:
    """A reason with the value that is at fault."""
    cause = called(graph, word, *arguments)
    assert (cause is None) is holds
    if cause is not None:
        assert any(a in cause.text for a in arguments)


def test_a_quantized_constant_is_told_as_such(graph: Graph) -> None:
    """Another cause than a value that is computed: other rules take it."""
    assert (called(graph, "const", "d").kind, called(graph, "const", "x").kind) == ("quantized", "not constant")


@pytest.mark.parametrize(
    ("word", "arguments", "value"),
    [
        ("rank", ("x",), 3), ("rank", ("one",), 1),
        ("dim", ("x", -1), 3), ("dim", ("x", 3), None), ("dim", ("x", -4), None),
        ("size", ("causal",), 9), ("size", ("x",), None),
        ("dtype", ("h",), "float16"), ("dtype", ("x",), "float"),
        ("value", ("one",), 0.5), ("value", ("five",), 5), ("value", ("ones",), None), ("value", ("x",), None),
        ("elements", ("other",), (1, 0, 2)), ("elements", ("x",), None),
        ("range", (3,), (0, 1, 2)), ("range", (0,), ()), ("range", (-1,), None), ("range", (65,), None),
        ("everywhere", ("ones",), 1.0), ("everywhere", ("odd",), None), ("everywhere", ("x",), None),
        ("until", ("causal", "x"), 0.0), ("after", ("causal", "x"), -1e9), ("until", ("odd", "x"), None),
        ("target", ("x", "s"), (0, 3, 3)),
    ],
)  # fmt: skip
def test_a_term_has_a_value_or_none(graph: Graph, word: str, arguments: tuple[Any, ...], value: object) -> None:
    """None is what the model does not determine."""
    found = called(graph, word, *arguments)
    assert found == value
    assert isinstance(found, type(value)), "an integer stays one, as axes must be"


def test_an_open_extent_has_its_name(graph: Graph) -> None:
    """So that the same name on both sides is equal."""
    assert str(called(graph, "dim", "x", 0)) == "N"
    assert called(graph, "shape", "x") == (called(graph, "dim", "y", 0), 3, 3)


@pytest.mark.parametrize(
    ("bound", "value"),
    [(b"reflect", "reflect"), (2.5, 2.5), ([1, 0], (1, 0)), ([], None), (None, None), (np.array([7]), 7)],
)
def test_the_value_of_an_attribute(graph: Graph, bound: object, value: object) -> None:
    """Text, a number, or a list; an array of one element is its number."""
    match = Match(PATTERN, labels={"how": bound})  # type: ignore[dict-item]  # as attributes come
    assert TERMS["value"].meaning(graph, match, "how") == value


FLOATS = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16, "float": TensorProto.FLOAT,
          "double": TensorProto.DOUBLE}  # fmt: skip


@pytest.mark.parametrize(
    ("narrow", "wide", "holds"),
    [
        ("float16", "float", True),
        ("bfloat16", "float", True),
        ("bfloat16", "double", True),
        ("float", "double", True),
        ("float", "float16", False),
        ("float16", "bfloat16", False),
        ("bfloat16", "float16", False),
        ("double", "float", False),
    ],
)
def test_a_type_holds_every_number_of_a_narrower_one(narrow: str, wide: str, holds: bool) -> None:
    """And float16 and bfloat16 hold each other's in neither direction."""
    assert _holds_all(FLOATS[wide], FLOATS[narrow]) is holds


@pytest.mark.parametrize("word", sorted({*TESTS, *TERMS}))
def test_a_word_is_described_by_an_example_of_itself(word: str) -> None:
    """With as many arguments as it takes; its text is what `onnxfuse rules --predicates` prints."""
    entry = (TESTS | TERMS)[word]
    example = re.match(r"\w+\((?:[^()]|\([^()]*\))*\)", entry.text)
    assert example is not None, entry.text
    call = next(expression.calls(expression.read(example[0].replace(", ...", ""))))
    assert call.name == word
    assert len(call.arguments) == len(entry.arguments) or "..." in entry.arguments


def test_types_have_the_names_of_onnx_and_of_numpy() -> None:
    """float and float32 are one."""
    assert DTYPES["float"] == DTYPES["float32"] == TensorProto.FLOAT
    assert DTYPES["double"] == DTYPES["float64"] == TensorProto.DOUBLE
    assert DTYPES["bfloat16"] == TensorProto.BFLOAT16
