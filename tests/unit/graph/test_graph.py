"""The index over a graph: producers, readers, constants; and that changes keep it true."""

import gc

import numpy as np
import onnx
import pytest

from onnxfuse.graph.graph import Graph, Node
from onnxfuse.shapes.inference import infer

CHAIN = """g (float[4] x) => (float[4] y) <float[4] w = {1,2,3,4}> {
  a = Add (x, w) b = Relu (a) c = Neg (x) d = Mul (b, c) y = Exp (d)
}"""


def graph(text: str, opset: int = 17) -> Graph:
    """Return the graph of the model in `text`, with its types inferred."""
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]>' + text)
    return Graph(model.graph, infer(model).graph, opset)


def check_index(g: Graph) -> None:
    """The order is topological, and producers, readers and orders say what the nodes say."""
    orders = [n.order for n in g.nodes]
    assert orders == sorted(set(orders))
    assert min(orders) >= 0
    assert g.producers == {o: n for n in g.nodes for o in n.outputs if o}
    for node in g.nodes:
        for value in node.reads:
            assert node in g.readers(value)
            producer = g.producer(value)
            assert producer is None or producer.order < node.order
    for value in {v for n in g.nodes for v in n.reads}:
        assert all(value in r.reads for r in g.readers(value))


def test_producers_and_readers_are_known() -> None:
    """Readers come in topological order, each once."""
    g = graph("g (float[4] x) => (float[4] y) { b = Add (x, x) c = Neg (x) y = Mul (b, c) }")
    assert [n.op for n in g.readers("x")] == ["Add", "Neg"]
    assert g.producer("x") is None
    producer = g.producer("y")
    assert producer is not None
    assert producer.op == "Mul"
    assert g.is_output("y")
    assert not g.is_output("b")


def test_a_replaced_region_leaves_the_index_true() -> None:
    """What the new node depends on goes before it, even from between the nodes that it replaces."""
    g = graph(CHAIN)
    old = [n for n in g.nodes if n.op in ("Add", "Relu", "Mul")]
    new = Node(onnx.helper.make_node("Fused", ["x", "w", "c"], ["d"]))
    g.replace(old, [new])
    check_index(g)
    assert [n.op for n in g.nodes] == ["Neg", "Fused", "Exp"]
    assert all(n.order == -1 for n in old)


def test_a_list_of_nodes_stays_as_it_was_read() -> None:
    """Whatever changes later: what goes over the nodes may change the graph; its size counts those that are there."""
    g = graph(CHAIN)
    before = g.nodes
    kinds = [n.op for n in before]
    add, relu, _, mul, exp = before
    g.replace([add, relu, mul], [Node(onnx.helper.make_node("Fused", ["x", "w", "c"], ["d"]))])
    assert [n.op for n in before] == kinds
    assert g.size == 3
    g.replace([exp], [])
    g.replace(
        [g.producers["d"]],
        [Node(onnx.helper.make_node(op, [v], [o])) for op, v, o in (("P", "c", "p"), ("Q", "p", "d"))],
    )
    assert g.size == 3
    check_index(g)
    assert [n.op for n in g.nodes] == ["Neg", "P", "Q"]
    assert g.size == 3


def test_a_node_may_be_replaced_by_several() -> None:
    """And by none, where nobody reads it any more."""
    g = graph(CHAIN)
    relu = next(n for n in g.nodes if n.op == "Relu")
    parts = [onnx.helper.make_node("Abs", ["a"], ["m"]), onnx.helper.make_node("Identity", ["m"], ["b"])]
    g.replace([relu], [Node(p) for p in parts])
    check_index(g)
    assert [n.op for n in g.nodes] == ["Add", "Abs", "Identity", "Neg", "Mul", "Exp"]


