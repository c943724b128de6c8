"""What a pattern matches, whatever the spelling; and what it must not match."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from onnxfuse.graph.graph import Graph
from onnxfuse.rules.match.match import Match, Refusal, Trace, matches
from onnxfuse.rules.pattern.pattern import Pattern
from onnxfuse.rules.pattern.pattern import parse as parse_pattern
from onnxfuse.shapes.inference import infer
from tests.support.small import fuses, parse, reasons


def match(pattern: str | Pattern, text: str, opset: int = 17) -> Match | Refusal | None:
    """Return the first match of `pattern` in the model `text`, else the furthest refusal at any of its nodes."""
    model = parse(text, opset)
    graph = Graph(model.graph, infer(model).graph, model.opset_import[0].version)
    wanted = parse_pattern(pattern, "here") if isinstance(pattern, str) else pattern
    trace = Trace()
    for node in graph.nodes:
        found = next(matches(wanted, graph, node, trace), None)
        if found is not None:
            return found
    furthest = trace.furthest
    return None if furthest is None or furthest.trivial else furthest


def refusal(pattern: str | Pattern, text: str, opset: int = 17) -> str:
    """Return why `pattern` does not match; fails where it does."""
    found = match(pattern, text, opset)
    assert isinstance(found, Refusal), found
    return f"{found.node}: {found.reason}"


# ---- operands


@pytest.mark.parametrize("op", ["Add", "Mul", "Max", "Min"])
def test_operands_of_commutative_operators_match_in_any_order(op: str) -> None:
    """Add(Relu(x), b) and Add(b, Relu(x)) are one pattern, and the names are bound to the same values."""
    pattern = f"(x, b) => (y) {{ r = Relu (x) y = {op} (r, b) }}"
    for order in ("r, b", "b, r"):
        found = match(pattern, f"g (float[3] x, float[3] b) => (float[3] y) {{ r = Relu (x) y = {op} ({order}) }}")
        assert isinstance(found, Match)
        assert (found.values["x"], found.values["b"]) == ("x", "b")


@pytest.mark.parametrize("op", ["Sub", "Div", "Pow", "MatMul"])
def test_operands_of_other_operators_keep_their_order(op: str) -> None:
    """Sub(b, Relu(x)) is not Sub(Relu(x), b)."""
    pattern = f"(x, b) => (y) {{ r = Relu (x) y = {op} (r, b) }}"
    model = "g (float[3,3] x, float[3,3] b) => (float[3,3] y) {{ r = Relu (x) y = {} ({}) }}"
    assert isinstance(match(pattern, model.format(op, "r, b")), Match)
    assert match(pattern, model.format(op, "b, r")) is None


@pytest.mark.parametrize("swaps", list(itertools.product([False, True], repeat=3)))
def test_every_order_of_nested_operands_matches(swaps: tuple[bool, ...]) -> None:
    """gelu(x) = x * (erf(x / 1.4142) + 1) * 0.5 is found in each of its eight spellings."""
    pattern = """(x) => (y) {
      s = Constant <value = float {1.4142135}> () d = Div (x, s) e = Erf (d)
      one = Constant <value = float {1.0}> () p = Add (e, one) m = Mul (x, p)
      h = Constant <value = float {0.5}> () y = Mul (m, h)
    }"""
    operands = [("e", "one"), ("x", "p"), ("m", "h")]
    p, m, y = (", ".join(reversed(pair) if swap else pair) for swap, pair in zip(swaps, operands, strict=True))
    text = f"""g (float[3] x) => (float[3] y) <float s = {{1.4142135}}, float one = {{1.0}}, float h = {{0.5}}> {{
      d = Div (x, s) e = Erf (d) p = Add ({p}) m = Mul ({m}) y = Mul ({y})
    }}"""
    found = match(pattern, text)
    assert isinstance(found, Match)
    assert found.values["x"] == "x"


def test_a_name_used_twice_means_one_value() -> None:
    """x * sigmoid(x) does not match x * sigmoid(z)."""
    swish = "(x) => (y) { s = Sigmoid (x) y = Mul (x, s) }"
    assert isinstance(match(swish, "g (float[3] x) => (float[3] y) { s = Sigmoid (x) y = Mul (s, x) }"), Match)
    told = refusal(swish, "g (float[3] x, float[3] z) => (float[3] y) { s = Sigmoid (z) y = Mul (s, x) }")
    assert "where the rule wants" in told


def test_one_node_stands_for_one_node_of_the_pattern() -> None:
    """Add(r1, r2) of two Relus does not match Add(r, r) of one."""
    pattern = "(a, b) => (y) { r = Relu (a) s = Relu (b) y = Add (r, s) }"
    two = "g (float[3] x, float[3] z) => (float[3] y) { r = Relu (x) s = Relu (z) y = Add (r, s) }"
    assert isinstance(match(pattern, two), Match)
    assert match(pattern, "g (float[3] x) => (float[3] y) { r = Relu (x) y = Add (r, r) }") is None


# ---- attributes


SOFTMAX = "(x) => (y) {{ s = Softmax {} (x) y = Exp (s) }}"


@pytest.mark.parametrize(("in_model", "in_rule"), list(itertools.product(["", "<axis = -1>"], repeat=2)))
def test_an_attribute_left_out_and_its_default_are_the_same(in_model: str, in_rule: str) -> None:
    """Both ways: in the model and in the rule."""
    model = "g (float[2,3] x) => (float[2,3] y) {{ s = Softmax {} (x) y = Exp (s) }}"
    assert isinstance(match(SOFTMAX.format(in_rule), model.format(in_model)), Match)
    assert "Softmax has axis = 0, the rule wants" in refusal(SOFTMAX.format(in_rule), model.format("<axis = 0>"))


def test_an_attribute_that_a_rule_does_not_write_must_be_the_default() -> None:
    """Unstated never means any: Gemm with transB does not match a Gemm without."""
    pattern = "(x, w) => (y) { g = Gemm (x, w) y = Relu (g) }"
    model = "g (float[2,3] x, float[3,3] w) => (float[2,3] y) {{ g = Gemm {} (x, w) y = Relu (g) }}"
    assert isinstance(match(pattern, model.format("<alpha = 1.0, transB = 0>")), Match)
    assert "Gemm has transB = 1, the rule wants 0" in refusal(pattern, model.format("<transB = 1>"))
    assert "Gemm has alpha = 0.5, the rule wants 1" in refusal(pattern, model.format("<alpha = 0.5>"))


def test_an_element_type_in_an_attribute_has_its_name() -> None:
    """As it is written in a model's text: the number means nothing to a reader."""
    pattern = "(x) => (y) { r = Relu (x) y = Cast <to = 1> (r) }"
    model = "g (float[3] x) => (int32[3] y) { r = Relu (x) y = Cast <to = 6> (r) }"
    assert "Cast has to = int32, the rule wants float" in refusal(pattern, model)


