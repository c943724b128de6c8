"""Growth step: absorb the channel Concat that produces an input of the anchor; the kernel reads the parts instead."""

from onnxfuse import cuda
from onnxfuse.cuda import Growth
from onnxfuse.fusion.region.attempt import Attempt, Region
from onnxfuse.fusion.steps.concat import joins_channels
from onnxfuse.fusion.steps.movement import MAX_READ
from onnxfuse.fusion.steps.pointwise import MAX_NODES
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.rules.match.match import Refusal

BYTES = 16
"""Of the channels of a part, or a multiple: what a kernel copies at once. Of less the Concat stays."""


def is_concatenated(graph: Graph, value: str) -> bool:
    """Return whether a Concat makes `value`."""
    maker = graph.producer(value)
    return maker is not None and not maker.domain and maker.op == "Concat"


def absorb_concat_input(attempt: Attempt) -> Refusal | None:
    """Add the Concat of channels that the region alone reads, where each part has whole vectors of them.

    # Concat -> Conv: dense blocks, decoders with skips; what is put side by side is never written
    # Concat -> MatMul: branches of which one sends its input on (CSP); the product reads each where it lies
    # Concat -> Mul -> Add -> Relu -> MatMul: nor what is made of it

    A rule that wants what computes the left factor, too, is about both: it refuses where no Concat stands before that,
    and where the Concat is the factor as it is and costs nothing. Stops are noted in the region.
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
    reason = region.stops[found[0]] if found else "its left factor is not computed from what a Concat puts side by side"
    return attempt.refusal(reason, "too little")


def _is_free(graph: Graph, attempt: Attempt, concat: Node) -> bool:
    """Return whether a Concat that is the left factor itself is of parts that nothing else reads: none is copied."""
    itself = attempt.input(Growth.LEFT_OPERAND) == concat.outputs[0]
    return itself and not any(graph.is_output(v) or len(graph.readers(v)) > 1 for v in concat.inputs)


def _makers(graph: Graph, region: Region, value: str) -> list[Node]:
    """Return the nodes outside the region whose values the nodes in it read to compute a value, or that compute it."""
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
    """Return why the kernel does not read the parts of a Concat, None where it does."""
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
        return f"would be the {len(tensors)}th input tensor, at most {MAX_READ}"
    return None
