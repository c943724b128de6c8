"""Every word of `where`: where it holds, and what it says where it does not."""

import pytest

from onnxfuse.graph.graph import Graph
from onnxfuse.rules.language import predicate
from onnxfuse.rules.match.cause import Cause
from onnxfuse.rules.match.match import Trace, matches
from onnxfuse.rules.pattern.pattern import parse as parse_pattern
from onnxfuse.shapes.inference import infer
from tests.support.small import parse

PATTERN = parse_pattern("(x, k) => (y) { t = Transpose <perm: ints = @perm> (x) y = Mul (t, k) }", "here")
MODEL = """g (float16[N,3,4] x) => (float16[3,N,4] y) <float16[3,1,1] c = {15360,15360,15360}, int64[1] last = {-1}> {
  t = Transpose <perm = [1,0,2]> (x) y = Mul (t, c)
}"""


def reason(line: str, text: str = MODEL) -> str | None:
    """Return why `line` does not hold for the match of the pattern in `text`, None where it does."""
    model = parse(text)
    graph = Graph(model.graph, infer(model).graph, 17)
    match = next(matches(PATTERN, graph, graph.nodes[-1], Trace()))
    cause = predicate.holds(predicate.parse(line, PATTERN, "here"), graph, match)
    return None if cause is None else cause.text


@pytest.mark.parametrize(
    "line",
    [
        "const(k)", "rank(x) == 3", "rank(k) != 2", "rank(x) <= 3", "rank(x) >= 3", "rank(x) < 4", "rank(x) > 2",
        "rank(x) in 2, 3", "dim(x, -1) == 4", "dim(x, 0) == N", "dim(x, 1) == dim(t, 0)", "dim(x, 0) == dim(t, 1)",
        "dtype(x) == float16", "dtype(x) in float16, bfloat16, float32", "size(k) == 3",
        "value(perm)[-1] == rank(x) - 1", "value(perm) == [1, 0, 2]", "value(perm) in ([0, 1, 2], [1, 0, 2])",
        "not value(perm) == [1, 0]", "value(perm) != [0, 1, 2]", "shape(k) == [3, 1, 1]",
        "dtype(x) != float32", "dtype(x) == dtype(k)",
        "dim(x, 1) * dim(x, 2) == 12", "dim(x, 2) == dim(x, 1) + 1", "dim(x, 2) // 2 < size(k)",
        "not (shape(x) != shape(x))", "shape(x)[:-1] == shape(x)[:-1]", "shape(x) != shape(t)",
        "rank(x) in (2, 3)", "1 < rank(x) <= 3 and const(k)", "rank(x) == 2 or rank(x) == 3", "not const(x)",
        "dtype(x) not in (float32, bool)", "value(perm) == value(perm)", "everywhere(k) == 1 or rank(x) > 2",
        "size(k) < inf",
        "dim(x, 0) * 1 == dim(t, 1)", "dim(x, 0) * 4 % 2 == 0", "dim(x, 0) - dim(t, 1) == 0",
        "2 * dim(x, 0) / 2 == dim(x, 0)",
        "dim(x, 0) * (dim(x, 1) + 1) == 4 * dim(t, 1)", "(dim(x, 0) + 3) // 1 != dim(t, 1)", "dim(x, 0) != M",
        "not dim(x, 0) % 2 != 0", "not dim(x, 0) >= 0",
        "elements(k) == [1, 1, 1]", "each(elements(k) == 1)", "each(shape(k) == 1 or range(rank(k)) == 0)",
        "each(shape(x)[value(perm)] == shape(t))", "each(shape(x) != 1 * range(rank(x)))", "not each(shape(x) == 3)",
        "value(perm)[value(perm)] == range(rank(x))", "range(rank(x)) == [0, 1, 2]",
        "exact(x, x)", "output(y)", "not output(t)", "read_by(t, Mul)", "not read_by(y, Mul)", "let_go(k)",
        "not let_go(x)", "whole(k)", "not whole(x)", "not target(x, t) == [3, 0, 4]",
    ],
)  # fmt: skip
def test_what_is_so_holds(line: str) -> None:
    """Each relation, each term, with names of dimensions and with another term on the right."""
    assert reason(line) is None


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("const(x)", "'x' is not a constant"),
        ("rank(x) == 2", "rank(x) is 3; the rule wants rank(x) == 2"),
        ("rank(x) in 1, 2", "rank(x) is 3; the rule wants rank(x) in (1, 2)"),
        ("dim(x, -1) == 8", "dim(x, -1) is 4; the rule wants dim(x, -1) == 8"),
        ("dim(x, 0) == dim(x, 1)", "dim(x, 0) is N and dim(x, 1) is 3; the rule wants dim(x, 0) == dim(x, 1)"),
        ("dim(x, 7) == 1", "dim(x, 7) is not known"),
        ("size(x) == 12", "size(x) is not known; the rule wants size(x) == 12"),
        ("dtype(x) in float32, float64", "dtype(x) is float16; the rule wants dtype(x) in (float32, float64)"),
        ("value(k) == 1", "value(k) is not known"),
        ("each(shape(k) == 1)", "shape(k)[0] is 3; the rule wants shape(k) == 1"),
        ("each(shape(k) == 3 or shape(x) == 4)", "shape(k)[1] is 1 and shape(x)[1] is 3; the rule wants"),
        ("each(elements(x) == 1)", "elements(x) is not known; the rule wants each(elements(x) == 1)"),
        ("each(range(2) == shape(k))", "each(range(2) == shape(k)) is not known"),
        ("value(perm)[shape(x)] == [0]", "value(perm)[shape(x)] is not known"),
        ("output(t)", "'t' is not an output of the graph"),
        ("read_by(t, Reshape)", "'t' is not read by Reshape alone"),
        ("let_go(x)", "'x' is not a constant that nothing else reads"),
        ("dim(x, 1) * dim(x, 2) == 13", "dim(x, 1) * dim(x, 2) is 12; the rule wants dim(x, 1) * dim(x, 2) == 13"),
        ("dim(x, 1) < dim(x, 2) - 1", "dim(x, 1) is 3 and dim(x, 2) - 1 is 3; the rule wants"),
        ("dim(x, 0) * 1 == 2", "dim(x, 0) * 1 is not known; the rule wants dim(x, 0) * 1 == 2"),
        ("dim(x, 0) % 2 == 0", "dim(x, 0) % 2 is not known; the rule wants dim(x, 0) % 2 == 0"),
        ("dim(x, 0) / 2 == 0.5", "dim(x, 0) / 2 is not known"),
        ("dim(x, 0) * 1 <= 8", "dim(x, 0) * 1 is not known; the rule wants dim(x, 0) * 1 <= 8"),
        ("not shape(x) != shape(t)", "shape(x) != shape(t); the rule leaves that alone"),
        ("shape(x)[1:] == shape(t)[1:]", "shape(x)[1:] is [3, 4] and shape(t)[1:] is [N, 4]; the rule wants"),
        (
            "rank(x) == 2 or size(x) == 12",
            "rank(x) is 3 and size(x) is not known; the rule wants rank(x) == 2 or size(x) == 12",
        ),
        ("1 < rank(x) < 3", "rank(x) is 3; the rule wants rank(x) < 3"),
        ("dtype(x) not in (float16, bool)", "dtype(x) is float16; the rule wants dtype(x) not in (float16, bool)"),
    ],
)
def test_what_is_not_so_says_what_was_seen(line: str, told: str) -> None:
    """The reason holds the fact and the wish."""
    assert told in str(reason(line))