def test_the_default_is_the_one_of_the_models_opset() -> None:
    """Softmax means axis 1 before opset 13 and the last axis since: in rank 3 the old default is refused."""
    model = "g (float[2,3,4] x) => (float[2,3,4] y) { s = Softmax (x) y = Exp (s) }"
    assert isinstance(match(SOFTMAX.format(""), model, opset=13), Match)
    assert "Softmax has axis = 1, the rule wants -1" in refusal(SOFTMAX.format(""), model, opset=11)


def test_a_label_used_twice_means_one_value() -> None:
    """Two nodes that share @alpha must have the same one."""
    pattern = "(x) => (y) { a = Elu <alpha: float = @alpha> (x) y = LeakyRelu <alpha: float = @alpha> (a) }"
    model = "g (float[3] x) => (float[3] y) {{ a = Elu <alpha = {}> (x) y = LeakyRelu <alpha = 0.5> (a) }}"
    found = match(pattern, model.format(0.5))
    assert isinstance(found, Match)
    assert found.labels == {"alpha": 0.5}
    assert "another node of the match 0.5" in refusal(pattern, model.format(0.25))


def test_rest_keeps_every_other_attribute() -> None:
    """`_` binds what is not written, for the replacement to carry on."""
    found = match(
        "(x, w) => (y) { y = Conv <group: int = @group, _: string = @rest> (x, w) }",
        "g (float[1,2,5,5] x, float[2,1,3,3] w) => (float[1,2,3,3] y) "
        "{ y = Conv <group = 2, strides = [2,2], pads = [1,1,1,1]> (x, w) }",
    )
    assert isinstance(found, Match)
    assert found.labels["group"] == 2
    rest: Any = found.labels["rest"]
    assert {a.name for a in rest} == {"strides", "pads"}


