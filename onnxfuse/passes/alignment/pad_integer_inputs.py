"""Rewrite a Pad of integers by an amount computed from their length as a Concat with the padding.

F.pad(ids, (0, (w - length % w) % w), value=pad_id) precedes windowed attention. ONNX Runtime (1.31) has no CUDA kernel
for a Pad of integers: it runs on the CPU, and the ids, the mask and everything derived from them are copied, which
prevents CUDA graph capture. With Concat they stay on the GPU; only the amounts are computed on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import helper

from onnxfuse import ops
from onnxfuse.graph.constant_folding import read_extent
from onnxfuse.graph.evaluate import REFUSALS, evaluate
from onnxfuse.graph.facts.indices import WHOLE
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter, rewrite_each
from onnxfuse.ops import Trait

SINCE = 11
"""First operator set in which Pad reads its amounts as an input."""
DEPTH = 20
"""Maximum nodes to follow from pad amounts to their values."""
MOST = 64
"""Maximum number of amounts to analyze: a Pad has two per axis."""

Entries = np.ndarray
"""For each element its constant value, or the name of the one-element value that it equals."""


@graph_pass
def pad_integer_inputs(graph: Graph) -> bool:
    """Rewrites a computed Pad of integers as a Concat: its Pad has no CUDA kernel.

    A Pad by constants stays: kernels that move data absorb it.
    """
    return graph.opset >= SINCE and rewrite_each(graph, {ops.Pad: _pad})


def _pad(node: Node, to: Rewriter) -> bool:
    data, amounts, value, *axes = (*node.inputs, "", "")
    graph, kind = to.graph, to.graph.type(data)
    if kind.rank is None or kind.dtype not in WHOLE or graph.attributes(node)["mode"] != b"constant" or any(axes):
        return False
    try:
        pads = _entries(graph, amounts, DEPTH)
    except REFUSALS:  # inputs do not match the node: it cannot run (it may be in a dead branch)
        return False
    if pads is None or pads.shape != (2 * kind.rank,) or all(isinstance(e, int) for e in pads):
        return False
    if not all(_is_nonnegative(graph, e) for e in pads):
        return False
    if not value:
        value = to.constant(f"{node.outputs[0]}.value", np.zeros((), helper.tensor_dtype_to_np_dtype(kind.dtype)))
    ends = {axis: (pads[axis], pads[kind.rank + axis]) for axis in range(kind.rank)}
    inner = data
    for axis, both in ends.items():
        if both != (0, 0):
            inner = _along(inner, axis, kind.rank, both, value, f"{node.outputs[0]}.axis_{axis}", to)
    to.replace(node.outputs[0], inner)
    return True


def _along(data: str, axis: int, rank: int, ends: Sequence[int | str], value: str, hint: str, to: Rewriter) -> str:
    """Concatenate `value` before and after the data along an axis, `ends` times."""
    parts, extents = [data], [""] * rank
    for other in (a for a in range(rank) if a != axis):
        extents[other] = read_extent(to, (data, other), f"{hint}.extent_{other}", whole=True)
    for side, amount in zip(("before", "behind"), ends, strict=True):
        if amount == 0:
            continue
        if isinstance(amount, int):
            many = to.constant(f"{hint}.{side}_many", [amount])
        else:
            many = to.add(ops.Reshape, amount, shape=[1], hint=f"{hint}.{side}_many")
        target = to.add(ops.Concat, *extents[:axis], many, *extents[axis + 1 :], axis=0, hint=f"{hint}.{side}_shape")
        padding = to.add(ops.Expand, value, target, hint=f"{hint}.{side}")
        parts.insert(0 if side == "before" else len(parts), padding)
    return to.add(ops.Concat, *parts, axis=axis, hint=hint)


def _is_nonnegative(graph: Graph, entry: int | str) -> bool:
    """Return whether an amount is known to be non-negative: a Pad by -1 removes one element."""
    if isinstance(entry, int):
        return entry >= 0
    node = graph.producer(entry)
    if node is None or node.domain:
        return False
    if node.op == ops.Mod:  # the remainder has the divisor's sign
        divisor = graph.constant(node.inputs[1])
        return not node.written.get("fmod") and divisor is not None and divisor.size == 1 and bool(divisor > 0)
    least = [c for v in node.inputs if (c := graph.constant(v)) is not None]
    return node.op == ops.Max and any(c.size == 1 and bool(c >= 0) for c in least)


# ---- elements of integer tensors


def _entries(graph: Graph, value: str, depth: int) -> Entries | None:
    """Return the elements of an integer tensor; None if unknown."""
    if graph.type(value).dtype not in WHOLE:
        return None
    if graph.is_constant(value):
        array = graph.constant(value)
        return array.astype(object) if array is not None and array.size <= MOST else None
    node = graph.producer(value)
    moves = node is not None and node.has(Trait.CARRIES, Trait.CASTS) and not node.has(Trait.BROADCASTS)
    if node is not None and moves and depth and (graph.element_count(value) or 0) <= MOST:
        entries = _moved(graph, node, value, depth - 1)
        if entries is not None:
            return entries
    shape = graph.type(value).shape
    return np.full(shape, value, object) if shape in ((), (1,)) else None


def _moved(graph: Graph, node: Node, value: str, depth: int) -> Entries | None:
    """Return the elements that a node moves, by running it on their indices; None if one is unknown."""
    elements, inputs, data = list[int | str](), dict[str, np.ndarray](), node.data
    for position, name in enumerate(node.inputs):
        array = _entries(graph, name, depth) if position in data else graph.constant(name)
        if name and array is None:
            return None
        if array is not None and position in data:
            inputs[name] = np.arange(len(elements), len(elements) + array.size).reshape(array.shape)
            elements += array.reshape(-1).tolist()
        elif array is not None:
            inputs[name] = array
    (indices,) = evaluate([node.proto], inputs, [value], graph.opset)
    return np.asarray(np.array(elements, object)[indices.reshape(-1)].reshape(indices.shape))
