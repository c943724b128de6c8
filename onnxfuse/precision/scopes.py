"""The graphs of a model, each body inside the graph that holds it: what a name means where it is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx
from onnx import GraphProto, NodeProto, TensorProto

from onnxfuse.model.nested import bodies
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import UNKNOWN, ValueType, value_types


@dataclass(eq=False)
class Scope:
    """One graph."""

    proto: GraphProto
    types: dict[str, ValueType]
    parent: Scope | None = None
    bodies: dict[int, list[Scope]] = field(default_factory=dict)
    """The bodies of a node, by its position."""
    own: set[str] = field(default_factory=set)
    """The values that this graph names itself."""
    readers: dict[str, list[tuple[Scope, NodeProto]]] = field(default_factory=dict)
    """Who reads a value of this graph: nodes of it and of bodies inside."""
    producers: dict[str, NodeProto] = field(default_factory=dict)
    constants: dict[str, TensorProto] = field(default_factory=dict)
    """Weights that no caller can replace, and the tensors of Constant nodes."""

    def home(self, name: str) -> Scope | None:
        """Return the graph that names the value which `name` is here; None where none does."""
        scope: Scope | None = self
        while scope is not None and name not in scope.own:
            scope = scope.parent
        return scope

    def type(self, name: str) -> ValueType:
        """Return what is known of the value that `name` is here."""
        home = self.home(name)
        return UNKNOWN if home is None else home.types.get(name, UNKNOWN)

    def constant(self, name: str) -> TensorProto | None:
        """Return the tensor behind a constant, None where it is none."""
        home = self.home(name)
        return None if home is None else home.constants.get(name)

    def producer(self, name: str) -> tuple[Scope, NodeProto] | None:
        """Return the node that computes a value, and its graph."""
        home = self.home(name)
        node = None if home is None else home.producers.get(name)
        return None if home is None or node is None else (home, node)

    def uses(self, name: str) -> list[tuple[Scope, NodeProto]]:
        """Return who reads a value, in the order of the file."""
        home = self.home(name)
        return [] if home is None else home.readers.get(name, [])


def scopes_of(model: onnx.ModelProto, inferred: onnx.ModelProto | None = None) -> Scope:
    """Return the main graph of `model`, with the bodies in it; `inferred` is what `infer` gave for the same nodes."""
    main = _scope(model.graph, (inferred or infer(model)).graph, None)
    replaced = {i.name for i in model.graph.input}
    main.constants = {n: t for n, t in main.constants.items() if n not in replaced}
    for scope in every(main):
        for node in scope.proto.node:
            for name in dict.fromkeys(n for n in node.input if n):
                home = scope.home(name)
                if home is not None:
                    home.readers.setdefault(name, []).append((scope, node))
    return main


def every(scope: Scope) -> Iterator[Scope]:
    """Yield a graph and all bodies inside it."""
    yield scope
    for inner in scope.bodies.values():
        for body in inner:
            yield from every(body)


def _scope(proto: GraphProto, inferred: GraphProto, parent: Scope | None) -> Scope:
    scope = Scope(proto, {**value_types(proto), **value_types(inferred)}, parent)
    scope.constants = {t.name: t for t in proto.initializer}
    scope.own = {i.name for i in proto.input} | set(scope.constants) | {t.values.name for t in proto.sparse_initializer}
    for position, (node, twin) in enumerate(zip(proto.node, inferred.node, strict=True)):
        scope.own.update(o for o in node.output if o)
        scope.producers.update((o, node) for o in node.output if o)
        if node.op_type == "Constant" and not node.domain and node.attribute[0].HasField("t"):
            scope.constants[node.output[0]] = node.attribute[0].t
        inner = [_scope(b, t, scope) for b, t in zip(bodies(node), bodies(twin), strict=True)]
        if inner:
            scope.bodies[position] = inner
    return scope


def called(node: NodeProto) -> str:
    """Return what a node is called: its name, or its first output's."""
    return node.name or key(node)


def key(node: NodeProto) -> str:
    """Return what tells a node from all others: its first output."""
    return next((o for o in node.output if o), "")
