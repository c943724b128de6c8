"""Let a region take in the Concat of channels that computes an input of its anchor: its kernel reads the parts."""

from onnxfuse import kernels
from onnxfuse.kernels import Growth
from onnxfuse.model.graph import Graph, Node
from onnxfuse.rewrite.fuse.attempt import Attempt, Region
from onnxfuse.rewrite.fuse.concat import joins_channels
from onnxfuse.rewrite.fuse.pointwise import LEFT_ALONE, MAX_INPUTS, MAX_NODES

BYTES = 16
"""Of the channels of a part, or a multiple: what a kernel copies at once. Of less the Concat stays."""


def take_joined_input(attempt: Attempt) -> None:
    """Add the Concat of channels that the anchors alone read, where each part has whole vectors of them.

    # Concat -> Conv: dense blocks, decoders with skips; what is put side by side is never written

    Stops are noted in the region.
    """
    graph, region = attempt.graph, attempt.region
    node = graph.producer(attempt.input(Growth.JOINED_INPUT))
    if node is None or node.domain or node.op != "Concat":
        return
    reason = _refused(graph, region, node)
    if reason is None:
        region.nodes[node] = None
        region.stops.pop(node, None)
    else:
        region.stops[node] = reason


def _refused(graph: Graph, region: Region, node: Node) -> str | None:
    """Return why the kernel does not read the parts of a Concat, None where it does."""
    if node in region.alone:
        return LEFT_ALONE
    if not joins_channels(graph, node):
        return "does not put the channels of channels-last images side by side"
    value = node.outputs[0]
    if graph.is_output(value) or any(r not in region.nodes for r in graph.readers(value)):
        return f"computes '{value}', which is read elsewhere, too"
    for part in node.inputs:
        type_ = graph.type(part)
        channels = type_.shape[-1] if type_.shape else None
        if not isinstance(channels, int) or channels * kernels.item_size(type_.dtype) % BYTES:
            return f"'{part}' has {channels} channels, expected a multiple of {BYTES} bytes"
    if len(region.nodes) >= MAX_NODES:
        return f"the fused op holds {MAX_NODES} nodes already"
    tensors = [v for v in graph.inputs_of({**region.nodes, node: None}) if graph.element_count(v) != 1]
    if len(tensors) > MAX_INPUTS:
        return f"would be the {len(tensors)}th input tensor, at most {MAX_INPUTS}"
    return None
