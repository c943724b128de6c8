"""Zero-pad attention heads of unsupported sizes, in the weights that produce and consume them.

Zero columns of queries and keys add nothing to a score; zero columns of values become columns of the result that zero
rows of the next weights cancel. So heads of 15 or 36 elements become heads of 16 or 40, and LeViT's keys, half or a
quarter as wide as its values, are padded to the same width: it becomes regular attention, whose scores are never
written to memory.
"""

from collections.abc import Mapping

from onnx import TensorProto

from onnxfuse.cuda import is_pointwise
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.passes.alignment.pad_channels import RunLayout, Runs, pad_runs, reached

ALIGNED: Mapping[int, int] = {TensorProto.FLOAT: 16, TensorProto.FLOAT16: 8, TensorProto.BFLOAT16: 8}
"""Heads of the kernels of the rule attention have a multiple of so many elements, by their type."""

MOST = 128
"""Elements of a head up to which these kernels, or the library's attention, take any number of heads."""

MOST_TIMES = 4
"""Keys grow to so many times their size at most where values are wider: the product of the scores takes as much longer.

LeViT-256, 32 images, float16: four in the two attentions of 49 and 16 queries 28 us less than two (H200, 2026-11).
"""

MOST_ROUNDED = 2
"""Heads grow to so many times their size at most where they end off a boundary: all that makes and reads them does."""

RANK = 4
"""Of queries, keys and values: [batch, heads, sequence, size]."""


def pad_heads(graph: Graph) -> bool:
    """Let the heads of each attention be as wide as a kernel takes them, where all come from weights and go to some.

    Return whether any are wider.
    """
    changed = False
    for softmax in [n for n in graph.nodes if n.op == "Softmax" and not n.domain]:
        for runs in _narrow(graph, softmax):
            pad_runs(graph, runs)
            changed = True
    return changed


# ---- looking


def _narrow(graph: Graph, softmax: Node) -> list[Runs]:
    """Return the heads of an attention that are to be wider; none where one of them can not."""
    result, scores = _result(graph, softmax), _scores(graph, softmax)
    if result is None or scores is None:
        return []
    queries, keys, values = *scores.inputs, result.inputs[1]
    known = [graph.type(v) for v in (queries, keys, values)]
    aligned = ALIGNED.get(known[0].dtype)
    if aligned is None or any(t.rank != RANK for t in known):
        return []
    of_keys, of_values = ((t.shape or ())[-1] for t in (known[0], known[2]))
    if not isinstance(of_keys, int) or not isinstance(of_values, int):
        return []
    width = -(-max(of_keys, of_values) // aligned) * aligned
    if width > MOST or of_keys > of_values or width > MOST_TIMES * of_keys or width > MOST_ROUNDED * of_values:
        return []
    found = list[Runs]()
    for size, starts in ((of_keys, {queries: 3, keys: 2}), (of_values, {values: 3})):
        if size < width and not any(v in runs.places for v in starts for runs in found):
            runs = reached(graph, {v: RunLayout(axis, 1) for v, axis in starts.items()}, size, width)
            if runs is None:
                return []
            found.append(runs)
    return found


def _result(graph: Graph, softmax: Node) -> Node | None:
    """Return the product of the probabilities and values. Over the last axis a Softmax is the same at every opset."""
    axis = int(str(graph.attributes(softmax)["axis"]))
    node = graph.only_reader(softmax.outputs[0])
    product = node is not None and _is_product(node) and node.inputs[0] == softmax.outputs[0]
    return node if product and axis in (-1, RANK - 1) else None


def _scores(graph: Graph, softmax: Node) -> Node | None:
    """Return the product that the softmax is of, behind a scale and what is added."""
    node = graph.producer(softmax.inputs[0])
    while node is not None and is_pointwise(node.op, node.domain) and len(node.outputs) == 1:
        before = [n for v in node.inputs if (n := graph.producer(v)) is not None and not graph.is_constant(v)]
        node = before[0] if len(before) == 1 else None
    return node if node is not None and _is_product(node) else None


def _is_product(node: Node) -> bool:
    return node.op == "MatMul" and not node.domain
