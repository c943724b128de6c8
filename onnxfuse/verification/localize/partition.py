"""Partition two models at the values that both compute under one name into small pairs of equivalent submodels.

A fused model preserves the names of the values that it still computes. Between them are the parts that a rule changed.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

from onnxfuse import ops
from onnxfuse.graph.graph import bodies, captured
from onnxfuse.model.derived_names import original_name
from onnxfuse.model.functions import Key, called, functions_of
from onnxfuse.model.tf32 import is_strict_fp32, set_strict_fp32
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import value_types
from onnxfuse.verification.localize.anchors import is_anchor

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Segment:
    """The nodes of both models between the same values."""

    inputs: tuple[str, ...]
    """Values of both models that are read by the nodes of either."""
    outputs: tuple[str, ...]
    """Values of both models that the nodes of both compute."""
    original: tuple[int, ...]
    """Indices of the nodes in the original's graph."""
    fused: tuple[int, ...]
    """Indices of the nodes in the fused model's graph."""


def windows(original: ModelProto, fused: ModelProto) -> list[Segment]:
    """Return the windows in which the models differ, in the order in which the fused model computes them.

    A window is as small as the shared names allow: from one node of the fused model back to the nearest shared values.
    What the fused model's nodes compute on the way, in whatever form, the original's compute, too: where the one rounds
    to integers and the other is given them, both would not begin with the same. Windows whose nodes and weights are equal in both models are omitted.
    """
    ours, theirs = _Producers(original), _Producers(fused)
    shared = {v for v in ours.values & theirs.values if _same_type(ours.types.get(v), theirs.types.get(v))}
    segments = []
    for node in fused.graph.node:
        outputs = tuple(o for o in node.output if o in shared and o in theirs.producer)
        if not outputs:
            continue
        cuts = shared - set(outputs)
        mine, read_here = theirs.cone(outputs, cuts)
        inside = {original_name(o)[0] for n in mine for o in theirs.nodes[n].output} - read_here
        original_nodes, read_there = ours.cone(outputs, cuts - inside)
        if ours.identity(original_nodes) != theirs.identity(mine):
            segments.append(Segment(tuple(sorted(read_here | read_there)), outputs, tuple(original_nodes), tuple(mine)))
    return segments


def differing(original: ModelProto, fused: ModelProto, window: Segment) -> list[int]:
    """Return the indices of the fused model's nodes in `window` that the original does not have there, without
    anchors."""
    ours, theirs = _Producers(original), _Producers(fused)
    original_keys = {ours.identity([n]) for n in window.original}
    return [n for n in window.fused if theirs.identity([n]) not in original_keys and not is_anchor(theirs.nodes[n])]


def aspects(model: ModelProto, output: str) -> dict[str, Any]:
    """Return the identity of the node that computes `output`: operator, attributes, inputs, weights by content.

    Empty if no node computes it.
    """
    index = _Producers(model)
    if output not in index.producer:
        return {}
    node = index.nodes[index.producer[output]]
    facts: dict[str, Any] = {"operator": (node.domain, node.op_type)}
    facts.update({f"attribute {a.name}": a.SerializeToString(deterministic=True) for a in node.attribute})
    facts.update({
        f"input {n}": _content(index.weights[v]) if v in index.weights else v for n, v in enumerate(node.input)
    })  # fmt: skip
    return facts


def types_of_values(model: ModelProto) -> dict[str, TypeProto]:
    """Return the types of the main graph's values that shape inference knows, for tensors without their shapes.

    Different shapes are then left to the comparison, instead of being rejected by ONNX Runtime.
    """
    typed = infer(model).graph
    tensor_types = {
        name: onnx.helper.make_tensor_type_proto(t.dtype, None) for name, t in value_types(typed).items() if t.dtype
    }
    every = (*typed.input, *typed.value_info, *typed.output)
    other_types = {v.name: v.type for v in every if v.type.WhichOneof("value") not in (None, "tensor_type")}
    return {**tensor_types, **other_types}


