"""Nested graphs: the subgraphs that nodes contain, their captured values, and topological sorting."""

import heapq
from collections.abc import Iterator, Sequence

from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TensorProto

from onnxfuse import ops


def bodies(node: NodeProto) -> Iterator[GraphProto]:
    """Yield a node's graph attributes: the branches of If, the bodies of Loop and Scan."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def nodes_of(graph: GraphProto | FunctionProto) -> Iterator[NodeProto]:
    """Yield the nodes of a graph, or of a function, and of all nested bodies."""
    for node in graph.node:
        yield node
        for body in bodies(node) if node.attribute else ():
            yield from nodes_of(body)


def graphs_in(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the nested bodies of a node, in pre-order."""
    for body in bodies(node):
        yield body
        for inner in body.node:
            yield from graphs_in(inner)


def readers_of(graph: GraphProto, value: str) -> Iterator[tuple[GraphProto, NodeProto]]:
    """Yield the nodes that read `value` in a graph and its nested bodies, each with its graph."""
    for node in graph.node:
        if value in node.input:
            yield graph, node
        for body in bodies(node):
            yield from readers_of(body, value)


def defined(graph: GraphProto) -> Iterator[str]:
    """Yield the values that a graph itself defines: its inputs, its weights and its nodes' outputs."""
    yield from (i.name for i in graph.input)
    yield from (t.name for t in graph.initializer)
    yield from (t.values.name for t in graph.sparse_initializer)
    yield from (v for n in graph.node for v in n.output if v)


def constants_of(graph: GraphProto) -> dict[str, TensorProto]:
    """Return the tensors of a graph's initializers and of its Constant nodes, by value name."""
    tensors = {t.name: t for t in graph.initializer}
    for node in graph.node:
        if node.op_type == ops.Constant and node.domain in ("", "ai.onnx"):
            tensors.update((node.output[0], a.t) for a in node.attribute if a.HasField("t"))
    return tensors


def every_name(graph: GraphProto) -> set[str]:
    """Return the values that a graph and all its nested bodies name."""
    return {*defined(graph), *(v for n in graph.node for body in graphs_in(n) for v in defined(body))}


def captured(node: NodeProto) -> list[str]:
    """Return the outer values that the node's subgraphs capture, each once, in order."""
    names: dict[str, None] = {}
    for body in bodies(node):
        inner = {i.name for i in body.input} | {t.name for t in body.initializer}
        inner |= {t.values.name for t in body.sparse_initializer} | {o for n in body.node for o in n.output}
        read = [v for n in body.node for v in (*n.input, *captured(n))] + [o.name for o in body.output]
        names.update(dict.fromkeys(v for v in read if v and v not in inner))
    return list(names)


def in_order(nodes: Sequence[NodeProto]) -> list[NodeProto]:
    """Return the nodes in topological order, otherwise stable.

    Nodes on a cycle stay in their order at the end: such a model cannot run.
    """
    producers = {v: i for i, n in enumerate(nodes) for v in n.output if v}
    needs = [{producers[v] for v in (*n.input, *captured(n)) if v in producers} for n in nodes]
    if all(max(need, default=-1) < i for i, need in enumerate(needs)):
        return list(nodes)
    readers: list[list[int]] = [[] for _ in nodes]
    for i, need in enumerate(needs):
        for j in need:
            readers[j].append(i)
    ready = [i for i, need in enumerate(needs) if not need]
    order = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for reader in readers[i]:
            needs[reader].discard(i)
            if not needs[reader]:
                heapq.heappush(ready, reader)
    return [nodes[i] for i in (*order, *sorted({*range(len(nodes))} - {*order}))]
