"""Growth step: absorb the channel Concat that produces an input of the anchor; the kernel reads the parts instead."""

from onnxfuse import cuda, ops
from onnxfuse.cuda import Growth
from onnxfuse.fusion.region.attempt import Attempt, Region
from onnxfuse.fusion.steps.concat import joins_channels
from onnxfuse.fusion.steps.movement import MAX_READ
from onnxfuse.fusion.steps.pointwise import MAX_NODES
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.rules.match.match import Refusal

BYTES = 16
"""Required multiple of a part's channels in bytes: the kernel's vector size. Otherwise the Concat stays."""


def is_concatenated(graph: Graph, value: str) -> bool:
    """Return whether `value` is computed by a Concat."""
    maker = graph.producer(value)
    return maker is not None and not maker.domain and maker.op == ops.Concat


def absorb_concat_input(attempt: Attempt) -> Refusal | None:
    """Absorb a channel Concat read by the region alone, where each part consists of whole vectors.

        # Concat -> Conv: dense blocks, decoders with skips; the concatenated value is never written
        # Concat -> MatMul: branches of which one forwards its input (CSP); the product reads each in place
        # Concat -> Mul -> Add -> Relu -> MatMul: nor is the value computed from it

    A rule that also absorbs the producers of the left factor requires both: it refuses if no Concat precedes those, and
    if the Concat is the factor itself and costs nothing. Stops are recorded in the region.
    """
    graph, region = attempt.graph, attempt.region
    found = [
        n for n in _makers(graph, region, attempt.input(Growth.JOINED_INPUT)) if is_concatenated(graph, n.outputs[0])
    ]
    for node in found[:1]:
        reason = _refused(graph, region, node)
        if reason is None and attempt.how.wants(Growth.LEFT_OPERAND) and _is_free(graph, attempt, node):
            reason = "is all written in place by what computes its parts"
        if reason is None:
            region.nodes[node] = None
            region.stops.pop(node, None)
            return None
        region.stops[node] = reason
    if not attempt.how.wants(Growth.LEFT_OPERAND):
        return None
    if not found:
        return attempt.too_little("its left factor is not computed from what a Concat puts side by side")
    stop = attempt.stop(found[0], region.stops[found[0]])
    return attempt.too_little(stop.reason, stop)


def _is_free(graph: Graph, attempt: Attempt, concat: Node) -> bool:
    """Return whether a Concat that is the left factor itself has parts without other readers: none is copied."""
    itself = attempt.input(Growth.LEFT_OPERAND) == concat.outputs[0]
    return itself and not any(graph.is_output(v) or len(graph.readers(v)) > 1 for v in concat.inputs)


def _makers(graph: Graph, region: Region, value: str) -> list[Node]:
    """Return the producers outside the region of a value, or of the operands of region nodes that compute it."""
    found, inside, waiting = dict[Node, None](), set[Node](), [value]
    while waiting:
        maker = graph.producer(waiting.pop())
        if maker is None or maker in inside:
            continue
        if maker in region.nodes:
            inside.add(maker)
            waiting.extend(maker.reads)
        else:
            found[maker] = None
    return list(found)


def _refused(graph: Graph, region: Region, node: Node) -> str | None:
    """Return why the kernel does not read the parts of a Concat, None if it does."""
    if node in region.left:
        return region.left[node]
    if not joins_channels(graph, node):
        return "does not put the channels of channels-last images side by side"
    value = node.outputs[0]
    if graph.is_read_outside(value, region.nodes):
        return f"computes '{value}', which is read elsewhere, too"
    for part in node.inputs:
        type_ = graph.type(part)
        channels = type_.shape[-1] if type_.shape else None
        if not isinstance(channels, int) or channels * cuda.item_size(type_.dtype) % BYTES:
            return f"'{part}' has {channels} channels, expected a multiple of {BYTES} bytes"
    if len(region.nodes) >= MAX_NODES:
        return f"the fused op holds {MAX_NODES} nodes already"
    tensors = [v for v in graph.inputs_of({**region.nodes, node: None}) if graph.element_count(v) != 1]
    if len(tensors) > MAX_READ:
        return f"would read {len(tensors)} tensors, at most {MAX_READ}"
    return None