@pytest.mark.parametrize(
    ("opset", "reduce"),
    [(13, "m = ReduceMean <axes = [-1]> (e)"), (18, "m = ReduceMean (e, axes)")],
)
def test_an_attribute_that_became_an_input_matches_in_both_places(opset: int, reduce: str) -> None:
    """ReduceMean holds its axes as an attribute up to opset 17 and as an input since: one pattern finds both."""
    text = f"""g (float[2,3] x) => (float[2,1] y) <int64[1] axes = {{-1}}> {{ e = Exp (x) {reduce} y = Sqrt (m) }}"""
    axes = "a = Constant <value_ints = [{}]> ()"
    pattern = "(x) => (y) {{ e = Exp (x) {} m = ReduceMean (e, a) y = Sqrt (m) }}"
    assert isinstance(match(pattern.format(axes.format(-1)), text, opset), Match)
    assert "the rule wants 0" in refusal(pattern.format(axes.format(0)), text, opset)


@pytest.mark.parametrize(("opset", "clip"), [(6, "y = Clip <min = 0.0, max = 6.0> (e)"), (13, "y = Clip (e, lo, hi)")])
def test_clip_limits_match_in_both_places(opset: int, clip: str) -> None:
    """Clip held its limits as attributes before opset 11."""
    text = f"g (float[3] x) => (float[3] y) <float lo = {{0}}, float hi = {{6}}> {{ e = Exp (x) {clip} }}"
    pattern = """(x) => (y) { e = Exp (x) lo = Constant <value = float {0.0}> ()
      hi = Constant <value = float {6.0}> () y = Clip (e, lo, hi) }"""
    assert isinstance(match(pattern, text, opset), Match)
    told = refusal(pattern.replace("{6.0}", "{5.0}"), text, opset)
    assert "has the constant 6, the rule wants 5" in told


@pytest.mark.parametrize(
    ("opset", "op"),
    [
        (11, "Squeeze <axes = [1]> (e)"),
        (13, "Squeeze (e, axes)"),
        (13, "Unsqueeze (e, axes)"),
        (11, "Unsqueeze <axes = [1]> (e)"),
    ],
)
def test_squeeze_axes_match_in_both_places(opset: int, op: str) -> None:
    """Squeeze and Unsqueeze hold their axes as an attribute before opset 13."""
    text = f"g (float[2,1,3] x) => (float[2,3] y) <int64[1] axes = {{1}}> {{ e = Exp (x) y = {op} }}"
    if op.startswith("Unsqueeze"):
        text = text.replace("float[2,3] y", "float[2,1,1,3] y")
    name = op.split()[0]
    pattern = f"(x) => (y) {{ e = Exp (x) a = Constant <value_ints = [1]> () y = {name} (e, a) }}"
    assert isinstance(match(pattern, text, opset), Match)


# ---- constants

HALF = "(x) => (y) { r = Relu (x) h = Constant <value = float {0.5}> () y = Mul (r, h) }"


@pytest.mark.parametrize(
    "constant",
    [
        "<float h = {0.5}>", "<float[1] h = {0.5}>", "<float[1,1] h = {0.5}>", "<double h = {0.5}>",
        "<float16 h = {14336}>", "<bfloat16 h = {16128}>",
    ],
)  # fmt: skip
def test_a_constant_matches_by_value_whatever_its_type_and_shape(constant: str) -> None:
    """An initializer of any float type, of shape [], [1] or [1,1]."""
    dtype = constant[1:].split()[0].split("[")[0]
    text = f"g ({dtype}[2,3] x) => ({dtype}[2,3] y) {constant} {{ r = Relu (x) y = Mul (h, r) }}"
    assert isinstance(match(HALF, text), Match)


@pytest.mark.parametrize(
    "value", ["value = float {0.5}", "value = float[1] {0.5}", "value_float = 0.5", "value_floats = [0.5]"]
)
def test_a_constant_node_is_a_constant_like_an_initializer(value: str) -> None:
    """Exporters write constants in five ways; all are the same to a rule."""
    text = f"g (float[2,3] x) => (float[2,3] y) {{ h = Constant <{value}> () r = Relu (x) y = Mul (r, h) }}"
    assert isinstance(match(HALF, text), Match)


@pytest.mark.parametrize(
    ("constant", "told"),
    [
        ("<float h = {0.25}>", "has the constant 0.25, the rule wants 0.5"),
        ("<float h = {-0.5}>", "has the constant -0.5, the rule wants 0.5"),
        ("<float[3] h = {0.5,0.5,0.5}>", "has the constant [0.5 0.5 0.5], the rule wants 0.5"),
        ("<float h = {0}>", "has the constant 0, the rule wants 0.5"),
    ],
)
def test_another_value_or_a_vector_is_refused_with_the_value(constant: str, told: str) -> None:
    """Only the number itself matches, and only one of it."""
    text = f"g (float[2,3] x) => (float[2,3] y) {constant} {{ r = Relu (x) y = Mul (r, h) }}"
    assert told in refusal(HALF, text)


