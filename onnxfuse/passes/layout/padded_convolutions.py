"""Rewrite zeros around the input of a convolution as the convolution's own padding."""

import numpy as np

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter, rewrite_each
from onnxfuse.passes.layout.writer import integers, read_twice

SINCE = 11
"""First operator set in which Pad reads its amounts as an input."""


@graph_pass
def padded_convolutions(graph: Graph) -> bool:
    """Moves the zeros of a Pad into the padding of the convolution that reads it: signals, images and volumes."""
    return graph.opset >= SINCE and rewrite_each(graph, {ops.Conv: _absorb, ops.ConvInteger: _absorb})


def _absorb(node: Node, to: Rewriter) -> bool:
    """Conv(Pad(x)) -> Conv(x)"""
    graph, attributes = to.graph, to.graph.attributes(node)
    pad = graph.producer(node.inputs[0])
    if pad is None or pad.op != ops.Pad or pad.domain or read_twice(graph, pad):
        return False
    explicit = attributes.get("auto_pad", b"NOTSET") == b"NOTSET"
    if not explicit and attributes["auto_pad"] != b"VALID":
        return False
    if node.op == ops.ConvInteger and any(node.inputs[2:]):
        return False  # its padding is the zero point
    zeros = _zeros(graph, pad)
    if zeros is None:
        return False
    own = integers(attributes, "pads") if explicit else []
    both = [a + b for a, b in zip(own or [0] * len(zeros), zeros, strict=True)]
    to.copy(node, {0: pad.inputs[0]}, pads=both, auto_pad=None)
    return True


def _zeros(graph: Graph, pad: Node) -> list[int] | None:
    """Return the zeros before each spatial axis, then those after it; None if the Pad adds anything else."""
    rank = graph.type(pad.inputs[0]).rank
    value, along = (pad.inputs[i] if len(pad.inputs) > i else "" for i in (2, 3))
    number, axes, pads = graph.constant(value), graph.constant(along), graph.constant(pad.inputs[1])
    if rank is None or pads is None or (value and (number is None or number.any())) or (along and axes is None):
        return None
    if graph.attributes(pad).get("mode", b"constant") != b"constant" or (pads < 0).any():
        return None
    whole = np.zeros((2, rank), np.int64)
    whole[:, np.arange(rank) if axes is None else axes] = pads.reshape(2, -1)
    return None if whole[:, :2].any() else whole[:, 2:].reshape(-1).tolist()