def submodel(model: ModelProto, nodes: Collection[int], feeds: Arrays, outputs: Mapping[str, TypeProto]) -> ModelProto:
    """Return the nodes at these indices as a model of their own, with inputs of the types and shapes of `feeds`.

    `outputs` are the values that it returns, with their types; ONNX Runtime infers the unknown ones.
    """
    part = ModelProto(ir_version=model.ir_version, producer_name=model.producer_name)
    part.opset_import.extend(model.opset_import)
    set_strict_fp32(part, strict=is_strict_fp32(model))
    chosen = [_without_outputs(model.graph.node[n], feeds) for n in sorted(nodes)]
    part.graph.name = model.graph.name or "part"
    part.graph.node.extend(chosen)
    read = {v for n in chosen for v in (*n.input, *captured(n))}
    part.graph.initializer.extend(t for t in model.graph.initializer if t.name in read)
    part.graph.input.extend(
        onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in feeds.items()
    )
    part.graph.output.extend(onnx.ValueInfoProto(name=name, type=type_) for name, type_ in outputs.items())
    part.functions.extend(_functions(model, chosen))
    return part


def _without_outputs(node: NodeProto, feeds: Arrays) -> NodeProto:
    """Return a node that computes the outputs that are fed under other names: it is there for the rest of them."""
    if not any(o in feeds for o in node.output):
        return node
    copy = NodeProto()
    copy.CopyFrom(node)
    copy.output[:] = [f"{o}.computed" if o in feeds else o for o in node.output]
    return copy


class _Producers:
    """Producers of the values in a main graph."""

    def __init__(self, model: ModelProto) -> None:
        self.nodes = list(model.graph.node)
        self.weights: dict[str, TensorProto] = {t.name: t for t in model.graph.initializer}
        self.functions = functions_of(model)
        self.types = value_types(infer(model).graph)
        self.producer: dict[str, int] = {o: n for n, node in enumerate(self.nodes) for o in node.output if o}
        inputs = {i.name for i in model.graph.input} - set(self.weights)
        # A Constant counts as part of its readers, as a weight does.
        self.values = inputs | {o for o, n in self.producer.items() if self.nodes[n].op_type != ops.Constant}

    def cone(self, outputs: Collection[str], cuts: Collection[str]) -> tuple[list[int], set[str]]:
        """Return the nodes that compute `outputs` from `cuts`, in order, and those of `cuts` that they read."""
        waiting, nodes, read = list(outputs), set[int](), set[str]()
        while waiting:
            value = waiting.pop()
            if value in cuts:
                read.add(value)
            elif value in self.producer and self.producer[value] not in nodes:
                nodes.add(self.producer[value])
                node = self.nodes[self.producer[value]]
                waiting.extend(v for v in (*node.input, *captured(node)) if v)
        return sorted(nodes), read

    def identity(self, nodes: Collection[int]) -> tuple[Any, ...]:
        """Return a key that identifies a group of nodes: operators, names, attributes, weights, called functions."""
        return tuple(self._node_identity(self.nodes[n]) for n in nodes)

    def _node_identity(self, node: NodeProto) -> tuple[Any, ...]:
        read = [v for v in (*node.input, *captured(node)) if v in self.weights]
        function = self.functions.get(called(node))
        return (
            node.domain if node.domain != "ai.onnx" else "", node.op_type, tuple(node.input), tuple(node.output),
            tuple(sorted(a.SerializeToString(deterministic=True) for a in node.attribute)),
            tuple((v, _content(self.weights[v])) for v in read),
            None if function is None else function.SerializeToString(deterministic=True),
        )  # fmt: skip


def _content(tensor: TensorProto) -> tuple[Any, ...]:
    array = onnx.numpy_helper.to_array(tensor)
    return tensor.data_type, array.shape, hash(np.ascontiguousarray(array).tobytes())


def _same_type(a: Any, b: Any) -> bool:
    return a is None or b is None or not a.dtype or not b.dtype or a.dtype == b.dtype


def _functions(model: ModelProto, nodes: Collection[NodeProto]) -> list[onnx.FunctionProto]:
    """Return the functions that the nodes call, directly or indirectly."""
    functions = functions_of(model)
    waiting, used = list(nodes), set[Key]()
    while waiting:
        node = waiting.pop()
        waiting.extend(n for body in bodies(node) for n in _nodes(body))
        key = called(node)
        if key in functions and key not in used:
            used.add(key)
            waiting.extend(functions[key].node)
    return [f for key, f in functions.items() if key in used]


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    yield from graph.node
