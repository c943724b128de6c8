"""Whether a graph is a step of decoding: an open number of tokens then is one in most of its runs."""

from onnxfuse import ops
from onnxfuse.graph.graph import Graph

CACHE_RANK = 4
"""Batch, heads, tokens, and the elements of a head."""


def keeps_cache(graph: Graph) -> bool:
    """Return whether a node makes an output of the graph from a cache that is an input of it: a Concat that appends the
    new tokens, or an attention, as an output beside its result."""
    for value in graph.outputs:
        node = graph.producer(value)
        if node is None or not _may_be_cache(graph, value):
            continue
        appends = node.op == ops.Concat and len(node.inputs) == 2
        if not appends and value == node.outputs[0]:
            continue
        read = node.inputs[:1] if appends else node.inputs
        if any(v in graph.inputs and _may_be_cache(graph, v) for v in read):
            return True
    return False


def _may_be_cache(graph: Graph, value: str) -> bool:
    return len(graph.type(value).shape or ()) == CACHE_RANK
