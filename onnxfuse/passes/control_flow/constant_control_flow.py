"""Inline static control flow: an If with a constant condition, a Loop with a constant, small trip count.

torch's tracer writes a Loop for operators that ONNX lacks (`tensor_split`: one trip), and torch.jit an If for each
condition on a shape. ONNX Runtime runs a subgraph separately: its nodes fuse with nothing outside, the types of its
results are unknown, and CUDA graphs cannot capture it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, helper

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node, bodies
from onnxfuse.model.nested import defined, nodes_of
from onnxfuse.passes.rewriting.node_replacement import Written, along_one, replace_each
from onnxfuse.shapes.types import UNKNOWN, ValueType

MOST = 1000
"""Maximum number of nodes that a Loop may expand to: each trip has its own copies."""


def constant_control_flow(graph: Graph) -> bool:
    """Inline the branch of a constant If, and the trips of a constant Loop; return whether any were inlined."""
    return replace_each(graph, _FLATTENED)


def _branch(graph: Graph, node: Node) -> list[NodeProto] | None:
    """Return the nodes of the branch that an If takes; None if unknown."""
    condition = _flag(graph, node.inputs[0])
    if condition is None:
        return None
    branch = node.written["then_branch" if condition else "else_branch"]
    assert isinstance(branch, GraphProto)
    if branch.sparse_initializer:
        return None
    copy = _Copy(graph)
    given = copy.of(branch, {}, "")
    return copy.nodes + _passed(node.outputs, given)


def _trips(graph: Graph, node: Node) -> list[NodeProto] | None:
    """Return the nodes of all trips of a Loop; None if the count is unknown or they are too many."""
    body, trips = node.written["body"], _known_trips(graph, node)
    assert isinstance(body, GraphProto)
    if trips is None or body.sparse_initializer or trips * sum(1 for _ in nodes_of(body)) > MOST:
        return None
    place, going, *carried = (i.name for i in body.input)
    collected: list[list[str]] = [[] for _ in body.output[1 + len(carried) :]]
    if collected and not trips:
        return None  # values of zero trips have no known shape
    copy, values = _Copy(graph), list(node.inputs[2:])
    for trip in range(trips):
        number = np.full([1] * len(body.input[0].type.tensor_type.shape.dim), trip, np.int64)
        given = {place: copy.constant(place, number), going: copy.constant(going, np.array(True))}
        _, *found = copy.of(body, given | dict(zip(carried, values, strict=True)), f"_{trip}" if trips > 1 else "")
        values = found[: len(carried)]
        for all_trips, value in zip(collected, found[len(carried) :], strict=True):
            all_trips.append(value)
    stacked = [
        copy.stacked(name, all_trips) for name, all_trips in zip(node.outputs[len(values) :], collected, strict=True)
    ]
    return copy.nodes + _passed(node.outputs, [*values, *stacked])


def _known_trips(graph: Graph, node: Node) -> int | None:
    """Return a Loop's trip count; None if it depends on computed values."""
    body = node.written["body"]
    assert isinstance(body, GraphProto)
    count = graph.constant(node.inputs[0])
    begins = _flag(graph, node.inputs[1]) if node.inputs[1] else True
    if count is None or count.size != 1 or begins is None:
        return None
    trips = max(int(count.reshape(-1)[0]), 0) if begins else 0
    return trips if trips <= 1 or _goes_on(graph, body) else None


def _goes_on(graph: Graph, body: GraphProto) -> bool:
    """Return whether the condition that a trip yields is always true."""
    producers = {o: n for n in body.node for o in n.output}
    value = body.output[0].name
    while (node := producers.get(value)) is not None and node.op_type == ops.Identity and not node.domain:
        value = node.input[0]
    if value == body.input[1].name:
        return True
    if value in producers or any(t.name == value for t in body.initializer):
        inside = GraphProto()
        inside.CopyFrom(body)
        return bool(_flag(Graph(inside, inside, graph.opset, graph), value))
    return bool(_flag(graph, value))


def _flag(graph: Graph, value: str) -> bool | None:
    """Return a constant condition's value; None if it is not constant."""
    array = graph.constant(value)
    return bool(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


_FLATTENED: dict[str, Written] = {ops.If: _branch, ops.Loop: _trips}


def _passed(outputs: tuple[str, ...], values: list[str]) -> list[NodeProto]:
    """Return Identity nodes that forward `values` under the names that their readers use."""
    pairs = zip(outputs, values, strict=False)
    return [helper.make_node(ops.Identity, [value], [name], name) for name, value in pairs if name]


class _Copy:
    """Copies of subgraph nodes, inlined into the enclosing graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[NodeProto] = []
        self._named = {n.proto.name for n in graph.nodes}

    def constant(self, base: str, array: np.ndarray) -> str:
        """Return the name of a new constant."""
        name = self.graph.fresh(base)
        self.graph.add_constant(name, array)
        return name

    def of(self, body: GraphProto, given: Mapping[str, str], suffix: str) -> list[str]:
        """Copy a body's nodes with `given` as its inputs; return its outputs. `suffix` makes a trip's names unique."""
        names = dict(given)
        for tensor in [t for t in body.initializer if t.name not in given]:  # overridden by the Loop's operand
            copy = TensorProto()
            copy.CopyFrom(tensor)
            names[tensor.name] = copy.name = self._claimed(tensor.name)
            self.graph.initializers[copy.name] = copy
            self.graph.types[copy.name] = ValueType(copy.data_type, tuple(copy.dims))
        for node in body.node:
            names |= {o: self._claimed(o) for o in node.output if o}
        for node in body.node:
            proto = NodeProto()
            proto.CopyFrom(node)
            proto.name = self._name(node.name + suffix) if node.name else ""
            _read(proto, names)
            proto.output[:] = [names.get(o, o) for o in node.output]
            self.nodes.append(proto)
        return [names.get(o.name, o.name) for o in body.output]

    def stacked(self, base: str, values: list[str]) -> str:
        """Return values concatenated along a new leading axis."""
        nodes, apart = along_one(self.graph, ops.Unsqueeze, values, 0, base)
        joined = self._claimed(f"{base}.all")
        self.nodes += [*nodes, helper.make_node(ops.Concat, apart, [joined], joined, axis=0)]
        return joined

    def _claimed(self, base: str) -> str:
        """Return a reserved fresh name, before any node produces it."""
        name = self.graph.fresh(base)
        self.graph.types[name] = UNKNOWN
        return name

    def _name(self, base: str) -> str:
        """Return a unique node name."""
        name = next(n for n in _counted(base) if n not in self._named)
        self._named.add(name)
        return name


def _counted(base: str) -> Iterator[str]:
    yield base
    number = 1
    while True:
        yield f"{base}_{number}"
        number += 1


def _read(node: NodeProto, names: Mapping[str, str]) -> None:
    """Rename the inputs of a node, and captured values in its subgraphs."""
    node.input[:] = [names.get(v, v) for v in node.input]
    for body in bodies(node):
        own = {*defined(body)}
        outer = {old: new for old, new in names.items() if old not in own}
        for inner in body.node:
            _read(inner, outer)
        for output in body.output:
            output.name = outer.get(output.name, output.name)