def test_a_graph_input_is_no_constant() -> None:
    """A value that the caller gives can be any number."""
    text = "g (float[2,3] x, float h) => (float[2,3] y) { r = Relu (x) y = Mul (r, h) }"
    assert "'h' is not a constant" in refusal(HALF, text)


@pytest.mark.parametrize("digits", ["1.4142135", "1.4142", "1.414", "1.4140625"])
def test_a_constant_matches_within_the_digits_that_exporters_write(digits: str) -> None:
    """The square root of 2 in eight, five and four digits, and in float16."""
    pattern = "(x) => (y) { r = Relu (x) c = Constant <value = float {1.4142135}> () y = Div (r, c) }"
    text = f"g (float[3] x) => (float[3] y) <float c = {{{digits}}}> {{ r = Relu (x) y = Div (r, c) }}"
    assert isinstance(match(pattern, text), Match)
    assert not isinstance(match(pattern, text.replace(digits, "1.42")), Match)


def test_a_constant_whose_value_is_open_is_bound() -> None:
    """`value_float: float = @c` takes the number, whatever it is, and refuses a vector."""
    pattern = "(x) => (y) { r = Relu (x) c = Constant <value_float: float = @c> () y = Mul (r, c) }"
    text = "g (float[2] x) => (float[2] y) <float[1] c = {0.25}> { r = Relu (x) y = Mul (c, r) }"
    found = match(pattern, text)
    assert isinstance(found, Match)
    assert found.labels == {"c": 0.25}
    assert "the rule wants one number" in refusal(pattern, text.replace("float[1] c = {0.25}", "float[2] c = {1,2}"))


# ---- optional inputs


def test_an_input_that_a_rule_does_not_name_must_be_absent() -> None:
    """A Conv with bias does not match a Conv without."""
    pattern = "(x, w) => (y) { c = Conv <_: string = @conv> (x, w) y = Relu (c) }"
    model = """g (float[1,1,2,2] x) => (float[1,1,2,2] y)
    <float[1,1,1,1] w = {{2}}, float[1] b = {{1}}> {{ c = Conv ({}) y = Relu (c) }}"""
    assert isinstance(match(pattern, model.format("x, w")), Match)
    assert "has 3 inputs, the rule wants 2" in refusal(pattern, model.format("x, w, b"))


def test_an_input_that_a_rule_names_must_be_there_unless_it_is_optional() -> None:
    """Then an absent one is bound to nothing."""
    pattern = parse_pattern("(x, w, b) => (y) { g = Gemm (x, w, b) y = Relu (g) }", "here")
    text = "g (float[1,1] x) => (float[1,1] y) <float[1,1] w = {2}> { g = Gemm (x, w) y = Relu (g) }"
    assert "lacks the input 'b' of the rule" in refusal(pattern, text)
    found = match(replace(pattern, optional=frozenset({"b"})), text)
    assert isinstance(found, Match)
    assert found.values["b"] == ""


def test_an_empty_input_is_an_absent_one() -> None:
    """Clip(x, "", hi) has no lower limit, though it has three inputs."""
    pattern = "(x, hi) => (y) { r = Exp (x) y = Clip (r, , hi) }"
    model = "g (float[3] x) => (float[3] y) <float lo = {{-1}}, float hi = {{1}}> {{ r = Exp (x) y = Clip ({}) }}"
    assert isinstance(match(pattern, model.format("r, , hi")), Match)
    assert "has the optional input 'lo', the rule wants none" in refusal(pattern, model.format("r, lo, hi"))


@pytest.mark.parametrize(
    ("wanted", "type_", "bits", "is_it"),
    [
        ("0.00001", "float16", 168, True),  # 1.00136e-05
        ("0.00001", "float16", 169, False),
        ("0.3", "bfloat16", 0x3E9A, True),  # 0.30078
        ("0.3", "bfloat16", 0x3E9B, False),
        ("0.000000000001", "float16", 0, False),  # gone: nothing is added any more
        ("100000.0", "float16", 0x7C00, False),  # infinite
    ],
)
def test_a_constant_is_the_number_as_its_own_type_rounds_it(wanted: str, type_: str, bits: int, is_it: bool) -> None:
    """Half types miss a thousandth; what is a step further is another number, and so is one that is gone."""
    pattern = f"(x) => (y) {{ r = Relu (x) c = Constant <value = float {{{wanted}}}> () y = Add (r, c) }}"
    found = match(
        pattern, f"g ({type_}[3] x) => ({type_}[3] y) <{type_} e = {{{bits}}}> {{ r = Relu (x) y = Add (r, e) }}"
    )
    assert isinstance(found, Match) == is_it


