"""Inline static control flow: an If with a constant condition, a Loop with a constant, small trip count.

torch's tracer writes a Loop for operators that ONNX lacks (`tensor_split`: one trip), and torch.jit an If for each
condition on a shape. ONNX Runtime runs a subgraph separately: its nodes fuse with nothing outside, the types of its
results are unknown, and CUDA graphs cannot capture it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node, bodies
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter, rewrite_each
from onnxfuse.model.nested import defined, nodes_of
from onnxfuse.passes.control_flow.constant_sequences import along_one
from onnxfuse.shapes.types import ValueType

MOST = 1000
"""Maximum number of nodes that a Loop may expand to: each trip has its own copies."""


@graph_pass
def constant_control_flow(graph: Graph) -> bool:
    """Inlines the branch that an If is known to take, and Loops with few known trips."""
    return rewrite_each(graph, {ops.If: _branch, ops.Loop: _trips})


def _branch(node: Node, to: Rewriter) -> bool:
    """Inline the branch that an If takes, if it is known."""
    condition = _flag(to.graph, node.inputs[0])
    if condition is None:
        return False
    branch = node.written["then_branch" if condition else "else_branch"]
    assert isinstance(branch, GraphProto)
    if branch.sparse_initializer:
        return False
    _pass_on(node.outputs, _Copy(to).of(branch, {}, ""), to)
    return True


def _trips(node: Node, to: Rewriter) -> bool:
    """Inline all trips of a Loop, if their number is known and they are not too many."""
    body, trips = node.written["body"], _trip_count(to.graph, node)
    assert isinstance(body, GraphProto)
    if trips is None or body.sparse_initializer or trips * sum(1 for _ in nodes_of(body)) > MOST:
        return False
    counter, going, *carried = (i.name for i in body.input)
    collected: list[list[str]] = [[] for _ in body.output[1 + len(carried) :]]
    if collected and not trips:
        return False  # values of zero trips have no known shape
    copy, values = _Copy(to), list(node.inputs[2:])
    for trip in range(trips):
        number = np.full([1] * len(body.input[0].type.tensor_type.shape.dim), trip, np.int64)
        inputs = {counter: to.constant(counter, number), going: to.constant(going, np.array(True))}
        _, *results = copy.of(body, inputs | dict(zip(carried, values, strict=True)), f"_{trip}" if trips > 1 else "")
        values = results[: len(carried)]
        for all_trips, value in zip(collected, results[len(carried) :], strict=True):
            all_trips.append(value)
    for name, all_trips in zip(node.outputs[len(values) :], collected, strict=True):
        stacked = to.add(
            ops.Concat, *along_one(to, ops.Unsqueeze, all_trips, 0, name), axis=0, output=to.value(f"{name}.all")
        )
        values.append(stacked)
    _pass_on(node.outputs, values, to)
    return True


def _trip_count(graph: Graph, node: Node) -> int | None:
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


def _pass_on(outputs: Sequence[str], values: Sequence[str], to: Rewriter) -> None:
    """Forward `values` under the names that their readers use."""
    for name, value in zip(outputs, values, strict=False):
        if name:
            to.replace(name, value)


class _Copy:
    """Copies of subgraph nodes, inlined into the enclosing graph."""

    def __init__(self, to: Rewriter) -> None:
        self.to = to
        self._named = {n.proto.name for n in to.graph.nodes}

    def of(self, body: GraphProto, inputs: Mapping[str, str], suffix: str) -> list[str]:
        """Copy a body's nodes with `inputs` as its inputs; return its outputs. `suffix` makes a trip's names unique."""
        names, graph = dict(inputs), self.to.graph
        for tensor in [t for t in body.initializer if t.name not in inputs]:  # overridden by the Loop's operand
            copy = TensorProto()
            copy.CopyFrom(tensor)
            names[tensor.name] = copy.name = graph.fresh(tensor.name)
            graph.initializers[copy.name] = copy
            graph.types[copy.name] = ValueType(copy.data_type, tuple(copy.dims))
        for node in body.node:
            names |= {o: self.to.value(o) for o in node.output if o}
        for node in body.node:
            proto = NodeProto()
            proto.CopyFrom(node)
            proto.name = self._name(node.name + suffix) if node.name else ""
            _read(proto, names)
            proto.output[:] = [names.get(o, o) for o in node.output]
            self.to.append(proto)
        return [names.get(o.name, o.name) for o in body.output]

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
