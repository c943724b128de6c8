"""Zero-pad attention heads of unsupported sizes, in the weights that produce and consume them.

Zero columns of queries and keys add nothing to a score; zero columns of values become columns of the result that zero
rows of the next weights cancel. So heads of 15 or 36 elements become heads of 16 or 40, and LeViT's keys, half or a
quarter as wide as its values, are padded to the same width: it becomes regular attention, whose scores are never
written to memory.
"""

from collections.abc import Mapping

from onnx import TensorProto

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.softmax_products import RANK, result_product, score_product
from onnxfuse.passes.alignment.pad_channels import RunLayout, Runs, pad_runs, reached

ALIGNED: Mapping[int, int] = {TensorProto.FLOAT: 16, TensorProto.FLOAT16: 8, TensorProto.BFLOAT16: 8}
"""Required multiple of the head size for kernels of the rule attention, by element type."""

MOST = 128
"""Maximum head size up to which these kernels, or the library's attention, support any number of heads."""

MOST_TIMES = 4
"""Maximum growth factor of keys where values are wider: the product of the scores takes proportionally longer.

LeViT-256, 32 images, float16: a factor of four in the two attentions of 49 and 16 queries took 28 us less than two
(H200, 2026-11).
"""

MOST_ROUNDED = 2
"""Maximum growth factor of misaligned heads: everything that produces and reads them grows with them."""


@graph_pass
def pad_heads(graph: Graph) -> bool:
    """Pads attention heads to a size that a kernel takes, in the weights around them."""
    changed = False
    for softmax in [n for n in graph.nodes if n.op == ops.Softmax and not n.domain]:
        for runs in _narrow(graph, softmax):
            pad_runs(graph, runs)
            changed = True
    return changed


# ---- analysis


def _narrow(graph: Graph, softmax: Node) -> list[Runs]:
    """Return the heads of an attention to pad; none if one of them cannot be padded."""
    result, scores = result_product(graph, softmax), score_product(graph, softmax)
    if result is None or scores is None:
        return []
    queries, keys, values = *scores.inputs, result.inputs[1]
    types = [graph.type(v) for v in (queries, keys, values)]
    aligned = ALIGNED.get(types[0].dtype)
    if aligned is None or any(t.rank != RANK for t in types):
        return []
    of_keys, of_values = ((t.shape or ())[-1] for t in (types[0], types[2]))
    if not isinstance(of_keys, int) or not isinstance(of_values, int):
        return []
    width = -(-max(of_keys, of_values) // aligned) * aligned
    if width > MOST or of_keys > of_values or width > MOST_TIMES * of_keys or width > MOST_ROUNDED * of_values:
        return []
    heads = list[Runs]()
    for size, starts in ((of_keys, {queries: 3, keys: 2}), (of_values, {values: 3})):
        if size < width and not any(v in runs.layouts for v in starts for runs in heads):
            runs = reached(graph, {v: RunLayout(axis, 1) for v, axis in starts.items()}, size, width)
            if runs is None:
                return []
            heads.append(runs)
    return heads
