"""Replace nodes of a graph by new ones.

A `Rewriter` writes them in the form of the model's operator set, names them and their values, and adds their constants.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto
from onnx.helper import make_node

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model import schema
from onnxfuse.model.attributes import set_attribute
from onnxfuse.shapes.types import ValueType

Inputs = Sequence[str] | Mapping[int, str] | None
"""What a copy of a node reads: values, other values at some positions, or the same."""


class Rewriter:
    """The nodes that take the place of `old`, in topological order.

    Constants and types enter the graph at once, nodes when the rewriter is finished.
    """

    def __init__(self, graph: Graph, *old: Node, operands: dict[tuple[int, ...], str] | None = None) -> None:
        self.graph = graph
        self.old = old
        self.nodes: list[NodeProto] = []
        self._names: set[str] = set()
        """Reserved names of values that no node of the graph computes yet."""
        self._own: set[str] = set()
        """Those that a new node computes under a name of this rewriter's choice."""
        self._named = {output: n.proto.name for n in old for output in n.outputs if n.proto.name}
        """Names of the replaced nodes, by their outputs."""
        self._operands: dict[tuple[int, ...], str] = {} if operands is None else operands
        """Constants of integers that the new nodes share; given, those of several rewriters."""

    # ---- values

    def value(self, hint: str, type_: ValueType | None = None) -> str:
        """Return an unused name that begins with `hint`, reserved for a value of this type."""
        name = self.graph.fresh(hint)
        self.graph.reserved.add(name)
        self._names.add(name)
        if type_ is not None:
            self.graph.types[name] = type_
        return name

    def constant(self, hint: str, array: np.ndarray | Sequence[int]) -> str:
        """Add a constant, of integers as int64, and return its name, which begins with `hint`."""
        name = self.graph.fresh(hint)
        self.graph.add_constant(name, array if isinstance(array, np.ndarray) else np.asarray(array, np.int64))
        return name

    def named(self, hint: str) -> str:
        """Return an unused name that begins with `hint`, for an output of a new node that may yet be replaced."""
        return self._chosen(hint)

    # ---- nodes

    def add(
        self,
        op: str,
        *inputs: str,
        output: str | Sequence[str] = "",
        hint: str = "",
        type_: ValueType | None = None,
        name: str = "",
        domain: str = "",
        **operands: Any,
    ) -> str:
        """Add a node and return its first output.

        Its output is called `output`, or has an unused name that begins with `hint`, and is of type `type_`. `operands`
        are attributes, or inputs by the names that ONNX gives them: a list becomes a constant. What is an attribute in
        one operator set and an input in another, as the axes of `to.add("Unsqueeze", x, axes=[0])`, is written as the
        model's operator set has it. A node that computes an output of a replaced one has that one's name unless `name`
        is given, any other is named after its output.
        """
        outputs = [output] if isinstance(output, str) else list(output)
        if not outputs[0]:
            outputs[0] = self._chosen(hint or f"{self._base(inputs)}.{op.lower()}")
        reads, attributes = self._as_of(op, domain, inputs, operands, outputs[0])
        attributes = {key: value for key, value in attributes.items() if value is not None}
        proto = make_node(op, reads, outputs, name or self._name(outputs[0]), domain=domain or None, **attributes)
        return self._append(proto, type_)

    def copy(
        self,
        node: Node,
        inputs: Inputs = None,
        *,
        output: str | Sequence[str] = "",
        hint: str = "",
        type_: ValueType | None = None,
        op: str = "",
        name: str | None = None,
        **operands: Any,
    ) -> str:
        """Add a copy of a node and return its first output.

        It reads `inputs`, or at the given positions other values. `operands` as in `add`; those that are None are
        dropped. Its outputs are the node's own unless `output` or `hint` is given, its name is the node's.
        """
        outputs = [output] if isinstance(output, str) and output else [*output] or [*node.outputs]
        if hint:
            outputs = [self._chosen(hint)]
        reads, attributes = self._as_of(op or node.op, node.domain, _read(node, inputs), operands, outputs[0])
        return self._append(copied(node, reads, outputs, op=op, name=name, **attributes), type_)

    def append(self, proto: NodeProto) -> None:
        """Add a node that was written elsewhere: moved from another graph, or read from a rule."""
        self.nodes.append(proto)

    def replace(self, value: str, by: str) -> None:
        """Let `by` take the place of an output of a replaced node.

        A new value whose name was chosen here is computed under the name that it replaces, any other is forwarded by an
        Identity.
        """
        if by not in self._own:
            self.add(ops.Identity, by, output=value)
            return
        for proto in self.nodes:
            if by in proto.output and proto.name == by:
                proto.name = self._name(value)
            for values in (proto.input, proto.output):
                values[:] = [value if v == by else v for v in values]
        self._own.remove(by)
        self._release({by})
        self.graph.types.pop(by, None)

    # ---- the end

    def finish(self) -> list[Node]:
        """Put the new nodes in place of the old ones, and return them."""
        new = [Node(proto) for proto in self.nodes]
        self.graph.replace(self.old, new)
        self._release(set(self._names))
        return new

    def draft(self) -> list[Node]:
        """Return the new nodes as they would stand in place of the old one, which the graph keeps.

        Their values must have types: those keep their names from others.
        """
        new = [Node(proto) for proto in self.nodes]
        self.graph.draft(self.old[0], new)
        self._release(set(self._names))
        return new

    def drop(self) -> None:
        """Give up what was written; the graph keeps its nodes."""
        self._release(set(self._names))

    def _release(self, names: set[str]) -> None:
        self._names -= names
        self.graph.reserved -= names

    def _chosen(self, hint: str) -> str:
        name = self.value(hint)
        self._own.add(name)
        return name

    def _append(self, proto: NodeProto, type_: ValueType | None) -> str:
        self.append(proto)
        if type_ is not None:
            self.graph.types[proto.output[0]] = type_
        return str(proto.output[0])

    def _base(self, inputs: Sequence[str]) -> str:
        return self.old[-1].outputs[0] if self.old else inputs[0]

    def _name(self, output: str) -> str:
        """Return the name of a new node: that of the replaced node whose output it computes.

        `Graph.replace` gives all but the first of one name others.
        """
        return self._named.get(output, output)

    def _as_of(
        self, op: str, domain: str, inputs: Sequence[str], operands: Mapping[str, Any], base: str
    ) -> tuple[list[str], dict[str, Any]]:
        """Return a node's inputs and attributes as the model's operator set has them."""
        reads, attributes = list(inputs), dict[str, Any]()
        for key, operand in operands.items():
            index = None if operand is None else schema.input_index(op, domain, self.graph.opset, key)
            if index is None:
                attributes[key] = operand
                continue
            reads += [""] * (index + 1 - len(reads))
            reads[index] = self._operand(operand, f"{base}.{key}")
        while reads and not reads[-1]:
            reads.pop()
        return reads, attributes

    def _operand(self, operand: str | np.ndarray | Sequence[int], hint: str) -> str:
        """Return the value of an input that is given by keyword."""
        if isinstance(operand, str):
            return operand
        if isinstance(operand, np.ndarray):
            return self.constant(hint, operand)
        numbers = tuple(map(int, operand))
        if numbers not in self._operands:
            self._operands[numbers] = self.constant(hint, numbers)
        return self._operands[numbers]


