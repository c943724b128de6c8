"""Fused ops that become one: a body of all of theirs under names of its own, and a node with all of their metadata."""

import json

import pytest
from onnx import FunctionProto, NodeProto, helper

from onnxfuse.fusion.steps import merge
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model.fused import DOMAIN, FusedOp
from tests.support.small import graph_of, parse


def member(name: str, inputs: list[str], outputs: list[str], nodes: list[str], values: list[str]) -> Node:
    """Return a fused node, with the names of what it replaced and of what it computes inside."""
    proto = helper.make_node(name, inputs, outputs, name=name, domain=DOMAIN)
    for key, value in (("nodes", nodes), ("values", values)):
        proto.metadata_props.add(key=f"{DOMAIN}.{key}", value=json.dumps(value))
    return Node(proto)


def body(inputs: list[str], outputs: list[str], nodes: list[NodeProto], **opsets: int) -> FunctionProto:
    """Return a function at these operator sets; `microsoft` is com.microsoft."""
    imports = [helper.make_opsetid("com.microsoft" if d == "microsoft" else "", v) for d, v in opsets.items()]
    return helper.make_function(DOMAIN, "f", inputs, outputs, nodes, imports)


FIRST = member("First", ["a", "b"], ["m"], ["mul", "relu"], ["p"])
SECOND = member("Second", ["m", "c"], ["y", "z"], ["add"], [])
BODIES = {
    FIRST: body(
        ["x0", "x1"], ["y0"],
        [helper.make_node("Mul", ["x0", "x1"], ["v0"]), helper.make_node("Relu", ["v0"], ["y0"], name="kept")],
        plain=17,
    ),
    SECOND: body(
        ["x0", "x1"], ["y0", "y1"],
        [
            helper.make_node("Transpose", ["x0"], ["inside"], perm=[1, 0]),
            helper.make_node("Add", ["inside", "x1"], ["y0"]),
            helper.make_node("FastGelu", ["x0", ""], ["y1"], domain="com.microsoft"),
        ],
        plain=18, microsoft=1,
    ),
}  # fmt: skip


@pytest.fixture
def graph() -> Graph:
    """Return a graph at operator set 17."""
    return graph_of(parse("g (float[2,2] a, float[2,2] b, float[2,2] c) => (float[2,2] y) { y = Add (a, c) }"))


def test_one_body_computes_what_all_members_do(graph: Graph) -> None:
    """A value between two members is an inner one; inner names are apart, and an operand that is left out stays out."""
    inner = merge.inner_values((FIRST, SECOND))
    assert inner == ["p", "m", "y", "z"]
    formal = merge.formal_names(["a", "b", "c"], ["y", "z"], inner)
    assert formal == {"a": "x0", "b": "x1", "c": "x2", "y": "y0", "z": "y1", "p": "v0", "m": "v1"}
    made = merge.merged_body(graph, (FIRST, SECOND), formal, BODIES)
    assert (list(made.input), list(made.output)) == (["x0", "x1", "x2"], ["y0", "y1"])
    assert [(n.op_type, list(n.input), list(n.output)) for n in made.node] == [
        ("Mul", ["x0", "x1"], ["v0"]),
        ("Relu", ["v0"], ["v1"]),
        ("Transpose", ["v1"], ["p1_inside"]),
        ("Add", ["p1_inside", "x2"], ["y0"]),
        ("FastGelu", ["v1", ""], ["y1"]),
    ]
    assert made.node[1].name == "kept"
    assert made.node[2].attribute[0].ints == [1, 0]
    assert made.node[4].domain == "com.microsoft"


def test_the_newest_operator_set_of_each_domain_is_imported(graph: Graph) -> None:
    """That of the graph, if no member has a newer one; each domain once, in a fixed order."""
    formal = merge.formal_names(["a", "b", "c"], ["y", "z"], merge.inner_values((FIRST, SECOND)))
    made = merge.merged_body(graph, (FIRST, SECOND), formal, BODIES)
    assert [(o.domain, o.version) for o in made.opset_import] == [("", 18), ("com.microsoft", 1)]
    older = merge.merged_body(graph, (FIRST,), formal, BODIES)
    assert [(o.domain, o.version) for o in older.opset_import] == [("", graph.opset)]


def test_a_constant_that_members_share_is_in_the_body_once(graph: Graph) -> None:
    """It is defined by the member that comes first."""
    constant = helper.make_node("Constant", [], ["v0"], value_float=2.0)
    members = [member(f"M{i}", [name], [f"o{i}"], [f"n{i}"], ["two"]) for i, name in enumerate("ab")]
    bodies = {
        m: body(["x0"], ["y0"], [constant, helper.make_node("Mul", ["x0", "v0"], ["y0"])], plain=17) for m in members
    }
    formal = merge.formal_names(["a", "b"], ["o0", "o1"], merge.inner_values(members))
    made = merge.merged_body(graph, members, formal, bodies)
    assert [n.op_type for n in made.node] == ["Constant", "Mul", "Mul"]
    (two,) = made.node[0].output
    assert [list(n.input) for n in made.node[1:]] == [["x0", two], ["x1", two]]


def test_a_shared_constant_is_found_however_near_it_is(graph: Graph) -> None:
    """At the end of one member's body and at the beginning of the next."""
    constant = helper.make_node("Constant", [], ["v0"], value_float=2.0)
    members = [member(f"M{i}", [name], [f"o{i}"], [f"n{i}"], ["two"]) for i, name in enumerate("ab")]
    own = [helper.make_node("Abs", ["x0"], ["y0"]), helper.make_node("Mul", ["x0", "v0"], ["y0"])]
    bodies = {
        members[0]: body(["x0"], ["y0"], [own[0], constant], plain=17),
        members[1]: body(["x0"], ["y0"], [constant, own[1]], plain=17),
    }
    formal = merge.formal_names(["a", "b"], ["o0", "o1"], merge.inner_values(members))
    assert [n.op_type for n in merge.merged_body(graph, members, formal, bodies).node] == ["Abs", "Constant", "Mul"]


def test_the_node_says_what_it_replaced(graph: Graph) -> None:
    """The names of all nodes and of all inner values, as undo and explain read them again."""
    op = FusedOp("Merged", "concat", "concat", (1,), (1,), body(["x0"], ["y0"], [], plain=17))
    node = merge.merged_node(op, "here", ["a"], ["y"], ["mul", "relu", "add"], ["p", "m"])
    assert (node.op, node.domain, node.proto.name) == ("Merged", DOMAIN, "here")
    assert (merge.facts(node, "nodes"), merge.facts(node, "values")) == (["mul", "relu", "add"], ["p", "m"])
    assert {p.key: p.value for p in node.proto.metadata_props}[f"{DOMAIN}.rule"] == "concat"
    assert merge.facts(Node(NodeProto(op_type="Relu", output=["r"])), "nodes") == []


def test_an_op_is_named_by_what_computes() -> None:
    """By neither a Transpose nor a Constant."""
    assert merge.first_operators((FIRST, SECOND), BODIES) == ["Mul", "Add"]