def test_a_place_takes_any_number_of_nodes() -> None:
    """One by one, at both ends of what is there: the order stays one, and those far away are not touched."""
    names = [f"v{i}" for i in range(200)]
    chain = " ".join(f"{o} = Relu ({i})" for i, o in zip(["x", *names], [*names, "y"], strict=True))
    g = graph(f"g (float[4] x) => (float[4] y) {{ {chain} }}")
    away = {n: n.order for n in g.nodes[150:]}
    for i in range(100):
        last = g.producer("v50")
        assert last is not None
        before = onnx.helper.make_node("Neg", [last.inputs[0]], [f"before{i}"])
        after = onnx.helper.make_node("Abs", [f"before{i}"], ["v50"])
        g.replace([last], [Node(before), Node(after)])
    check_index(g)
    assert len(g.nodes) == 301
    assert {n: n.order for n in away} == away


def test_no_two_nodes_have_one_name() -> None:
    """ONNX Runtime refuses them: a node that would have the name of another is called as its output."""
    g = graph(CHAIN)
    add, relu, neg = g.nodes[:3]
    add.proto.name = neg.proto.name = ""
    g.replace([relu], [Node(onnx.helper.make_node("Relu", ["a"], ["b"], "one"))])
    g.replace([neg], [Node(onnx.helper.make_node("Neg", ["x"], ["c"], "one"))])
    again = g.producer("b")
    assert again is not None
    g.replace([again], [Node(onnx.helper.make_node("Relu", ["a"], ["b"], "one"))])
    assert [n.proto.name for n in g.nodes] == ["", "one", "c", "", ""]


def test_a_fresh_name_is_the_first_that_is_free() -> None:
    """Also one that was taken and has gone; and to find the thousandth is not a thousand times the work."""
    g = graph(CHAIN)
    assert [g.fresh("new"), g.fresh("new")] == ["new", "new"]
    asked = []
    g._taken = lambda name, real=g._taken: asked.append(name) or real(name)  # type: ignore[func-returns-value, method-assign, misc]  # it counts, and asks the real one
    for _ in range(500):
        g.add_constant(g.fresh("many"), np.zeros(1, np.float32))
    assert g.fresh("many") == "many_500"
    assert len(asked) < 2000
    for name in ("a", "a_1", "a_2"):
        (exp,) = (n for n in g.nodes if n.op == "Exp")
        made = onnx.helper.make_node("Neg", ["d"], [g.fresh("a")])
        assert made.output[0] == {"a": "a_1", "a_1": "a_2", "a_2": "a_3"}[name]
        g.replace([exp], [Node(made), exp])
    gone = g.producer("a_2")
    assert gone is not None
    g.replace([gone], [])
    assert g.fresh("a") == "a_2"


def test_dead_nodes_go_with_what_only_they_needed() -> None:
    """A chain that nobody reads goes as a whole, in one call."""
    g = graph("g (float[4] x) => (float[4] y) { a = Neg (x) b = Exp (a) c = Relu (b) y = Abs (x) }")
    assert g.eliminate_dead_code() == 3
    check_index(g)
    assert [n.op for n in g.nodes] == ["Abs"]


def test_a_graph_that_did_not_change_keeps_its_messages() -> None:
    """Nothing is dead in it: its nodes are not written back, and those of a changed one are copies."""
    g = graph(CHAIN)
    messages = [*g.proto.node]
    assert g.eliminate_dead_code() == 0
    g.commit()
    assert all(a is b for a, b in zip(g.proto.node, messages, strict=True))
    g.replace([g.nodes[-1]], [Node(onnx.helper.make_node("Log", ["d"], ["y"]))])
    g.commit()
    assert [n.op_type for n in g.proto.node] == ["Add", "Relu", "Neg", "Mul", "Log"]


def test_a_commit_lets_go_of_the_first_copy_of_a_weight() -> None:
    """Also where its elements were counted: weights may be gigabytes."""
    g = graph(CHAIN)
    g.add_constant("k", np.ones((2, 4), np.float32))
    g.replace([g.nodes[-1]], [Node(onnx.helper.make_node("Add", ["d", "k"], ["y"]))])
    assert g.element_count("k") == 8
    first = g.initializers["k"]
    g.commit()
    assert g.initializers["k"] is not first
    assert not [one for one in gc.get_referrers(first) if isinstance(one, tuple)]
    assert g.element_count("k") == 8


