"""Nodes are found by every name that they have, and what any rule did with them is told."""

import pytest
from onnx import ModelProto

from onnxfuse.graph.lost_types import Lost
from onnxfuse.rules.match import node_lookup
from onnxfuse.rules.match.cause import Cause
from onnxfuse.rules.match.node_lookup import NodeNames, RequestedNodes, fused_ops_by_node
from onnxfuse.rules.match.refusal import Refusal
from onnxfuse.rules.match.report import Applied, Near, OptimizeReport
from onnxfuse.support.errors import UsageError
from tests.support.small import optimize, parse

RANK = Cause("rank", "x", seen="2", wanted="3")
SPELLED = Cause("operator", seen="Mul", wanted="Add")


@pytest.fixture
def model() -> ModelProto:
    """Return a model whose nodes have names that are not those of their values."""
    made = parse("g (float[N,8] x) => (float[N,8] y) { a = Exp (x) b = Neg (a) y = Softmax (b) }")
    for node, name in zip(made.graph.node, ("enc/exp", "enc/neg", "head/softmax"), strict=True):
        node.name = name
    return made


def found(model: ModelProto, query: str, report: OptimizeReport | None = None, **more: list[str]) -> RequestedNodes:
    """Return what is found in a model that nothing is fused in."""
    return NodeNames(model, (), "m.onnx").find(query, report or OptimizeReport(), **more)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("enc/exp", {"enc/exp"}),
        ("a", {"enc/exp"}),
        ("Exp enc/exp", {"enc/exp"}),
        # an input of the graph stands for the nodes that read it
        ("x", {"enc/exp"}),
        ("enc/*", {"enc/exp", "enc/neg"}),
        ("?", {"enc/exp", "enc/neg", "head/softmax"}),
        ("head/soft???", {"head/softmax"}),
        # patterns of what is printed, too, and operators
        ("Exp *", {"enc/exp"}),
        ("Exp*", {"enc/exp"}),
        ("* head/*", {"head/softmax"}),
        ("Neg", {"enc/neg"}),
    ],
)
def test_a_node_has_many_names(model: ModelProto, query: str, names: set[str]) -> None:
    """Its own, that of its operator with it, its operator, those of its values, and patterns of all of them."""
    assert found(model, query).nodes == names


def test_a_name_comes_before_the_operator_of_that_name(model: ModelProto) -> None:
    """A node may be called as an operator: its name is meant."""
    model.graph.node[0].name = "Neg"
    assert found(model, "Neg").nodes == {"Neg"}


def test_an_unknown_name_suggests_the_nearest(model: ModelProto) -> None:
    """And says in which file there is none such."""
    with pytest.raises(UsageError, match=r"m\.onnx: has no node and no value called 'enc/ex'.*enc/exp") as raised:
        found(model, "enc/ex")
    assert "* and ?" in raised.value.hint
    with pytest.raises(UsageError, match="the model: has no node"):
        NodeNames(model, (), model).find("nothing", OptimizeReport())


def test_names_of_the_report_are_found_too(model: ModelProto) -> None:
    """Of fused ops, of nodes that are gone from the model, and of values in reasons."""
    report = OptimizeReport(
        applied=[Applied("gelu", "onnxfuse:gelu", ("Erf old/erf", "Mul old/mul"))],
        stopped=[Near("norm", "Div d", Refusal("stop", Cause("not constant", "scale"), 1, 3))],
    )
    assert found(model, "onnxfuse:gelu", report).nodes == {"old/erf", "old/mul"}
    assert found(model, "Erf old/erf", report).nodes == {"old/erf"}
    assert found(model, "old/mul", report).nodes == {"old/mul"}
    assert found(model, "scale", report).nodes == {"stop"}


def test_a_node_that_no_rule_took_and_that_is_gone_was_removed(model: ModelProto) -> None:
    """By a pass, such as an identity; one that was fused is not removed."""
    remaining = ["head/softmax"]
    assert found(model, "enc/exp", remaining=remaining).is_removed
    assert not found(model, "head/softmax", remaining=remaining).is_removed
    fused = OptimizeReport(applied=[Applied("r", "op", ("Exp enc/exp",))])
    assert not found(model, "enc/exp", fused, remaining=remaining).is_removed
    assert not found(model, "enc/exp").is_removed


