"""Rewrite a model to the selected type of each node: convert weights, insert Casts at type boundaries.

A value keeps its name in the type of its producer; another form of it is `NAME.float16` or `NAME.float32`, cast once
next to the producer for all readers. Inputs and outputs of the model and of bodies keep their types.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from onnxfuse import ops
from onnxfuse.model.nested import every_name
from onnxfuse.model.precision_record import NAMES
from onnxfuse.precision import rounding
from onnxfuse.precision.plan import FLOAT, FloatNode, is_typeless
from onnxfuse.precision.scopes import Scope, every, key

TYPED = ("to", "dtype", "output_dtype", "output_datatype")
"""Attributes that hold the element type of a node's output."""


@dataclass
class _Value:
    """One float32 value of the original model."""

    home: int
    """The type in which it is produced."""
    forms: dict[int, str] = field(default_factory=dict)
    """Its names by type, as far as they are read."""


class PrecisionWriter:
    """Writes one model once; `main` is its graph, `chosen` the type of each node by its first output."""

    def __init__(
        self, model: ModelProto, main: Scope, float_nodes: Mapping[str, FloatNode], chosen: Mapping[str, int]
    ) -> None:
        self.model, self.main, self.places, self.chosen = model, main, float_nodes, chosen
        self.taken = every_name(model.graph)
        self.values: dict[tuple[int, str], _Value] = {}
        self.doubled: list[str] = []
        """Weights held in two types."""

    def run(self, io_type: int = FLOAT) -> None:
        """Convert the model in place; `io_type` is that of its float32 inputs and outputs."""
        graphs = list(every(self.main))
        ends = {id(s): io_type if s is self.main else FLOAT for s in graphs}
        for scope in graphs:
            self._homes(scope, ends[id(scope)])
        for scope in graphs:
            for node in scope.proto.node:
                self._read(scope, node)
        for scope in reversed(graphs):  # a graph is rewritten with its nodes and their bodies
            self._finish(scope)

    def _homes(self, scope: Scope, ends: int) -> None:
        """Determine the type in which each value of a graph is produced."""
        replaceable = {t.name for t in scope.proto.initializer}
        for name in [i.name for i in scope.proto.input if i.name not in scope.constants]:
            if scope.types[name].dtype == FLOAT:
                self._add(scope, name, FLOAT if name in replaceable else ends)
        outputs = {o.name for o in scope.proto.output}
        for node in scope.proto.node:
            type_, slots = self._chosen(node)
            for n, name in enumerate(node.output):
                if name and name not in scope.constants and scope.type(name).dtype == FLOAT:
                    value = self._add(scope, name, type_ if n in slots[1] else FLOAT)
                    if name in outputs and value.home != ends:
                        value.forms = {value.home: self._fresh(name, value.home), ends: name}
        for name in outputs & scope.constants.keys():
            self._form(scope, name, ends)

    def _read(self, scope: Scope, node: NodeProto) -> None:
        """Connect a node to inputs and outputs of the types in which it computes."""
        type_, slots = self._chosen(node)
        if type_ != FLOAT:
            _square(scope, node)
        for n, name in enumerate(node.input):
            if not name or scope.type(name).dtype != FLOAT:
                continue
            value = self._value(scope, name)
            needed_type = type_ if n in slots[0] else FLOAT
            if is_typeless(node, n):
                needed_type = value.home
            node.input[n] = self._form(scope, name, needed_type)
        for n, name in enumerate(node.output):
            registered = self.values.get((id(scope), name))
            if registered is not None and name not in scope.constants:
                node.output[n] = registered.forms[registered.home]
        if type_ != FLOAT:
            _retype(node, type_)

    def _finish(self, scope: Scope) -> None:
        """Write the Casts, weights and declarations of a graph."""
        graph = scope.proto
        casts: dict[str, list[NodeProto]] = {}
        for (where, name), value in self.values.items():
            if where == id(scope) and name not in scope.constants:
                source = value.forms[value.home]
                casts[source] = [_cast(source, form, t) for t, form in value.forms.items() if t != value.home]
        computed = {o for node in graph.node for o in node.output}
        nodes = [c for source in sorted(casts.keys() - computed) for c in casts[source]]
        for node in graph.node:
            if node.op_type == ops.Constant and node.output[0] in scope.constants:
                nodes += self._constants(scope, node)
                continue
            nodes.append(node)
            nodes += [c for o in node.output for c in casts.get(o, [])]
        nodes = [_copy(n) for n in nodes]
        del graph.node[:]
        graph.node.extend(nodes)
        self._weights(scope)
        _declare(graph, {n: v for (where, n), v in self.values.items() if where == id(scope)})

    def _constants(self, scope: Scope, node: NodeProto) -> list[NodeProto]:
        """Return a Constant node in each type that is read."""
        value = self.values.get((id(scope), node.output[0]))
        if value is None:
            return [node]
        tensors = []
        for type_, name in value.forms.items():
            one = _copy(node)
            one.output[0] = name
            if type_ != FLOAT:
                one.attribute[0].t.CopyFrom(rounding.tensor(node.attribute[0].t, type_, ""))
                one.name += f".{NAMES[type_]}" * bool(one.name)
            tensors.append(one)
        return tensors

    def _weights(self, scope: Scope) -> None:
        """Convert the weights of a graph, and add those that are read in two types."""
        copies = []
        for tensor in scope.proto.initializer:
            value = self.values.get((id(scope), tensor.name))
            if value is None or tensor.name not in scope.constants:
                continue
            names_by_type = dict(value.forms)
            if len(names_by_type) > 1:
                self.doubled.append(tensor.name)
            copies += [_in_type(tensor, t, name) for t, name in names_by_type.items() if name != tensor.name]
            current = next((t for t, name in names_by_type.items() if name == tensor.name), FLOAT)
            if current != FLOAT:
                tensor.CopyFrom(rounding.tensor(tensor, current, tensor.name))
        scope.proto.initializer.extend(copies)

    def _add(self, scope: Scope, name: str, owner: int) -> _Value:
        value = _Value(owner, {owner: name})
        self.values[id(scope), name] = value
        return value

    def _value(self, scope: Scope, name: str) -> _Value:
        owner = scope.home(name)
        assert owner is not None
        value = self.values.get((id(owner), name))
        if value is None:  # a constant, or a sparse weight: float32 until it is read in another type
            value = self.values[id(owner), name] = _Value(FLOAT, {} if name in owner.constants else {FLOAT: name})
        return value

    def _form(self, scope: Scope, name: str, type_: int) -> str:
        """Return the name of a value in `type_`, creating that form if necessary."""
        value = self._value(scope, name)
        if type_ not in value.forms:
            # A constant keeps its name in the first type that is read: usually there is no other.
            value.forms[type_] = self._fresh(name, type_) if value.forms else name
        return value.forms[type_]

    def _chosen(self, node: NodeProto) -> tuple[int, tuple[tuple[int, ...], tuple[int, ...]]]:
        float_node = self.places.get(key(node))
        type_ = self.chosen.get(key(node), FLOAT)
        if float_node is None or (float_node.node is not node and float_node.node.op_type != node.op_type):
            return FLOAT, ((), ())
        return (type_, float_node.types[type_]) if type_ in float_node.types else (FLOAT, ((), ()))

    def _fresh(self, name: str, type_: int) -> str:
        candidate = f"{name}.{NAMES[type_]}"
        while candidate in self.taken:
            candidate += "_"
        self.taken.add(candidate)
        return candidate