def test_a_commit_drops_unread_weights_and_keeps_the_rest_as_it_is() -> None:
    """An unchanged graph is written back byte for byte."""
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]>' + CHAIN)
    before = model.SerializeToString(deterministic=True)
    g = Graph(model.graph, infer(model).graph, 17)
    g.commit()
    assert model.SerializeToString(deterministic=True) == before
    add = next(n for n in g.nodes if n.op == "Add")
    g.replace([add], [Node(onnx.helper.make_node("Identity", ["x"], ["a"]))])
    g.commit()
    assert not model.graph.initializer


def test_a_fresh_name_is_taken_nowhere() -> None:
    """Not by a value here, nor by one of an outer graph, which would be shadowed."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
    g (float[4] x, bool c) => (float[4] y) {
      t = Neg (x)
      y = If (c) <then_branch = b () => (float[4] p) { p = Neg (t) },
                  else_branch = e () => (float[4] q) { q = Abs (x) }>
    }"""
    )
    inferred = infer(model).graph
    outer = Graph(model.graph, inferred, 17)
    branch = next(a.g for a in model.graph.node[1].attribute if a.name == "then_branch")
    inner = Graph(branch, branch, 17, outer)
    assert inner.fresh("p") == "p_1"
    assert inner.fresh("t") == "t_1"
    assert inner.fresh("new") == "new"


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ("value = float[2] {1,2}", [1.0, 2.0]),
        ("value_float = 0.5", 0.5),
        ("value_floats = [0.5, 1.0]", [0.5, 1.0]),
        ("value_int = 3", 3),
        ("value_ints = [3, 4]", [3, 4]),
    ],
)
def test_every_kind_of_constant_node_is_read(node: str, expected: object) -> None:
    """With its type and shape; the values are those of the attribute."""
    g = graph(f"g (float[2] x) => (float[2] y) {{ k = Constant <{node}> () c = Cast <to = 1> (k) y = Add (x, c) }}")
    value = g.constant("k")
    assert value is not None
    np.testing.assert_array_equal(value, np.asarray(expected))
    assert value.shape == np.asarray(expected).shape
    assert g.is_constant("k")
    assert g.element_count("k") == np.asarray(expected).size


def test_a_string_is_a_constant_without_numbers() -> None:
    """It must not be read as one."""
    g = graph('g (float[2] x) => (float[2] y) { k = Constant <value_string = "a"> () y = Neg (x) }')
    assert g.constant("k") is None
    assert g.element_count("k") is None


def test_a_snapshot_has_the_nodes_and_not_the_gaps_of_those_that_went() -> None:
    """The size of a snapshot is that of the graph, also where nodes went since the list of nodes was last read."""
    g = graph(CHAIN)
    old = [n for n in g.nodes if n.op in ("Add", "Relu")]
    g.replace(old, [Node(onnx.helper.make_node("Fused", ["x", "w"], ["b"]))])
    assert g.snapshot().size == g.size == 4


def test_a_drafted_node_changes_nothing_in_the_graph() -> None:
    """It has the order and the name that it would have in place of the old one, which stays."""
    g = graph(CHAIN)
    relu, version = g.nodes[1], g.version
    g.draft(relu, [Node(onnx.helper.make_node("Relu", ["a"], ["b"], name=""))])
    assert (g.version, g.producer("b"), g.readers("a")) == (version, relu, [relu])
    relu.call("same")
    named = graph('g (float[4] x) => (float[4] y) { ["same"] a = Relu (x) ["other"] y = Exp (a) }')
    new = [Node(onnx.helper.make_node("Relu", ["x"], ["a"], name=name)) for name in ("same", "other")]
    named.draft(named.nodes[0], new)
    assert [n.name for n in new] == ["same", "a"]
    assert {n.order for n in new} == {named.nodes[0].order}


def test_a_name_is_that_of_the_message_after_it_was_changed() -> None:
    """A name is read once, and anew where a node gets another one."""
    node = Node(onnx.helper.make_node("Relu", ["a"], ["b"]))
    assert node.name == "b"
    node.call("relu")
    assert (node.name, node.proto.name) == ("relu", "relu")
