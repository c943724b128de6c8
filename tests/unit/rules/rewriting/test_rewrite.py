"""Rewriting to a fixed point: what applies, in which order, what a near miss tells, and rules that never end."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import helper

from onnxfuse.graph.graph import Graph, Node
from onnxfuse.rules.language import rule_file
from onnxfuse.rules.language.rule_file import Rule
from onnxfuse.rules.match.match import Match, Refusal
from onnxfuse.rules.match.report import Applied, OptimizeReport
from onnxfuse.rules.rewriting import rewrite as rewriting
from onnxfuse.rules.rewriting.rewrite import endless, find, rewrite, settle
from onnxfuse.support.errors import RuleError
from tests.support.small import graph_of, parse


@pytest.fixture
def rule(tmp_path: Path) -> Callable[..., Rule]:
    """Return what makes a rule of a pattern and what takes its place."""

    def made(name: str, before: str, after: str, where: str = "") -> Rule:
        path = tmp_path / f"{name}.toml"
        path.write_text(
            f"summary = \"S.\"\n[[rewrite]]\nfrom = '''{before}'''\nto = '''{after}'''\n"
            + (f"where = [{where}]\n" if where else "")
        )
        return rule_file.read(path)

    return made


def model(nodes: str) -> onnx.ModelProto:
    return parse(f"g (float[N,8] x) => (float[N,8] y) {{ {nodes} }}")


def ops(made: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in made.graph.node]


TWICE = ("(x) => (y) { a = Neg (x) y = Neg (a) }", "(x) => (y) { y = Identity (x) }")


def test_rules_apply_until_nothing_changes(rule: Callable[..., Rule]) -> None:
    """What one wrote another one reads; each application is told with the node at which it began."""
    made, report = model("a = Neg (x) b = Neg (a) c = Tanh (b) y = Relu (c)"), OptimizeReport()
    one = rule("twice", *TWICE)
    other = rule("forwarded", "(x) => (y) { i = Identity (x) y = Tanh (i) }", "(x) => (y) { y = Erf (x) }")
    settle(made, [], [other, one], report)
    assert ops(made) == ["Erf", "Relu"]
    assert [(a.rule, a.root) for a in report.applied] == [("twice", "Neg b"), ("forwarded", "Tanh c")]
    assert not report.stopped
    settle(made, [], [other, one], report)
    assert len(report.applied) == 2


def test_what_nearly_matched_is_told_once(rule: Callable[..., Rule]) -> None:
    """With the attempt that came furthest; a condition that fails is further than a node that is missing."""
    made, report = model("a = Neg (x) b = Abs (a) y = Neg (b)"), OptimizeReport()
    long = rule("long", "(x) => (y) { a = Sqrt (x) b = Abs (a) y = Neg (b) }", "(x) => (y) { y = Neg (x) }")
    wide = rule("wide", "(x) => (y) { b = Abs (x) y = Neg (b) }", "(x) => (y) { y = Neg (x) }", '"rank(x) == 3"')
    settle(made, [], [long, wide], report)
    assert ops(made) == ["Neg", "Abs", "Neg"]
    depths = {(n.rule, n.root): n.refusal.depth for n in report.stopped}
    assert len(depths) == len(report.stopped)
    assert depths == {("long", "Neg y"): 2, ("wide", "Neg y"): 2, ("long", "Neg a"): 1, ("wide", "Neg a"): 1}


def test_a_refusal_names_what_lies_before_it(rule: Callable[..., Rule]) -> None:
    """Of a pattern's rest as many nodes as may be its other spelling."""
    graph = graph_of(model("a = Exp (x) b = Abs (a) y = Neg (b)"))
    pattern = rule(
        "long", "(x) => (y) { a = Sqrt (x) b = Abs (a) y = Neg (b) }", "(x) => (y) { y = Neg (x) }"
    ).rewrites[0].source  # fmt: skip
    found = find(graph, pattern, (), graph.nodes[-1])
    assert isinstance(found, Refusal)
    assert (found.depth, found.missing) == (2, 1)
    assert "a" in found.around
    assert find(graph, pattern, (), graph.nodes[-1], found) is None  # no further than that
    graph = graph_of(model("a = Sqrt (x) b = Abs (a) y = Neg (b)"))
    assert isinstance(find(graph, pattern, (), graph.nodes[-1]), Match)


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ([("(x) => (y) { y = Neg (x) }", "(x) => (y) { a = Abs (x) y = Neg (a) }")], "the rule 'r0' feeds itself"),
        ([("(x) => (y) { y = Neg (x) }", "(x) => (y) { y = Abs (x) }"),
          ("(x) => (y) { y = Abs (x) }", "(x) => (y) { y = Neg (x) }")], "the rules 'r1', 'r0' feed each other"),
    ],
)  # fmt: skip
def test_rules_that_do_not_end_are_told(rules: list[tuple[str, str]], told: str, rule: Callable[..., Rule]) -> None:
    """By their names, with what to do."""
    made = [rule(f"r{n}", *texts) for n, texts in enumerate(rules)]
    with pytest.raises(RuleError, match=told) as raised:
        settle(model("y = Neg (x)"), [], made, OptimizeReport())
    assert "Let `where`" in raised.value.hint


