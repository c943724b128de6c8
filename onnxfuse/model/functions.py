"""Model-local functions: resolve which function a node calls, and expand calls with their attributes substituted.

A function is identified by domain, name and overload (IR version 10). Its attributes may have defaults
(`FunctionProto.attribute_proto`), which onnx.inliner and onnx's reference evaluator do not support.
"""

from collections.abc import Iterable, Iterator, Mapping

from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto

from onnxfuse.model.fused import DOMAIN
from onnxfuse.model.nested import bodies
from onnxfuse.support.errors import ModelError

Key = tuple[str, str, str]
"""Domain, name and overload, which must be unique among functions."""

Attributes = Mapping[str, AttributeProto]
"""Attributes of a call, by the function's parameter names."""


def key_of(function: FunctionProto) -> Key:
    """Return the key by which calls refer to a function."""
    return short_domain(function.domain), function.name, function.overload


def called(node: NodeProto) -> Key:
    """Return the key of the function that a node calls, if the model has one of that key."""
    return short_domain(node.domain), node.op_type, node.overload


def functions_of(model: ModelProto) -> dict[Key, FunctionProto]:
    """Return the functions of a model by their keys."""
    return {key_of(f): f for f in model.functions}


def bind_attributes(model: ModelProto) -> None:
    """Specialize each function with attributes or an overload to the attributes of each distinct call, in place.

    The specialization has neither: its nodes have the call's attributes, else the function's defaults, else none.
    Raises ModelError for recursive functions.
    """
    functions = functions_of(model)
    if any(f.attribute or f.attribute_proto or f.overload for f in functions.values()):
        _Binding(functions).bind(model)


class _Binding:
    """Cache of specializations."""

    def __init__(self, functions: Mapping[Key, FunctionProto]) -> None:
        self.functions = functions
        self.taken = {key[:2] for key in functions}
        self.copies: dict[tuple[Key, tuple[bytes, ...]], FunctionProto] = {}
        self.open: list[Key] = []
        """Functions on the call stack, the outermost first."""

    def bind(self, model: ModelProto) -> None:
        """Make the graph call specializations, and keep only these and the fused ops in the model."""
        self._nodes(model.graph.node, {})
        fused = [f for f in model.functions if f.domain == DOMAIN]
        del model.functions[:]
        model.functions.extend([*fused, *self.copies.values()])

    def _nodes(self, nodes: Iterable[NodeProto], attributes: Attributes) -> None:
        """Bind the attributes of nodes, of their nested bodies, and of the functions that they call."""
        for node in nodes:
            bound = list(_bound(node.attribute, attributes))
            del node.attribute[:]
            node.attribute.extend(bound)
            for body in bodies(node):
                self._nodes(body.node, attributes)
            function = self.functions.get(called(node))
            if function is not None and function.domain != DOMAIN:
                node.op_type = self._copy(function, node).name
                node.ClearField("overload")
                del node.attribute[:]

    def _copy(self, function: FunctionProto, node: NodeProto) -> FunctionProto:
        """Return the specialization of a function to the call `node`."""
        key = key_of(function)
        attributes = {a.name: a for a in (*function.attribute_proto, *node.attribute)}
        form = key, tuple(attributes[name].SerializeToString(deterministic=True) for name in sorted(attributes))
        if form in self.copies:
            return self.copies[form]
        if key in self.open:
            raise ModelError(
                f"its local functions cannot be inlined: {key[0]}.{key[1]} calls itself", "Export it again."
            )
        self.open.append(key)
        copy = FunctionProto()
        copy.CopyFrom(function)
        for field in ("attribute", "attribute_proto", "overload"):
            copy.ClearField(field)
        copy.name = self._name(key)
        self._nodes(copy.node, attributes)
        self.open.pop()
        self.copies[form] = copy
        return copy

    def _name(self, key: Key) -> str:
        """Return a function name that is unique in the model and among specializations."""
        count = 1
        while (key[0], name := f"{key[1]}_{count}") in self.taken:
            count += 1
        self.taken.add((key[0], name))
        return name


def _bound(attributes: Iterable[AttributeProto], values: Attributes) -> Iterator[AttributeProto]:
    """Yield attributes with references to the function's attributes substituted; dropped if there is no value."""
    for attribute in attributes:
        if not attribute.ref_attr_name:
            yield attribute
        elif attribute.ref_attr_name in values:
            bound = AttributeProto()
            bound.CopyFrom(values[attribute.ref_attr_name])
            bound.name = attribute.name
            yield bound


def short_domain(domain: str) -> str:
    """Return the domain of an operator; the default one is empty, also where a file spells it out."""
    return "" if domain == "ai.onnx" else domain
