"""Merge a Clip of a Clip into one.

Quantization-aware training and hand-written activations bound a value that an exporter has bounded already, as hard
swish does after a ReLU6. Of bounds that are in order, the later ones hold for the earlier ones, too:

    Clip(Clip(x, a, b), c, d) = Clip(x, Clip(a, c, d), Clip(b, c, d))
"""

import numpy as np

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter, rewrite_each

SINCE = 11
"""First operator set in which the bounds of a Clip are inputs."""

Bounds = tuple[np.ndarray | None, np.ndarray | None]
"""Lower and upper bound; None where there is none."""


@graph_pass
def merge_clips(graph: Graph) -> bool:
    """Merges a Clip of a Clip with constant bounds into one."""
    return graph.opset >= SINCE and rewrite_each(graph, {ops.Clip: _merged})


def _merged(node: Node, to: Rewriter) -> bool:
    inner = to.graph.producer(node.inputs[0])
    if inner is None or inner.op != ops.Clip or inner.domain or to.graph.only_reader(node.inputs[0]) is not node:
        return False
    first, last = _bounds(to.graph, inner), _bounds(to.graph, node)
    if first is None or last is None:
        return False
    merged = (last[n] if bound is None else _clipped(bound, last) for n, bound in enumerate(first))
    y = node.outputs[0]
    names = (
        "" if b is None else to.constant(f"{y}.{which}", b) for b, which in zip(merged, ("min", "max"), strict=True)
    )
    to.add(ops.Clip, inner.inputs[0], *names, output=y)
    return True


def _bounds(graph: Graph, clip: Node) -> Bounds | None:
    """Return the bounds of a Clip; None if they are computed, or out of order: then the upper one is the result."""
    low, high = (clip.inputs[n] if len(clip.inputs) > n else "" for n in (1, 2))
    bounds = (graph.constant(low) if low else None, graph.constant(high) if high else None)
    if any(name and (bound is None or bound.size != 1) for name, bound in zip((low, high), bounds, strict=True)):
        return None
    return None if bounds[0] is not None and bounds[1] is not None and not (bounds[0] <= bounds[1]).all() else bounds


def _clipped(number: np.ndarray, bounds: Bounds) -> np.ndarray:
    low, high = bounds
    number = number if low is None else np.maximum(number, low)
    return np.asarray(number if high is None else np.minimum(number, high))
