"""Replace computed targets of Reshape and Expand by constants where inferred shapes determine them.

Exporters write the target of a Reshape as a Concat of extents read along the way. Where each extent of the result is an
integer, or equals the operand's at the same axis, the target is a constant: 0 copies the operand's extent. What torch
writes for `expand` selects between an extent and 1 by whether the request was -1; where each extent is known by name,
it is read from the first value that has it, and the selection is dropped. `allowzero`, which torch's current exporter
writes on every Reshape, matters only for targets with an empty extent: otherwise it is dropped, so that a Reshape has
one form whichever exporter wrote it.
"""

from collections.abc import Callable, Sequence

from onnxfuse import ops
from onnxfuse.graph.constant_folding import homes_of, read_extents
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter, substitute
from onnxfuse.shapes.extents import reshape_target
from onnxfuse.shapes.types import Dim


@graph_pass
def constant_reshape_targets(graph: Graph) -> bool:
    """Replaces computed targets of Reshape and Expand by constants where the types tell them."""
    changed = False
    for node in list(graph.nodes):
        if node.op not in TARGETS or node.domain or len(node.inputs) != 2:
            continue
        if graph.is_constant(node.inputs[1]):
            changed |= _plain(graph, node)
            continue
        source, result = graph.type(node.inputs[0]).shape, graph.type(node.outputs[0]).shape
        if source is None or result is None:
            continue
        target = TARGETS[node.op](source, result)
        if target is None:
            changed |= node.op == ops.Expand and _read_at_homes(graph, node, source, result)
            continue
        retarget(graph, node, target)  # a 0 in the new target copies
        changed = True
    return changed


@graph_pass
def bypass_shared_reshapes(graph: Graph) -> bool:
    """Lets a Reshape of a shared Reshape read that one's input.

    The preceding one then serves only those. Chains of Reshapes alone stay: rules inspect which axes they merge.
    """
    changed = False
    for node in [n for n in graph.nodes if is_reshape(n)]:
        before = graph.producer(node.inputs[0])
        if before is None or not is_reshape(before) or all(map(is_reshape, graph.readers(node.inputs[0]))):
            continue
        source, result = graph.type(before.inputs[0]).shape, graph.type(node.outputs[0]).shape
        target = None if source is None or result is None else reshape_target(source, result)
        if target is None:
            continue
        to = Rewriter(graph, node)
        to.add(ops.Reshape, before.inputs[0], shape=target, output=node.outputs)
        to.finish()
        changed = True
    return changed


def is_reshape(node: Node) -> bool:
    """Return whether a node is a Reshape, with any allowzero: its result follows from types."""
    return node.op == ops.Reshape and not node.domain


def _plain(graph: Graph, node: Node) -> bool:
    """Drop `allowzero` if the constant target has no 0; return whether it did."""
    target = graph.constant(node.inputs[1]) if node.written.get("allowzero") else None
    if target is None or not target.all():
        return False
    retarget(graph, node, node.inputs[1])
    return True


def retarget(graph: Graph, node: Node, target: str | Sequence[int]) -> None:
    """Set the target of a Reshape or Expand, in which a 0 copies."""
    changes = {"allowzero": None} if node.written.get("allowzero") else {}
    substitute(graph, node, shape=target, **changes)


def _expand(source: tuple[Dim, ...], result: tuple[Dim, ...]) -> list[int] | None:
    """Expand's target: an extent of 1 leaves the operand's as it is."""
    own = (1,) * (len(result) - len(source)) + source
    target = [
        n if isinstance(n, int) else 1 if n is not None and n == o else None for n, o in zip(result, own, strict=True)
    ]
    known = [n for n in target if n is not None]
    return known if len(known) == len(target) else None


def _read_at_homes(graph: Graph, node: Node, source: tuple[Dim, ...], result: tuple[Dim, ...]) -> bool:
    """Let an Expand with a selected target read each extent from the first value that has it; return whether it can."""
    if not _is_chosen(graph, node.inputs[1]):
        return False
    homes, own = homes_of(graph), (1,) * (len(result) - len(source)) + source
    places = [
        n if isinstance(n, int) else 1 if n is not None and n == o else homes.get(n)
        for n, o in zip(result, own, strict=True)
    ]  # fmt: skip
    known = [p for p in places if p is not None]
    if len(known) < len(places) or not all(isinstance(p, int) or _is_before(graph, p[0], node) for p in known):
        return False
    to = Rewriter(graph, node)
    to.copy(node, {1: read_extents(to, known, f"{node.outputs[0]}.target")})
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


TARGETS: dict[str, Callable[[tuple[Dim, ...], tuple[Dim, ...]], list[int] | None]] = {
    ops.Reshape: reshape_target,
    ops.Expand: _expand,
}