def _square(scope: Scope, node: NodeProto) -> None:
    """Replace a Pow by 2 by a product, which is equal.

    A norm spelled with Pow is fused by ONNX Runtime's optimizer, which reads epsilon in float32 only: in a lower type
    it would use 1e-5, whatever the model says.
    """
    if node.op_type == ops.Pow and not node.domain:
        exponent = scope.constant(node.input[1])
        if exponent is not None and not exponent.dims and numpy_helper.to_array(exponent) == 2:
            node.op_type, node.input[1] = ops.Mul, node.input[0]


def _retype(node: NodeProto, type_: int) -> None:
    """Set the type attribute of a node that holds its output type to `type_`."""
    if node.op_type == ops.ConstantOfShape and not node.domain:
        tensor = next((a.t for a in node.attribute if a.name == "value"), None)
        array = np.zeros(1, np.float32) if tensor is None else numpy_helper.to_array(tensor)
        del node.attribute[:]
        low = numpy_helper.from_array(np.asarray(rounding.constant(array, type_)))
        node.attribute.append(helper.make_attribute("value", low))
    for attribute in node.attribute:
        if attribute.name in TYPED and attribute.i == FLOAT:
            attribute.i = type_


def _declare(graph: GraphProto, values: Mapping[str, _Value]) -> None:
    """Update declared types of values."""
    for info in (*graph.value_info, *graph.input, *graph.output):
        value = values.get(info.name)
        if value is not None and info.type.tensor_type.elem_type == FLOAT:
            types = (t for t, name in value.forms.items() if name == info.name)
            info.type.tensor_type.elem_type = next(types, FLOAT)


def _cast(source: str, target: str, type_: int) -> NodeProto:
    return helper.make_node(ops.Cast, [source], [target], name=f"{target}/Cast", to=type_)


def _in_type(tensor: TensorProto, type_: int, name: str) -> TensorProto:
    if type_ != FLOAT:
        return rounding.tensor(tensor, type_, name)
    converted = TensorProto()
    converted.CopyFrom(tensor)
    converted.name = name
    return converted


def _copy(node: NodeProto) -> NodeProto:
    copy = NodeProto()
    copy.CopyFrom(node)
    return copy


def constants_as_tensors(model: ModelProto, graphs: Collection[GraphProto]) -> None:
    """Store the value of every float Constant as a tensor, the only form that can have another type."""
    for graph in graphs:
        for node in graph.node:
            if node.op_type != ops.Constant or node.domain or not node.attribute:
                continue
            attribute = node.attribute[0]
            if attribute.name in ("value_float", "value_floats"):
                value = np.asarray(helper.get_attribute_value(attribute), np.float32)
                attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(value)))