def _read(node: Node, inputs: Inputs) -> Sequence[str]:
    if not isinstance(inputs, Mapping):
        return node.inputs if inputs is None else inputs
    reads = [*node.inputs, *[""] * (max(inputs, default=0) + 1 - len(node.inputs))]
    for index, value in inputs.items():
        reads[index] = value
    return reads


def copied(
    node: Node,
    inputs: Sequence[str],
    outputs: Sequence[str],
    *,
    op: str = "",
    name: str | None = None,
    **attributes: schema.AttributeValue | None,
) -> NodeProto:
    """Return a copy of a node between other values, with other attributes; those that are None are dropped."""
    proto = NodeProto()
    proto.CopyFrom(node.proto)
    proto.input[:], proto.output[:] = inputs, outputs
    if op:
        proto.op_type = op
    if name is not None:
        proto.name = name
    for key, value in attributes.items():
        set_attribute(proto, key, value)
    return proto


Rewrite = Callable[[Node, Rewriter], bool]
"""Writes the replacement of a node; returns False to leave the node as it is."""


def rewrite_each(graph: Graph, rewrites: Mapping[str, Rewrite]) -> bool:
    """Replace each node of ONNX's own domain by what its operator's function writes; return whether one was."""
    changed = False
    for node in [n for n in graph.nodes if n.op in rewrites and not n.domain]:
        changed |= node.order >= 0 and rewrite(graph, node, rewrites[node.op])
    return changed


def rewrite(graph: Graph, node: Node, written: Rewrite) -> bool:
    """Replace a node by what `written` writes; return whether it was replaced."""
    to = Rewriter(graph, node)
    if not written(node, to):
        to.drop()
        return False
    to.finish()
    return True


def forward(graph: Graph, node: Node, source: str) -> None:
    """Replace a node of one output by an Identity of `source`."""
    to = Rewriter(graph, node)
    to.replace(node.outputs[0], source)
    to.finish()


def substitute(graph: Graph, node: Node, inputs: Inputs = None, **changes: Any) -> None:
    """Replace a node by a copy that reads other values, or has other attributes; see `Rewriter.copy`."""
    to = Rewriter(graph, node)
    to.copy(node, inputs, **changes)
    to.finish()
