"""Values in the bodies of control flow as values of the main graph, which can be outputs."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, helper, numpy_helper

from onnxfuse import ops
from onnxfuse.model.nested import bodies, captured, every_name
from onnxfuse.model.schema import opset_of


def hoist_bodies(model: ModelProto) -> frozenset[str]:
    """Let the main graph compute what the bodies of If, Loop and Scan compute, too; return the values of that.

    A branch is computed as if it were taken, of a loop the first iteration: where it is not, that may fail. So nodes of
    these values are for `only_for`. A value `a` in the body of node `n` becomes `a in n`.
    """
    graph = model.graph
    hoisting = _Hoisting(every_name(graph), opset_of(model))
    nodes = [one for node in graph.node for one in (*hoisting.of(node), node)]
    nodes = [NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del graph.node[:]
    graph.node.extend(nodes)
    graph.initializer.extend(hoisting.initializers)
    return frozenset(hoisting.made)


class _Hoisting:
    """What is hoisted from one model."""

    def __init__(self, taken: set[str], opset: int) -> None:
        self.taken, self.opset = taken, opset
        self.made = set[str]()
        self.initializers: list[onnx.TensorProto] = []

    def of(self, node: NodeProto) -> Iterator[NodeProto]:
        """Yield nodes that compute what the bodies of `node` do, those inside them included."""
        for body in bodies(node):
            values = dict[str, str]()
            given = list(self._inputs(node, body, values))
            if len(values) < len(body.input):
                continue
            yield from given
            for tensor in body.initializer:
                copy = onnx.TensorProto()
                copy.CopyFrom(tensor)
                copy.name = values[tensor.name] = self._name(tensor.name, node)
                self.initializers.append(copy)
            for inner in body.node:
                values.update((o, self._name(o, node)) for o in inner.output if o)
                renamed = _renamed(inner, values)
                yield from self.of(renamed)
                yield renamed

    def _inputs(self, node: NodeProto, body: GraphProto, values: dict[str, str]) -> Iterator[NodeProto]:
        """Enter what each input of a body is at first; yield the nodes that compute it. None: it is not known."""
        names = [i.name for i in body.input]
        if node.op_type == ops.Loop:
            for name, first in zip(names, (np.array(0, np.int64), np.array(True)), strict=False):
                values[name] = self._name(name, node)
                yield helper.make_node(ops.Constant, [], [values[name]], value=numpy_helper.from_array(first))
            values.update(zip(names[2:], node.input[2:], strict=False))
        elif node.op_type == ops.Scan and self.opset > 8:
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            count = attributes["num_scan_inputs"]
            states = len(node.input) - count
            values.update(zip(names[:states], node.input[:states], strict=False))
            axes, backward = (attributes.get(f"scan_input_{k}") or [0] * count for k in ("axes", "directions"))
            for name, of, axis, last in zip(names[states:], node.input[states:], axes, backward, strict=False):
                values[name], index = self._name(name, node), self._name("index", node)
                tensor = numpy_helper.from_array(np.array(-1 if last else 0, np.int64))
                yield helper.make_node(ops.Constant, [], [index], value=tensor)
                yield helper.make_node(ops.Gather, [of, index], [values[name]], axis=axis)

    def _name(self, value: str, node: NodeProto) -> str:
        name = f"{value} in {node.name or node.output[0]}"
        while name in self.taken:
            name += "'"
        self.taken.add(name)
        self.made.add(name)
        return name


def _renamed(node: NodeProto, values: Mapping[str, str]) -> NodeProto:
    """Return a copy of a node with other names for values, also inside its bodies where these read them."""
    copy = NodeProto()
    copy.CopyFrom(node)
    for names in (copy.input, copy.output):
        renamed = [values.get(v, v) for v in names]
        del names[:]
        names.extend(renamed)
    for body in bodies(copy):
        inside = [_renamed(n, values) for n in body.node]
        del body.node[:]
        body.node.extend(inside)
        for output in body.output:
            output.name = values.get(output.name, output.name)
    return copy


@contextmanager
def computing(model: ModelProto, values: Collection[str], hoisted: ModelProto) -> Iterator[ModelProto]:
    """Let `model` inside the block compute these values alone, by nodes of `hoisted`, a copy of it without weights."""
    graph, count = model.graph, len(model.graph.initializer)
    weights = {t.name for t in graph.initializer}
    fields = (graph.node, graph.output, model.functions, model.opset_import)
    before = [list(field) for field in fields]
    try:
        outputs = [onnx.ValueInfoProto(name=n) for n in dict.fromkeys(values)]
        within = (_needed(hoisted.graph.node, values), outputs, hoisted.functions, hoisted.opset_import)
        _replace(fields, within)
        graph.initializer.extend(t for t in hoisted.graph.initializer if t.name not in weights)
        yield model
    finally:
        _replace(fields, before)
        del graph.initializer[count:]


def _replace(fields: Iterable[Any], contents: Iterable[Iterable[Any]]) -> None:
    for field, content in zip(fields, contents, strict=True):
        del field[:]
        field.extend(content)


def _needed(nodes: Sequence[NodeProto], values: Collection[str]) -> list[NodeProto]:
    """Return the nodes on which values depend, in order."""
    needed, reached = list[NodeProto](), set(values)
    for node in reversed(nodes):
        if not reached.isdisjoint(node.output):
            needed.append(node)
            reached.update((*node.input, *captured(node)))
    return needed[::-1]
