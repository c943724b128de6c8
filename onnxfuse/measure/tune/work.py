"""Tuning tasks: a fused op at its location, and the nodes that it replaces, as two small models."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from onnxfuse.cuda.dispatch.measurements import Key, key
from onnxfuse.fusion.undo.unfuse import unfuse
from onnxfuse.graph.concrete_shapes import Shape, every_graph
from onnxfuse.graph.graph import captured
from onnxfuse.model.fused import DOMAIN, FusedOp
from onnxfuse.model.host_values import SHAPE_READERS
from onnxfuse.model.overridable import overridable
from onnxfuse.model.schema import is_random
from onnxfuse.model.tf32 import is_strict_fp32, set_strict_fp32
from onnxfuse.shapes.types import UNKNOWN, ValueType, value_info


@dataclass(frozen=True, eq=False)
class TuningTask:
    """One distinct (body, shapes, types). Both models have the inputs, weights and outputs of the location.

    A product that the library computes for the op is part of both: without the op it would be a different one, with the
    bias that the op absorbed.
    """

    op: FusedOp
    shapes: tuple[Shape, ...]
    """Shapes of the op's inputs."""
    fused: ModelProto
    """The op, preceded by the library's product if there is one."""
    plain: ModelProto
    """The nodes that remain if no kernel takes them."""
    library: bool = False
    """Whether the rule's library form is another candidate."""

    @property
    def key(self) -> Key:
        """Lookup key of the times."""
        return key(self.op.name, self.shapes)


def extract_task(
    node: NodeProto,
    op: FusedOp,
    shapes: tuple[Shape, ...],
    fused: ModelProto,
    unfused: ModelProto,
    types: Mapping[str, ValueType],
    kept: Collection[str] = (),
) -> TuningTask:
    """Extract the task of one fused node from the model before and after fusion.

    `shapes` are those of its inputs, `types` the types of all values, `kept` the values that the library computes for
    it. Values determined by constants and shapes are computed as in the model: a mask that is known to be causal is
    causal here. A value split between another op's library form and its kernel has no producer in the original model:
    there the op's own nodes serve as the plain alternative.
    """
    shared = set(_values(unfused)) - set(node.output) - set(kept) - _known(unfused, types)
    with_op = _cone(fused, node.output, shared)
    inputs = {v for n in with_op for v in n.input} - {o for n in with_op for o in n.output}
    task_model = _model(fused, with_op, node.output, types)
    if set(node.output).issubset(_values(unfused)):
        plain = _model(unfused, _cone(unfused, node.output, inputs), node.output, types)
    else:
        plain = ModelProto()
        plain.CopyFrom(task_model)
        unfuse(plain)
    return TuningTask(op, shapes, task_model, plain)


def _values(model: ModelProto) -> Iterator[str]:
    """Yield every value of a model."""
    for graph in every_graph(model.graph):
        yield from (i.name for i in graph.input)
        yield from (t.name for t in graph.initializer)
        yield from (o for n in graph.node for o in n.output if o)


def _known(model: ModelProto, types: Mapping[str, ValueType]) -> set[str]:
    """Return the values that nodes compute from constants and shapes, independent of the data."""
    constants = {t.name for graph in every_graph(model.graph) for t in graph.initializer} - {*overridable(model)}
    names = set[str]()
    for node in (n for graph in every_graph(model.graph) for n in graph.node):
        if node.op_type in SHAPE_READERS:
            decided = types.get(node.input[0], UNKNOWN).static_shape is not None
        else:
            decided = not is_random(node) and constants.union(names).issuperset(filter(None, _reads(node)))
        if decided:
            names.update(filter(None, node.output))
    return names


def _cone(model: ModelProto, outputs: Sequence[str], ends: Collection[str]) -> list[NodeProto]:
    """Return the nodes that compute `outputs` from `ends`, in order."""
    graph = next(g for g in every_graph(model.graph) if any(o in outputs for n in g.node for o in n.output))
    producer = {o: n for n, node in enumerate(graph.node) for o in node.output if o}
    waiting, indices = list(outputs), set[int]()
    while waiting:
        value = waiting.pop()
        index = producer.get(value)
        if index is not None and index not in indices and (value in outputs or value not in ends):
            indices.add(index)
            waiting.extend(_reads(graph.node[index]))
    return [graph.node[n] for n in sorted(indices)]


def _reads(node: NodeProto) -> list[str]:
    return [v for v in (*node.input, *captured(node)) if v]


def _model(
    source: ModelProto, nodes: Sequence[NodeProto], outputs: Sequence[str], types: Mapping[str, ValueType]
) -> ModelProto:
    """Return the nodes as a model: weights of `source` remain weights, other values that they read become inputs."""
    computed = {o for n in nodes for o in n.output}
    read = dict.fromkeys(v for n in nodes for v in _reads(n) if v not in computed)
    weights = _weights(source.graph, read)
    graph = onnx.helper.make_graph(
        nodes,
        "work",
        [value_info(v, types.get(v, UNKNOWN)) for v in read if v not in weights],
        [value_info(v, types.get(v, UNKNOWN)) for v in outputs],
        list(weights.values()),
    )
    called = {n.op_type for n in nodes if n.domain == DOMAIN}
    model = onnx.helper.make_model(
        graph,
        opset_imports=[o for o in source.opset_import if o.domain != DOMAIN or called],
        ir_version=source.ir_version,
        functions=[f for f in source.functions if f.domain == DOMAIN and f.name in called],
    )
    set_strict_fp32(model, strict=is_strict_fp32(source))
    return model


def _weights(graph: GraphProto, read: Collection[str]) -> dict[str, TensorProto]:
    return {t.name: t for one in every_graph(graph) for t in one.initializer if t.name in read}
