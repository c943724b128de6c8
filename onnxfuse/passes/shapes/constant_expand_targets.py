"""Replace computed targets of Expand by constants where inferred shapes determine them.

What torch writes for `expand` selects between an extent and 1 by whether the request was -1; where each extent is known
by name, it is read from the first value that has it, and the selection is dropped.
"""

from onnxfuse import ops
from onnxfuse.graph.constant_folding import homes_of, read_extents, retarget
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter
from onnxfuse.shapes.types import Dim


@graph_pass
def constant_expand_targets(graph: Graph) -> bool:
    """Replaces computed targets of Expand by constants where shapes determine them."""
    changed = False
    for node in [n for n in graph.nodes if n.op == ops.Expand and not n.domain and not graph.is_constant(n.inputs[1])]:
        source, result = graph.type(node.inputs[0]).shape, graph.type(node.outputs[0]).shape
        if source is None or result is None:
            continue
        target = _target(source, result)
        if target is not None:
            retarget(graph, node, target)
        changed |= target is not None or _read_at_homes(graph, node, source, result)
    return changed


def _target(source: tuple[Dim, ...], result: tuple[Dim, ...]) -> list[int] | None:
    """Return the constant target of an Expand: an extent of 1 leaves the operand's as it is."""
    own = (1,) * (len(result) - len(source)) + source
    target = [
        n if isinstance(n, int) else 1 if n is not None and n == o else None for n, o in zip(result, own, strict=True)
    ]
    constants = [n for n in target if n is not None]
    return constants if len(constants) == len(target) else None


def _read_at_homes(graph: Graph, node: Node, source: tuple[Dim, ...], result: tuple[Dim, ...]) -> bool:
    """Let an Expand with a selected target read each extent from the first value that has it; return whether it can."""
    if not _is_chosen(graph, node.inputs[1]):
        return False
    homes, own = homes_of(graph), (1,) * (len(result) - len(source)) + source
    locations = [
        n if isinstance(n, int) else 1 if n is not None and n == o else homes.get(n)
        for n, o in zip(result, own, strict=True)
    ]  # fmt: skip
    sources = [p for p in locations if p is not None]
    if len(sources) < len(locations) or not all(isinstance(p, int) or _is_before(graph, p[0], node) for p in sources):
        return False
    to = Rewriter(graph, node)
    to.copy(node, {1: read_extents(to, sources, f"{node.outputs[0]}.target")})
    to.finish()
    return True


def _is_chosen(graph: Graph, target: str) -> bool:
    """Return whether the computation of a target contains a Where."""
    waiting, seen = [target], set[str]()
    while waiting:
        node = graph.producer(waiting.pop())
        if node is None or node.op == ops.Shape or node.name in seen:
            continue
        if node.op == ops.Where:
            return True
        seen.add(node.name)
        waiting += [v for v in node.inputs if v]
    return False


def _is_before(graph: Graph, value: str, node: Node) -> bool:
    producer = graph.producer(value)
    return producer is None or producer.order < node.order