def test_a_fused_op_is_found_by_what_it_replaced(model: ModelProto) -> None:
    """With its rule and its body; a rule that is not given here is told."""
    made, _ = optimize(model, "softmax")
    (inside,) = fused_ops_by_node(made, {"softmax"})
    assert inside.original_nodes == ("Exp enc/exp", "Neg enc/neg", "Softmax head/softmax")
    assert inside.verdict.endswith("which replaces Exp + Neg + Softmax")
    assert len(inside.body) == 3
    for query in (inside.op, inside.node):
        request = NodeNames(made, (inside,), "m.onnx").find(query, OptimizeReport())
        assert request.inside == (inside,)
        assert request.nodes >= {"enc/exp", "enc/neg", "head/softmax"}
    (strange,) = fused_ops_by_node(made, {"gelu"})
    assert strange.verdict.endswith("made by rule 'softmax', which is not given here: --rules FOLDER")
    assert node_lookup.undoable(made) == {made.graph.node[0].output[0]}
    assert node_lookup.undoable(model) == set()


def near(rule: str, root: str, depth: int, size: int, **facts: object) -> Near:
    """Return an attempt."""
    cause = facts.pop("cause", SPELLED)
    return Near(rule, root, Refusal("stop", cause, depth, size)._replace(**facts))  # type: ignore[arg-type]  # the fields are those of Refusal


REQUEST = RequestedNodes(frozenset({"n"}))


def test_attempts_that_reached_a_node_are_its_attempts() -> None:
    """Wherever they began; one beside it counts if more was matched than is missing. Of each rule the furthest."""
    report = OptimizeReport(
        stopped=[
            near("root", "Div n", 1, 4),
            near("root", "Div n2", 3, 4, nodes=("n",)),
            near("stopped", "Div d", 3, 4, node="n"),
            near("beside", "Div d", 3, 4, around=("n",)),
            near("too little", "Div d", 1, 4, around=("n",)),
            near("elsewhere", "Div d", 3, 4),
        ]
    )
    told = node_lookup.attempts(report, REQUEST)
    assert {a.rule for a in told} == {"root", "stopped", "beside"}
    assert next(a for a in told if a.rule == "root").refusal.depth == 3


def test_the_rows_of_a_node_say_how_far_each_rule_came() -> None:
    """With what grew up to it; attempts that say nothing only if there is nothing else, or all are asked for."""
    telling = near("norm", "Div n", 3, 4, nodes=("n",), cause=RANK)
    silent = near("gelu", "Mul n", 1, 8)
    stop = Refusal("n", Cause("outside", seen="has another shape"), 2)
    grown = Applied("softmax", "onnxfuse:softmax", ("Softmax s",), stops=(stop,))
    report = OptimizeReport(applied=[grown], stopped=[telling, silent])
    rows = node_lookup.rows(report, REQUEST, (), everything=False)
    assert rows == [
        ("3 of 4", "norm", "stop", node_lookup.why(telling, ())),
        ("beside", "softmax", "n", "onnxfuse:softmax: has another shape"),
    ]
    assert len(node_lookup.rows(report, REQUEST, (), everything=True)) == 3
    alone = OptimizeReport(stopped=[silent])
    assert [row[1] for row in node_lookup.rows(alone, REQUEST, (), everything=False)] == ["gelu"]
    took = OptimizeReport(applied=[Applied("r", "op", ("Mul n",))], stopped=[silent])
    assert node_lookup.rows(took, REQUEST, (), everything=False) == []


def test_rules_that_took_nodes_are_counted() -> None:
    """Alone or with others; several of one kind in one line."""
    pair = [Applied("gelu", "op", (f"Erf n{i}", f"Mul m{i}")) for i in range(2)]
    report = OptimizeReport(applied=[*pair, Applied("cast", "", ("Cast c",))])
    request = RequestedNodes(frozenset({"n0", "n1", "c"}))
    assert node_lookup.took_nodes(report, request) == ["gelu took 2 of them with Erf + Mul", "cast took it alone"]


def test_a_type_that_is_lost_before_an_attempt_is_its_cause() -> None:
    """The value at which it is lost, and what would mend it; elsewhere the reason stays."""
    lost = Lost("v", "rank", "made by Mine m", frozenset({"stop"}))
    attempt = near("norm", "Div n", 3, 4, cause=Cause("unknown", "the rank of 'x'"))
    told = node_lookup.why(attempt, (lost,))
    assert "types are lost at 'v', made by Mine m" in told
    assert told.splitlines()[1] == f"-> {lost.mend}"
    assert "lost" not in node_lookup.why(near("norm", "Div n", 3, 4, cause=RANK), (lost,))
    assert "lost" not in node_lookup.why(attempt, (Lost("v", "rank", "made", frozenset({"other"})),))


def test_many_operators_are_counted() -> None:
    """A dozen are listed one by one."""
    assert node_lookup.operators([f"Add a{n}" for n in range(2)]) == "Add + Add"
    assert node_lookup.operators([*(f"Add a{n}" for n in range(12)), "Mul m"]) == "12 Add, 1 Mul"
