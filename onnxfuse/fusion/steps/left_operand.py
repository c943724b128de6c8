"""Growth step: absorb the producer of a product's left factor, where the anchor is its only reader."""

from collections.abc import Collection

from onnxfuse import cuda
from onnxfuse.cuda import Growth
from onnxfuse.fusion.region.attempt import Attempt, GraphContext, Region
from onnxfuse.fusion.steps.pointwise import MAX_INPUTS, MAX_NODES, not_pointwise
from onnxfuse.fusion.steps.start import head_of
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.rules.match.match import Refusal
from onnxfuse.shapes.types import shapes_differ


def is_computed(graph: Graph, value: str, host: frozenset[str]) -> bool:
    """Return whether `value` is computed by a pointwise node."""
    maker = graph.producer(value)
    return maker is not None and not_pointwise(graph, maker, host) is None


def absorb_left_operand(attempt: Attempt) -> Refusal | None:
    """Absorb the pointwise producers of the left factor that the anchors read; refuse if there are none.

    # Sigmoid -> Mul -> MatMul: the left factor is computed inside the product's kernel

    Producers of a vector operand stay outside: EfficientNet-B0 of 32 images took 82 us more with the gates' bias and
    sigmoid inside, recomputed per element (H200, float16, 2026-11). Nodes that a preceding kernel absorbs stay there.
    Stops are recorded in the region.
    """
    graph, region, around = attempt.graph, attempt.region, attempt.around
    value = attempt.input(Growth.LEFT_OPERAND)
    joined: list[Node] = []
    while True:
        read = [value, *(v for n in joined for v in n.reads)]
        makers = dict.fromkeys(p for v in read if (p := graph.producer(v)) is not None and p not in region.nodes)
        stops: dict[Node, str] = {}
        for node in makers:
            reason = _refused(graph, region, node, value, {*attempt.seeds, *joined}, around)
            if reason is None:
                region.nodes[node] = None
                joined.append(node)
                break
            stops[node] = reason
        else:
            # A node with two readers joins after both: stops are final once no node joins any more.
            region.stops.update(stops)
            break
    # With the Concat step enabled, a Concat alone is sufficient: that step checks for it.
    if joined or attempt.how.wants(Growth.JOINED_INPUT):
        return None
    maker = graph.producer(value)
    if maker is None:
        return attempt.too_little("its left factor is no pointwise node's", of="alone")
    stop = attempt.stop(maker, region.stops[maker])
    return attempt.too_little(stop.reason, stop, "" if maker.is_elementwise else "alone")


def _refused(
    graph: Graph,
    region: Region,
    node: Node,
    value: str,
    readers: Collection[Node],
    around: GraphContext,
) -> str | None:
    """Return why `node` is not computed inside the kernel, None if it is."""
    if node in region.left:
        return region.left[node]
    if (reason := not_pointwise(graph, node, around.host)) is not None:
        return reason
    whole, made = graph.type(value), graph.type(node.outputs[0])
    if made.shape is None or shapes_differ(made.shape, whole.shape):
        return f"computes {made}, the factor is {whole}"
    output = node.outputs[0]
    if graph.is_read_outside(output, readers):
        return f"computes '{output}', which is read elsewhere, too"
    if (head := head_of(graph, node, around)) is not None:
        return f"stands after {head.op}, whose own kernel takes it"
    together = {**region.nodes, node: None}
    if len(together) > MAX_NODES:
        return f"the fused op holds {MAX_NODES} nodes already"
    tensors = [v for v in graph.inputs_of(together) if graph.element_count(v) != 1]
    if len(tensors) > MAX_INPUTS:
        return f"would read {len(tensors)} tensors, at most {MAX_INPUTS}"
    for v in node.reads:
        if graph.element_count(v) != 1:
            reason = cuda.unreadable_before(region.template, graph.type(v).shape, whole.shape)
            if reason is not None:
                return f"'{v}' {reason} ({graph.type(v)}, {whole})"
    return None
