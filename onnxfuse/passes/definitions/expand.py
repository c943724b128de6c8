"""Write operators of ONNX Runtime's own as the nodes of an export, and restore those that no kernel took.

Its optimizers and builders of language models write one operator for a residual and its norm, or for attention. Rules
match what these compute, as exporters write it out. Where nothing fuses this, the operator stays as the file has it:
ONNX Runtime's kernel of it is faster than the nodes by themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from onnx import NodeProto, TensorProto

from onnxfuse import ops
from onnxfuse.graph.defined import definition_of, write_definition
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model.fused import DOMAIN
from onnxfuse.ops import Trait
from onnxfuse.shapes.types import ValueType, shapes_differ


@dataclass(frozen=True)
class Original:
    """A node that was written as others."""

    proto: NodeProto
    weights: Mapping[str, TensorProto]
    """Constants that it reads: nodes written in its place may read parts of them alone."""
    types: Mapping[str, ValueType]
    """Of the values that it reads and computes, as far as they were known."""


Key = tuple[tuple[str | int, ...], str, str]
"""The place of the graph, operator and first output: one may be written in terms of the next."""
Originals = dict[Key, Original]


def expand(graph: Graph, written: Originals) -> bool:
    """Write the nodes of `graph` whose operators have a definition, and record the originals.

    Nodes that compute on constants alone stay: constant folding rounds each of them once.
    """
    changed, constants, folded = False, dict[bytes, str](), set[str]()
    for node in [*graph.nodes]:
        if node.inputs and all(not v or v in folded or graph.is_constant(v) for v in node.inputs):
            folded.update(node.outputs)
        if definition_of(node) is None or not folded.isdisjoint(node.outputs):
            continue
        key = graph.place, node.op, next(o for o in node.outputs if o)
        weights = {v: graph.initializers[v] for v in node.inputs if v in graph.initializers}
        types = {v: graph.type(v) for v in (*node.reads, *node.outputs) if v}
        if write_definition(graph, node, constants):
            written[key] = Original(node.proto, weights, types)
            changed = True
    return changed


def restore(graph: Graph, written: Originals) -> bool:
    """Put the originals back of which nodes are left that no kernel took; return whether there were any."""
    changed = False
    for one in reversed([one for (place, *_), one in written.items() if place == graph.place]):
        original = Node(one.proto)
        there = all(_exists(graph, v, one.weights) for v in original.reads)
        makers = _makers(graph, original) if there and _same_types(graph, one.types) else []
        if makers and _is_left(graph, original, makers):
            for name, weight in one.weights.items():
                graph.initializers.setdefault(name, weight)
                graph.types.setdefault(name, ValueType(weight.data_type, tuple(weight.dims)))
            graph.replace(makers, [original])
            graph.eliminate_dead_code()
            changed = True
    return changed


def _makers(graph: Graph, original: Node) -> list[Node]:
    """Return the nodes that compute the outputs of an original that are read; none if it cannot stand here."""
    makers = dict[Node, None]()
    for value in filter(None, original.outputs):
        maker = graph.producer(value)
        if maker is not None:
            makers[maker] = None
        elif graph.is_read(value) or graph.is_output(value):
            return []
    own = {*original.outputs}
    if any(o and o not in own and graph.is_read_outside(o, ()) for maker in makers for o in maker.outputs):
        return []
    return [*makers] if all(m.domain != DOMAIN for m in makers) else []


def _exists(graph: Graph, value: str, weights: Mapping[str, TensorProto]) -> bool:
    """Return whether a value is still what an original read, or can be again."""
    if value in weights:
        there = graph.initializers.get(value)
        return there is None or there is weights[value] or there == weights[value]
    if graph.producer(value) is not None or value in graph.initializers or value in graph.inputs:
        return True
    return graph.parent is not None and _exists(graph.parent, value, weights)


def _same_types(graph: Graph, types: Mapping[str, ValueType]) -> bool:
    """Return whether values have the types that they had: a pass that pads one gives it another name, or should."""
    for value, before in types.items():
        now = graph.type(value)
        if (before.dtype and now.dtype and before.dtype != now.dtype) or shapes_differ(before.shape, now.shape):
            return False
    return True


def _is_left(graph: Graph, original: Node, makers: list[Node]) -> bool:
    """Return whether ONNX Runtime would compute something between the original's inputs and its outputs."""
    ends, waiting, seen = {*original.reads}, [*makers], {*makers}
    while waiting:
        node = waiting.pop()
        if node.domain == DOMAIN:
            continue
        if not node.has(Trait.VIEW) and node.op != ops.Constant:
            return True
        for value in node.reads:
            maker = None if value in ends else graph.producer(value)
            if maker is not None and maker not in seen:
                seen.add(maker)
                waiting.append(maker)
    return False