def test_a_permutation_that_moves_the_last_axis_is_told() -> None:
    """With the permutation, which reverses the axes where it is not written."""
    text = (
        "g (float[2,3,4] x) => (float[4,3,2] y) <float k = {2}> { t = Transpose <perm = [2,1,0]> (x) y = Mul (t, k) }"
    )
    told = "value(perm)[-1] is 0 and rank(x) - 1 is 2; the rule wants value(perm)[-1] == rank(x) - 1"
    assert reason("value(perm)[-1] == rank(x) - 1", text) == told
    assert reason("value(perm)[-1] == rank(x) - 1", text.replace("<perm = [2,1,0]>", "")) == told


@pytest.mark.parametrize(
    ("shape", "so"),
    [("[3,1,1]", True), ("[1,3,1,1]", True), ("", True), ("[1]", True), ("[4]", False), ("[1,3,4]", False)],
)
def test_channels_is_axis_1_and_no_other(shape: str, so: bool) -> None:
    """Broadcast to a tensor of rank 4, a constant may vary along its channels alone."""
    count = {"[3,1,1]": 3, "[1,3,1,1]": 3, "": 1, "[1]": 1, "[4]": 4, "[1,3,4]": 12}[shape]
    text = f"""g (float[2,3,5,4] x) => (float[2,3,5,4] y) <float{shape} k = {{{",".join("1" * count)}}}> {{
      t = Transpose <perm = [0,1,2,3]> (x) y = Mul (t, k)
    }}"""
    condition = "rank(k) <= rank(t) and (size(k) == 1 or size(k) == dim(k, 1 - rank(t)) == dim(t, 1))"
    assert (reason(condition, text) is None) is so