# ---- what is read elsewhere

CHAIN = "(x) => (y) { a = Relu (x) y = Exp (a) }"


def test_a_value_inside_a_pattern_that_is_read_elsewhere_is_not_lost() -> None:
    """The match is refused, and names the other reader."""
    text = "g (float[3] x) => (float[3] y, float[3] z) { a = Relu (x) y = Exp (a) first = Sqrt (a) z = Tanh (first) }"
    assert "value 'a' is also read by Sqrt first" in refusal(CHAIN, text)


def test_a_graph_output_inside_a_pattern_is_not_lost() -> None:
    """A graph output must be computed whatever reads it."""
    assert "value 'a' is a graph output" in refusal(
        CHAIN, "g (float[3] x) => (float[3] y, float[3] a) { a = Relu (x) y = Exp (a) }"
    )


def test_a_value_read_by_a_subgraph_is_not_lost() -> None:
    """The branch of an If reads outer values by name; that is a reader too."""
    text = """g (float[3] x, bool c) => (float[3] y, float[3] z) {
      a = Relu (x) y = Exp (a)
      z = If (c) <then_branch = t () => (float[3] p) { p = Neg (a) },
                   else_branch = e () => (float[3] q) { q = Abs (x) }>
    }"""
    assert "value 'a' is also read by If z" in refusal(CHAIN, text)


# ---- dimensions and types


def test_a_dimension_name_is_one_number_everywhere() -> None:
    """[N,C] and [N,C] are the same shape and fuse; [N,C] and [M,C] are not known to be, and do not."""
    same = "g (float[N,C] x, float[N,C] z) => (float[N,C] y) { a = Relu (x) y = Add (a, z) }"
    assert fuses(same, "pointwise") == ["{Relu Add}"]
    other = "g (float[N,C] x, float[M,N,C] z) => (float[M,N,C] y) { a = Relu (x) y = Add (a, z) }"
    assert "the kernel runs over" in reasons(other, "pointwise")


def test_the_model_may_call_the_default_domain_ai_onnx() -> None:
    """`ai.onnx` and "" are one domain."""
    text = """<ir_version: 8, opset_import: ["ai.onnx" : 17]>
    g (float[3] x) => (float[3] y) { a = Relu (x) y = Exp (a) }"""
    assert fuses(text, "pointwise") == ["{Relu Exp}"]


def test_an_operator_of_another_domain_is_another_operator() -> None:
    """com.microsoft.Gelu is not Gelu."""
    pattern = "(x) => (y) { r = Relu (x) y = Gelu (r) }"
    text = """<ir_version: 8, opset_import: ["" : 20, "com.microsoft" : 1]>
    g (float[3] x) => (float[3] y) { r = Relu (x) y = com.microsoft.Gelu (r) }"""
    assert not isinstance(match(pattern, text), Match)


PARTS = "(x) => (a, b) { p, q = Split <axis = 0, _: string = @split> (x, ) a = Exp (p) b = Exp (q) }"


def test_a_pattern_may_have_several_ends() -> None:
    """What the first output does not depend on is found among the readers; each output keeps its place."""
    text = """g (float[4] x) => (float[2] a, float[2] b) {
      p, q = Split <axis = 0, num_outputs = 2> (x) a = Exp (p) b = Exp (q)
    }"""
    model = parse(text, 18)
    graph = Graph(model.graph, infer(model).graph, 18)
    pattern = parse_pattern(PARTS, "here")
    (found,) = matches(pattern, graph, graph.producers["a"], Trace())
    assert (found.values["a"], found.values["b"]) == ("a", "b")
    assert not list(matches(pattern, graph, graph.producers["b"], Trace()))  # b reads the second part, not the first


def test_a_node_has_all_outputs_that_the_pattern_gives() -> None:
    """A cut in two is no cut in three."""
    said = refusal(
        "(x) => (p, q, r) { p, q, r = Split <axis = 1, _: string = @rest> (x) }",
        """g (float[N,4] x) => (float[N,2] y, float[N,2] z) {
          p, q = Split <axis = 1> (x)
          y = Exp (p)
          z = Exp (q)
        }""",
        13,
    )
    assert "2 outputs" in said