def test_a_graph_that_goes_in_circles_is_known_by_what_it_computes(rule: Callable[..., Rule]) -> None:
    """Long before the last round, whatever its values are called by then."""
    report = OptimizeReport()
    rules = [
        rule("there", "(x) => (y) { y = Neg (x) }", "(x) => (y) { y = Abs (x) }"),
        rule("back", "(x) => (y) { y = Abs (x) }", "(x) => (y) { y = Neg (x) }"),
    ]
    with pytest.raises(RuleError, match="the graph goes in circles"):
        rewrite(graph_of(model("y = Neg (x)")), [], rules, report)
    assert len(report.applied) == 2 * rewriting.SEEN - 1


def test_passes_that_undo_each_other_are_a_fault_of_ours() -> None:
    """Not of any rule."""

    def turn(graph: Graph) -> bool:
        (node,) = graph.nodes
        graph.replace([node], [Node(helper.make_node("Abs" if node.op == "Neg" else "Neg", ["x"], ["y"]))])
        return True

    with pytest.raises(AssertionError, match="built-in passes undo each other: the graph goes in circles"):
        rewrite(graph_of(model("y = Neg (x)")), [turn], [], OptimizeReport())


def test_the_error_names_the_rules_that_ran_last() -> None:
    """Each once."""
    ran = [Applied(name, "", ()) for name in ("a", "b", "a")]
    assert str(endless(ran, "it grows")).startswith("the rules 'a', 'b' feed each other: it grows\n")
    assert str(endless(ran[:1], "it grows")).startswith("the rule 'a' feeds itself: it grows\n")


def test_the_last_passes_run_where_the_rules_have_ended(rule: Callable[..., Rule]) -> None:
    """And the rules go on if they changed anything."""
    seen = list[list[str]]()

    def turn(graph: Graph) -> bool:
        seen.append([n.op for n in graph.nodes])
        (node,) = (n for n in graph.nodes if n.outputs == ("y",))
        if node.op != "Exp":
            return False
        graph.replace([node], [Node(helper.make_node("Neg", list(node.inputs), ["y"]))])
        return True

    made = model("a = Neg (x) y = Exp (a)")
    settle(made, [], [rule("twice", *TWICE)], OptimizeReport(), last=[turn])
    assert ops(made) == ["Identity"]
    assert seen == [["Neg", "Exp"], ["Identity"]]


def test_simplifications_run_before_the_rules(rule: Callable[..., Rule]) -> None:
    """What is dead then is gone: an extra reader would keep a node from its rule."""
    made, report = model("a = Neg (x) e = Exp (a) y = Neg (a)"), OptimizeReport()
    settle(made, [lambda graph: False], [rule("twice", *TWICE)], report)
    assert ops(made) == ["Identity"]
    assert [a.rule for a in report.applied] == ["twice"]