@pytest.mark.parametrize(("value", "so"), [("0.5", True), ("0.25", False)])
def test_value_is_the_number_of_a_constant(value: str, so: bool) -> None:
    """Of one element, whatever its shape."""
    text = f"""g (float[2,3] x) => (float[3,2] y) <float[1,1] k = {{{value}}}> {{
      t = Transpose <perm = [1,0]> (x) y = Mul (t, k)
    }}"""
    assert (reason("value(k) == 0.5", text) is None) is so


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("dim(x, 1) in (dim(t, 1), dim(t, 0))", None),
        ("dim(x, 1) in (dim(t, 0), dim(t, 1))", None),
        ("dim(x, 1) in (dim(t, 7), dim(t, 0))", None),
        (
            "dim(x, 1) in (dim(t, 7), dim(t, 1))",
            "dim(x, 1) is 3 and dim(t, 7) is unknown and dim(t, 1) is N; the rule wants",
        ),
        ("dim(x, 1) in (dim(t, 1), dim(t, 2))", "dim(x, 1) is 3 and dim(t, 1) is N and dim(t, 2) is 4; the rule wants"),
        ("dim(x, 1) in (dim(t, 7), dim(t, 8))", "dim(t, 7) is not known"),
        ("dim(x, 7) in (dim(t, 0), dim(t, 1))", "dim(x, 7) is not known"),
    ],
)
def test_one_of_several_terms_is_enough(line: str, told: str | None) -> None:
    """In any order; one that is not known does not hold."""
    seen = reason(line)
    assert seen is None if told is None else told in str(seen)


def bound(expression: str) -> object:
    """Return what `n = expression` gives for the match of the pattern in the model."""
    model = parse(MODEL.replace("float16[3,1,1] c = {15360,15360,15360}", "float16[1,1] c = {13312}"))
    graph = Graph(model.graph, infer(model).graph, 17)
    match = next(matches(PATTERN, graph, graph.nodes[-1], Trace()))
    value = predicate.bind(predicate.parse_let("n", expression, PATTERN, "here"), graph, match)
    return value.text if isinstance(value, Cause) else value


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1", 1), ("0.5", 0.5), ("-2", -2), ("dim(x, -1)", 4), ("rank(x) + 1", 4), ("1 / value(k)", 4.0),
        ("value(k) * value(k)", 0.0625), ("dim(x, 2) // dim(x, 1)", 1), ("2 - 3 * dim(x, 1)", -7),
        ("(2 - 3) * dim(x, 1)", -3), ("-dim(x, 1) / 2", -1.5),
    ],
)  # fmt: skip
def test_a_label_is_arithmetic_over_terms(expression: str, value: float) -> None:
    """With the usual precedence; whole numbers stay whole, `/` gives a float."""
    assert bound(expression) == value
    assert type(bound(expression)) is type(value)


@pytest.mark.parametrize(
    "expression",
    ["dim(x, 0)", "dim(x, 7) + 1", "2 * dim(x, 0)", "value(x)", "1 / (rank(x) - 3)", "1 // (rank(x) - 3)"],
)
def test_a_label_without_a_number_says_which(expression: str) -> None:
    """A name of a dimension, an unknown extent, what is no constant, a division by zero: the reason, no guess."""
    assert bound(expression) == f"n = {expression} is not known"


def test_the_value_of_an_attribute_that_became_an_input_is_known() -> None:
    """Old models hold as a list of one what newer ones hold in a constant."""
    pattern = parse_pattern("(x, axes) => (y) { e = Exp (x) y = Unsqueeze (e, axes) }", "here")
    model = parse("g (float[4] x) => (float[1,4] y) { e = Exp (x) y = Unsqueeze <axes = [0]> (e) }", 11)
    graph = Graph(model.graph, infer(model).graph, 11)
    match = next(matches(pattern, graph, graph.nodes[-1], Trace()))
    assert predicate.holds(predicate.parse("value(axes) == 0", pattern, "here"), graph, match) is None
    assert predicate.holds(predicate.parse("value(axes) == 1", pattern, "here"), graph, match) is not None
