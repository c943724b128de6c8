"""Growth step: absorb the Reshape and Transpose of a region's outputs; the kernel writes that layout directly.

Kernels that reduce rows read their inputs that way, too.
"""

from onnxfuse import cuda, ops
from onnxfuse.fusion.region.attempt import Attempt, Region
from onnxfuse.fusion.region.make_op import make_op
from onnxfuse.fusion.steps.movement import not_movement, read_as_it_stands, sampled
from onnxfuse.fusion.steps.pointwise import MAX_NODES, convex
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.support.errors import KernelError

ANY_GPU = cuda.SUPPORTED[0]
"""GPU for row plans: whether the axes are compatible is the same on all of them."""

SAMPLE = 120
"""Sample value of a dynamic extent: divisible like real ones, and small enough that several do not make an output too
large.
"""


RUN = 32
"""Minimum contiguous bytes, where a kernel moves runs of adjacent elements: a memory sector."""


def take_transposed_inputs(attempt: Attempt) -> None:
    """Absorb the Transpose that computes an input, with the Reshape after it, where the kernel can read through them.

    # Reshape -> Transpose -> Reshape -> LayerNormalization: the patches of an image, merged
    """
    graph, region, host = attempt.graph, attempt.region, attempt.around.host
    whole = [v for v in graph.inputs_of(region.nodes) if graph.type(v).shape == region.work.shape]
    for value in whole:
        moves = _moves_before(graph, value, region)
        if not moves:
            continue
        reason = _parts_runs(graph, moves[0])
        reason = reason or next((r for n in moves if (r := not_movement(graph, n, host)) is not None), None)
        _take_in(graph, region, moves, moves[0], reason, attempt.rule)


def _rearranges(node: Node) -> bool:
    """Return whether a node is one of the two that a kernel reads or writes through."""
    return not node.domain and node.op in (ops.Reshape, ops.Transpose)


def _moves_before(graph: Graph, value: str, region: Region) -> list[Node]:
    """Return the Transpose that `value` comes from, and the Reshape after it; empty if they have other readers."""
    found: list[Node] = []
    while (node := graph.producer(value)) is not None and not graph.is_output(value):
        inside = all(r in region.nodes or r in found for r in graph.readers(value))
        if not inside or not _rearranges(node) or (found[:1] and node.op == ops.Reshape):
            return []
        found.insert(0, node)
        if node.op == ops.Transpose:
            return found
        value = node.inputs[0]
    return []


def _parts_runs(graph: Graph, transpose: Node) -> str | None:
    """Return why a Transpose moves less than whole sectors at a time, None if it does not."""
    type_ = graph.type(transpose.outputs[0])
    last = type_.shape[-1] if type_.shape else None
    if _moves_last(graph, transpose):
        return "moves the last axis, which would be read or written in pieces"
    if not isinstance(last, int) or last * cuda.item_size(type_.dtype) < RUN:
        return f"leaves runs of {last} contiguous elements, expected {RUN} bytes or more"
    return None


def take_transposed_outputs(attempt: Attempt) -> None:
    """Absorb the Transpose of each output, with the Reshape before it, where the kernel can write through them.

        # MatMul -> Add -> Reshape -> Transpose: the heads of an attention, split

    Unless measuring decides, a Transpose of the last axis stays: 4096x768x768 transposed within each head 17.0 us, the
    product and a kernel that adds and transposes 15.6; by heads alone 12.0 and 15.4 (float16, H200, 2026-11). Stops are
    recorded in the region.
    """
    graph, region, host = attempt.graph, attempt.region, attempt.around.host
    for value in graph.outputs_of(region.nodes):
        moves = _moves(graph, value)
        if not moves or read_as_it_stands(graph, moves[-1]):
            continue
        reason = None
        if cuda.TEMPLATES[region.template].moves_runs:
            reason = _parts_runs(graph, moves[-1])
        elif attempt.around.choices is None and _moves_last(graph, moves[-1]):
            reason = "moves the last axis, which is slower in the product's kernel than in one of its own"
        reason = reason or next((r for n in moves if (r := not_movement(graph, n, host)) is not None), None)
        _take_in(graph, region, moves, moves[-1], reason, attempt.rule)


def _take_in(graph: Graph, region: Region, moves: list[Node], turn: Node, reason: str | None, rule: str) -> None:
    """Add the moves to the region, or record the reason at the Transpose."""
    reason = reason or _refused(graph, {**region.nodes, **dict.fromkeys(moves)}, region, rule)
    if reason is not None:
        region.stops[turn] = reason
        return
    region.nodes.update(dict.fromkeys(moves))
    for node in moves:
        region.stops.pop(node, None)


def _moves(graph: Graph, value: str) -> list[Node]:
    """Return the Transpose that is the only reader of `value`, and the Reshape between them; empty if there is none."""
    found: list[Node] = []
    while not graph.is_output(value) and len(readers := graph.readers(value)) == 1:
        node = readers[0]
        if not _rearranges(node) or node.inputs[0] != value or len(found) > 1:
            return []
        found.append(node)
        if node.op == ops.Transpose:
            return found
        value = node.outputs[0]
    return []


def _moves_last(graph: Graph, transpose: Node) -> bool:
    perm = graph.attributes(transpose).get("perm")
    return not isinstance(perm, list) or perm[-1] != len(perm) - 1


def _refused(graph: Graph, nodes: dict[Node, None], region: Region, rule: str) -> str | None:
    """Return why one kernel cannot compute `nodes`, as far as sizes are known; None if it can."""
    if len(nodes) > MAX_NODES:
        return f"the fused op holds {MAX_NODES} nodes already"
    if not convex(graph, nodes):
        return "depends on a node that depends on the fused op, which would be a cycle"
    made = make_op(graph, sorted(nodes, key=lambda n: n.order), rule, region.template)
    if isinstance(made, str):
        return made
    op, fused = made
    shapes = [sampled(graph.type(v), SAMPLE) for v in fused.inputs]
    known = tuple(s for s in shapes if s is not None)
    if len(known) < len(shapes):
        return "works on a value of unknown rank"
    try:
        cuda.output_shapes(op, known)
        if cuda.TEMPLATES[region.template].moves_runs:
            cuda.plan(op, known, True, ANY_GPU)
    except KernelError as error:
        return f"{error.__cause__}"
    return None
