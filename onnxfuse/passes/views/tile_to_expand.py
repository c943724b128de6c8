"""Rewrite a Tile that repeats only axes of extent 1 as an Expand.

torch exports `repeat_interleave` so, which decoders use to repeat keys and values for each group of queries. Readers of
an Expand can read its input instead, and rules match that.
"""

from onnxfuse import ops
from onnxfuse.graph.graph import Graph
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import substitute

SINCE = 8
"""First operator set with Expand."""


@graph_pass
def tile_to_expand(graph: Graph) -> bool:
    """Rewrites a Tile that repeats only unit axes as an Expand."""
    changed = False
    for node in list(graph.nodes):
        if node.op != ops.Tile or node.domain or graph.opset < SINCE:
            continue
        repeats, shape = graph.constant(node.inputs[1]), graph.type(node.inputs[0]).shape
        if repeats is None or shape is None or len(shape) != repeats.size:
            continue
        if all(often == 1 or (often > 1 and extent == 1) for often, extent in zip(repeats, shape, strict=True)):
            substitute(graph, node, op=ops.Expand)  # 1 keeps an extent in Expand's target, too
            changed = True
    return changed
