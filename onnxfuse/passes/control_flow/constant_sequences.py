"""Replace reads of a sequence at a constant index by the inserted value.

Exporters write sequences for a model's lists of tensors: pieces of a Split, outputs of layers, states. Sequences live
on the CPU in ONNX Runtime, and the types of their elements are unknown.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter, rewrite_each

LONGEST = 256
"""Maximum number of pieces of a Split."""


@graph_pass
def constant_sequences(graph: Graph) -> bool:
    """Replaces reads of a sequence at a known index by the value inserted there."""
    return rewrite_each(graph, {
        ops.SequenceAt: _element, ops.SequenceLength: _length, ops.ConcatFromSequence: _concatenated,
        ops.SplitToSequence: _pieces,
    })  # fmt: skip


def _element(node: Node, to: Rewriter) -> bool:
    elements, index = _elements(to.graph, node.inputs[0]), _number(to.graph, node.inputs[1])
    if elements is None or index is None or not -len(elements) <= index < len(elements):
        return False
    to.replace(node.outputs[0], elements[index])
    return True


def _length(node: Node, to: Rewriter) -> bool:
    elements = _elements(to.graph, node.inputs[0])
    if elements is None:
        return False
    to.replace(node.outputs[0], to.constant(f"{node.outputs[0]}.length", np.array(len(elements), np.int64)))
    return True


def _concatenated(node: Node, to: Rewriter) -> bool:
    elements, attributes = _elements(to.graph, node.inputs[0]), to.graph.attributes(node)
    # ONNX Runtime skips a tensor without elements, of whatever rank, in a sequence, and refuses it in a Concat.
    if not elements or len(ranks := {to.graph.type(v).rank for v in elements}) > 1 or None in ranks:
        return False
    axis = int(str(attributes["axis"]))
    if attributes["new_axis"]:
        elements = along_one(to, ops.Unsqueeze, elements, axis, node.outputs[0])
    to.add(ops.Concat, *elements, axis=axis, output=node.outputs)
    return True


def _pieces(node: Node, to: Rewriter) -> bool:
    """Write a Split and the sequence of its outputs, if the lengths of the pieces are known."""
    (output,), attributes = node.outputs, to.graph.attributes(node)
    lengths, axis = _lengths(to.graph, node), int(str(attributes["axis"]))
    if not lengths or len(lengths) > LONGEST:
        return False
    elements = [to.value(f"{output}.{i}") for i in range(len(lengths))]
    to.add(ops.Split, node.inputs[0], axis=axis, split=lengths, output=elements)
    if len(node.inputs) < 2 and not attributes["keepdims"]:
        elements = along_one(to, ops.Squeeze, elements, axis, output)
    to.add(ops.SequenceConstruct, *elements, output=output)
    return True


def along_one(to: Rewriter, op: str, values: Sequence[str], axis: int, base: str) -> list[str]:
    """Add a unit axis to each value (Unsqueeze) or remove it (Squeeze), and return the results."""
    return [to.add(op, value, axes=[axis], hint=f"{base}.apart_{i}") for i, value in enumerate(values)]


def _lengths(graph: Graph, node: Node) -> list[int] | None:
    """Return the extents of a SplitToSequence's pieces along its axis; None if unknown."""
    shape = graph.type(node.inputs[0]).shape
    extent = None if shape is None else shape[int(str(graph.attributes(node)["axis"]))]
    split = graph.constant(node.inputs[1]) if len(node.inputs) > 1 else np.array(1)
    if split is None:
        return None
    if split.ndim:
        return [int(n) for n in split]
    step = int(split)
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
        index = _number(graph, at) if at else len(elements) - (not adds)
        if index is None or not -len(elements) <= index < len(elements) + adds:
            return None
        if adds:
            elements.insert(index, change.inputs[1])
        else:
            del elements[index]
    return elements


def _number(graph: Graph, value: str) -> int | None:
    array = graph.constant(value)
    return int(array.reshape(-1)[0]) if array is not None and array.size == 1 else None
