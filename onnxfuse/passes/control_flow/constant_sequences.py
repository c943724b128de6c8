"""Replace reads of a sequence at a constant index by the inserted value.

Exporters write sequences for a model's lists of tensors: pieces of a Split, outputs of layers, states. Sequences live
on the CPU in ONNX Runtime, and the types of their elements are unknown.
"""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, helper

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.passes.rewriting.node_replacement import AXES_ARE_READ, Written, along_one, replace_each

LONGEST = 256
"""Maximum number of pieces of a Split."""


def constant_sequences(graph: Graph) -> bool:
    """Replace element access, length and Concat of constant sequences; return whether any were replaced."""
    return replace_each(graph, _WRITTEN)


def _element(graph: Graph, node: Node) -> list[NodeProto] | None:
    elements, place = _elements(graph, node.inputs[0]), _number(graph, node.inputs[1])
    if elements is None or place is None or not -len(elements) <= place < len(elements):
        return None
    return [_identity(elements[place], node)]


def _length(graph: Graph, node: Node) -> list[NodeProto] | None:
    elements = _elements(graph, node.inputs[0])
    if elements is None:
        return None
    name = graph.fresh(f"{node.outputs[0]}.length")
    graph.add_constant(name, np.array(len(elements), np.int64))
    return [_identity(name, node)]


def _side_by_side(graph: Graph, node: Node) -> list[NodeProto] | None:
    elements, attributes = _elements(graph, node.inputs[0]), graph.attributes(node)
    # ONNX Runtime skips a tensor without elements, of whatever rank, in a sequence, and refuses it in a Concat.
    if not elements or len(ranks := {graph.type(v).rank for v in elements}) > 1 or None in ranks:
        return None
    axis, (output,) = int(str(attributes["axis"])), node.outputs
    apart: list[NodeProto] = []
    if attributes["new_axis"]:
        apart, elements = along_one(graph, ops.Unsqueeze, elements, axis, output)
    return [*apart, helper.make_node(ops.Concat, elements, [output], node.proto.name, axis=axis)]


def _pieces(graph: Graph, node: Node) -> list[NodeProto] | None:
    """Return a Split and the sequence of its outputs, if the lengths of the pieces are known."""
    (output,), attributes = node.outputs, graph.attributes(node)
    lengths, axis = _lengths(graph, node), int(str(attributes["axis"]))
    if not lengths or len(lengths) > LONGEST:
        return None
    each = [graph.fresh(f"{output}.{i}") for i in range(len(lengths))]
    if graph.opset >= AXES_ARE_READ:
        name = graph.fresh(f"{output}.lengths")
        graph.add_constant(name, np.array(lengths, np.int64))
        split = helper.make_node(ops.Split, [node.inputs[0], name], each, node.proto.name, axis=axis)
    else:
        split = helper.make_node(ops.Split, [node.inputs[0]], each, node.proto.name, axis=axis, split=lengths)
    kept = len(node.inputs) > 1 or bool(attributes["keepdims"])
    apart, elements = ([], each) if kept else along_one(graph, ops.Squeeze, each, axis, output)
    return [split, *apart, helper.make_node(ops.SequenceConstruct, elements, [output])]


_WRITTEN: dict[str, Written] = {
    ops.SequenceAt: _element, ops.SequenceLength: _length, ops.ConcatFromSequence: _side_by_side,
    ops.SplitToSequence: _pieces,
}  # fmt: skip


def _lengths(graph: Graph, node: Node) -> list[int] | None:
    """Return the extents of a SplitToSequence's pieces along its axis; None if unknown."""
    shape = graph.type(node.inputs[0]).shape
    extent = None if shape is None else shape[int(str(graph.attributes(node)["axis"]))]
    asked = graph.constant(node.inputs[1]) if len(node.inputs) > 1 else np.array(1)
    if asked is None:
        return None
    if asked.ndim:
        return [int(n) for n in asked]
    step = int(asked)
    return [min(step, extent - n) for n in range(0, extent, step)] if isinstance(extent, int) and step > 0 else None


def _elements(graph: Graph, sequence: str) -> list[str] | None:
    """Return the values in a sequence; None if unknown."""
    changes: list[Node] = []
    while (node := graph.producer(sequence)) is not None and node.op in (
        ops.SequenceInsert,
        ops.SequenceErase,
        ops.Identity,
    ):
        changes.append(node)
        sequence = node.inputs[0]
    if node is None or node.domain or node.op not in (ops.SequenceEmpty, ops.SequenceConstruct):
        return None
    elements = list(node.inputs)
    for change in reversed(changes):
        if change.op == ops.Identity:
            continue
        adds = change.op == ops.SequenceInsert
        at = change.inputs[1 + adds] if len(change.inputs) > 1 + adds else ""
        place = _number(graph, at) if at else len(elements) - (not adds)
        if place is None or not -len(elements) <= place < len(elements) + adds:
            return None
        if adds:
            elements.insert(place, change.inputs[1])
        else:
            del elements[place]
    return elements


def _number(graph: Graph, value: str) -> int | None:
    array = graph.constant(value)
    return int(array.reshape(-1)[0]) if array is not None and array.size == 1 else None


def _identity(value: str, node: Node) -> NodeProto:
    return helper.make_node(ops.Identity, [value], [node.outputs[0]], node.proto.name)
