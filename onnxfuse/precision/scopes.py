"""Nested scopes: the graphs of a model, each body inside its enclosing graph, with name resolution."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx
from onnx import GraphProto, NodeProto, TensorProto

from onnxfuse.model.nested import bodies, constants_of
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import UNKNOWN, ValueType, value_types


@dataclass(eq=False)
class Scope:
    """One graph."""

    proto: GraphProto
    types: dict[str, ValueType]
    parent: Scope | None = None
    bodies: dict[int, list[Scope]] = field(default_factory=dict)
    """Bodies of a node, by its index."""
    own: set[str] = field(default_factory=set)
    """Values defined by this graph."""
    readers: dict[str, list[tuple[Scope, NodeProto]]] = field(default_factory=dict)
    """Readers of a value of this graph: nodes of it and of nested bodies."""
    producers: dict[str, NodeProto] = field(default_factory=dict)
    constants: dict[str, TensorProto] = field(default_factory=dict)
    """Weights that no caller can replace, and the tensors of Constant nodes."""

    def home(self, name: str) -> Scope | None:
        """Return the graph that defines the value called `name` here; None if there is none."""
        scope: Scope | None = self
        while scope is not None and name not in scope.own:
            scope = scope.parent
        return scope

    def type(self, name: str) -> ValueType:
        """Return the known type of the value called `name` here."""
        owner = self.home(name)
        return UNKNOWN if owner is None else owner.types.get(name, UNKNOWN)

    def constant(self, name: str) -> TensorProto | None:
        """Return the tensor behind a constant; None if it is not constant."""
        owner = self.home(name)
        return None if owner is None else owner.constants.get(name)

    def producer(self, name: str) -> tuple[Scope, NodeProto] | None:
        """Return the node that computes a value, and its graph."""
        owner = self.home(name)
        node = None if owner is None else owner.producers.get(name)
        return None if owner is None or node is None else (owner, node)

    def uses(self, name: str) -> list[tuple[Scope, NodeProto]]:
        """Return the readers of a value, in file order."""
        owner = self.home(name)
        return [] if owner is None else owner.readers.get(name, [])


def scopes_of(model: onnx.ModelProto, inferred: onnx.ModelProto | None = None) -> Scope:
    """Return the main graph of `model` with its nested bodies; `inferred` is the result of `infer` for the same
    nodes."""
    main = _scope(model.graph, (inferred or infer(model)).graph, None)
    replaced = {i.name for i in model.graph.input}
    main.constants = {n: t for n, t in main.constants.items() if n not in replaced}
    for scope in every(main):
        for node in scope.proto.node:
            for name in dict.fromkeys(n for n in node.input if n):
                owner = scope.home(name)
                if owner is not None:
                    owner.readers.setdefault(name, []).append((scope, node))
    return main


def every(scope: Scope) -> Iterator[Scope]:
    """Yield a graph and all nested bodies."""
    yield scope
    for inner in scope.bodies.values():
        for body in inner:
            yield from every(body)


def _scope(proto: GraphProto, inferred: GraphProto, parent: Scope | None) -> Scope:
    scope = Scope(proto, {**value_types(proto), **value_types(inferred)}, parent)
    scope.constants = constants_of(proto)
    scope.own = {i.name for i in proto.input} | set(scope.constants) | {t.values.name for t in proto.sparse_initializer}
    for position, (node, twin) in enumerate(zip(proto.node, inferred.node, strict=True)):
        scope.own.update(o for o in node.output if o)
        scope.producers.update((o, node) for o in node.output if o)
        inner = [_scope(b, t, scope) for b, t in zip(bodies(node), bodies(twin), strict=True)]
        if inner:
            scope.bodies[position] = inner
    return scope


def called(node: NodeProto) -> str:
    """Return the display name of a node: its name, or its first output's."""
    return node.name or key(node)


def key(node: NodeProto) -> str:
    """Return the unique key of a node: its first output."""
    return next((o for o in node.output if o), "")
