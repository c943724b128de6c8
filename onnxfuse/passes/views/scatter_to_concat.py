"""Rewrite a scatter into a contiguous slice as Concat(before, update, after): no index tensor, no scatter.

`x[:, 1:] += y` is exported as a ScatterND or a ScatterElements that reads the destination of each element from a
tensor, 32 bytes per element for four axes: torchvision's MViT has 315 MB of indices for 20 MB of scores. No kernel
fuses across a scatter. The parts of a Concat are read in place by movement kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto, helper

from onnxfuse import ops
from onnxfuse.graph.facts.indices import LARGEST, WHOLE, growth
from onnxfuse.graph.facts.masks import extent_of, unsqueezed_axes
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter, rewrite_each
from onnxfuse.ops import Trait
from onnxfuse.shapes.types import Dim

DEPTH = 20
"""Maximum nodes between indices and the Range that they derive from."""
END = np.iinfo(np.int64).max
"""Slice end that means the end of the axis."""
INDEX = 8
"""Bytes of one index."""


@dataclass(frozen=True)
class _Run:
    """Indices that increase by one along an axis, or are one constant."""

    axis: int | None
    """Axis of the index tensor; None for one constant everywhere."""
    first: int
    of: Dim
    """Extent that the indices run up to ..."""
    left: int = 0
    """... and how many elements before it they end."""


@dataclass(frozen=True)
class _Span:
    """Range that is written along an axis of the value."""

    start: int
    end: int
    """As in a Slice: negative from the end."""
    share: float
    """Fraction of the axis, if known."""

    @property
    def whole(self) -> bool:
        """Whether the whole axis is overwritten."""
        return self.start == 0 and self.end == END


@graph_pass
def scatter_to_concat(graph: Graph) -> bool:
    """Rewrites ScatterND over a contiguous slice as Concat(before, update, after)."""
    return rewrite_each(graph, {ops.ScatterND: _by_tuples, ops.ScatterElements: _by_elements})


def _by_tuples(node: Node, to: Rewriter) -> bool:
    """Rewrite a ScatterND."""
    graph, (data, indices, updates) = to.graph, node.inputs
    shape, grid = graph.type(data).shape, (graph.type(indices).shape or (None,))[:-1]
    runs = _columns(graph, indices)
    if shape is None or runs is None or len(runs) > len(shape):
        return False
    along = [run.axis for run in runs if run.axis is not None]
    # Each axis of the grid corresponds to one of the value's, in the same order, or to none.
    if along != sorted(set(along)) or any(e != 1 for axis, e in enumerate(grid) if axis not in along):
        return False
    row = [e for e in shape[len(runs) :] if isinstance(e, int)]
    one = INDEX * len(runs) / max(int(np.prod(row)), 1) if len(row) == len(shape) - len(runs) else 0.0
    spans = _spans(graph, node, runs, one)
    if spans is None:
        return False
    idle = [axis for axis in range(len(grid)) if axis not in along]
    new = [axis for axis, run in enumerate(runs) if run.axis is None]
    if idle != new:
        for op, axis in [*((ops.Squeeze, a) for a in reversed(idle)), *((ops.Unsqueeze, a) for a in new)]:
            updates = to.add(op, updates, axes=[axis], hint=f"{node.outputs[0]}.{op.lower()}_{axis}")
    _between(node, updates, spans, to)
    return True


def _by_elements(node: Node, to: Rewriter) -> bool:
    """Rewrite a ScatterElements."""
    graph, (data, indices, updates) = to.graph, node.inputs
    shape, written = graph.type(data).shape, graph.type(indices).shape
    run = _run(graph, indices, DEPTH)
    if not shape or written is None or run is None or len(written) != len(shape):
        return False
    axis = int(str(graph.attributes(node)["axis"])) % len(shape)
    if run.axis != axis and (run.axis is not None or written[axis] != 1):
        return False
    spans = _spans(graph, node, [run if a == axis else _Run(a, 0, e) for a, e in enumerate(written)], INDEX)
    if spans is None:
        return False
    _between(node, updates, spans, to)
    return True


def _spans(graph: Graph, node: Node, runs: Sequence[_Run], index: float) -> list[_Span] | None:
    """Return the written ranges along the indexed axes; None if unknown, or if the rewrite does not pay off.

    `index`: bytes of indices for each element. A scatter with a reduction is not a slice.
    """
    kind = graph.type(node.inputs[0])
    spans = [_span(run, extent) for run, extent in zip(runs, kind.shape or (), strict=False)]
    result = [s for s in spans if s is not None]
    overwrites = graph.attributes(node).get("reduction", b"none") == b"none"
    return result if overwrites and len(result) == len(runs) and _pays(kind.dtype, result, index) else None


def _span(run: _Run, extent: Dim) -> _Span | None:
    """Return the range of an axis that indices cover, None if unknown."""
    first, of, rest = run.first, run.of, run.left
    if isinstance(extent, int):
        if not isinstance(of, int):
            return None
        start, stop = (first + extent, of - rest + extent) if first < 0 else (first, of - rest)
        if not 0 <= start <= stop <= extent:
            return None
        return _Span(start, END if stop == extent else stop, (stop - start) / max(extent, 1))
    # Either a prefix or a suffix may be excluded: excluding both could exceed the extent.
    from_end = extent is not None and of == extent and first >= 0 and not (first and rest)
    return _Span(first, -rest if rest else END, 1.0) if from_end else None


def _pays(dtype: int, spans: Sequence[_Span], index: float) -> bool:
    """Return whether writing everything moves at most twice the bytes of writing the slice in place.

    The Concat copies the unchanged parts, in a kernel that also does other work.
    """
    if dtype in (TensorProto.UNDEFINED, TensorProto.STRING):
        return False
    size, share = helper.tensor_dtype_to_np_dtype(dtype).itemsize, float(np.prod([s.share for s in spans]))
    return size <= share * (2 * size + index)


def _between(node: Node, updates: str, spans: Sequence[_Span], to: Rewriter) -> None:
    """Concatenate `updates` with the unchanged parts, one axis at a time from the last."""
    data, (output,), inner = node.inputs[0], node.outputs, updates
    partial = [axis for axis, span in enumerate(spans) if not span.whole]
    for axis in reversed(partial):
        span, inside = spans[axis], {a: spans[a] for a in partial if a < axis}
        parts = [inner]
        if span.start:
            before = {**inside, axis: replace(span, start=0, end=span.start)}
            parts.insert(0, _slice(data, before, f"{output}.before_{axis}", to))
        if span.end != END:
            behind = {**inside, axis: replace(span, start=span.end, end=END)}
            parts.append(_slice(data, behind, f"{output}.behind_{axis}", to))
        inner = to.add(ops.Concat, *parts, axis=axis, hint=f"{output}.axis_{axis}")
    to.replace(output, inner)


def _slice(data: str, spans: dict[int, _Span], hint: str, to: Rewriter) -> str:
    starts, ends = [s.start for s in spans.values()], [s.end for s in spans.values()]
    return to.add(ops.Slice, data, starts=starts, ends=ends, axes=[*spans], hint=hint)


# ---- index ranges


def _columns(graph: Graph, indices: str) -> list[_Run] | None:
    """Return the indices along each indexed axis, None if one is unknown."""
    shape, node = graph.type(indices).shape, graph.producer(indices)
    if not shape:
        return None
    if graph.is_constant(indices):
        array = graph.constant(indices)
        columns = [_of_numbers(c) for c in np.moveaxis(array, -1, 0)] if array is not None and _fits(array) else [None]
    elif node is not None and node.op == ops.Concat and not node.domain:
        whole = int(str(graph.attributes(node)["axis"])) in (-1, len(shape) - 1)
        each = [graph.type(v).shape for v in node.inputs]
        if not whole or any(not s or s[-1] != 1 for s in each):
            return None
        columns = [_run(graph, v, DEPTH) for v in node.inputs]
    else:
        columns = [_run(graph, indices, DEPTH)] if shape[-1] == 1 else [None]
    runs = [r for r in columns if r is not None and r.axis != len(shape) - 1]
    return runs if len(runs) == len(columns) == shape[-1] else None


def _run(graph: Graph, value: str, depth: int) -> _Run | None:
    """Return the range that indices run over, None if unknown."""
    if graph.type(value).dtype not in WHOLE:  # for other types the length of a Range does not follow from its ends
        return None
    if graph.is_constant(value):
        array = graph.constant(value)
        return _of_numbers(array) if array is not None and _fits(array) else None
    node = graph.producer(value)
    if node is None or node.domain or depth == 0:
        return None
    if node.op == ops.Range:
        return _counted(graph, node)
    run = _run(graph, node.inputs[0], depth - 1) if node.has(Trait.CARRIES, Trait.CASTS) else None
    if run is None or node.is_elementwise:
        return run if len(node.inputs) == 1 else None
    return _moved(graph, node, run)


def _moved(graph: Graph, node: Node, run: _Run) -> _Run | None:
    """Return the range of indices that a node moves; None if it is unknown."""
    if node.op == ops.Slice:
        return _trimmed(graph, node, run)
    if node.op == ops.Expand:
        return _expanded(graph, node, run)
    if node.op == ops.Unsqueeze:
        return _unsqueezed(graph, node, run)
    return _reshaped(graph, node, run) if node.has(Trait.VIEW) else None


def _fits(array: np.ndarray) -> bool:
    return array.dtype.kind == "i" and 0 < array.size <= LARGEST


def _of_numbers(array: np.ndarray) -> _Run | None:
    first, strides = int(array.reshape(-1)[0]), growth(array)
    along = [axis for axis, stride in enumerate(strides or ()) if stride]
    if strides is None or len(along) > 1 or any(strides[axis] != 1 for axis in along):
        return None
    return _Run(along[0], first, first + array.shape[along[0]]) if along else _Run(None, first, first + 1)


def _counted(graph: Graph, node: Node) -> _Run | None:
    start, end, step = (graph.constant(v) for v in node.inputs)
    if start is None or step is None or step != 1:
        return None
    limit = extent_of(graph, node.inputs[1]) if end is None else int(end.reshape(()))
    return None if limit is None else _Run(0, int(start.reshape(())), limit)


def _trimmed(graph: Graph, node: Node, run: _Run) -> _Run | None:
    """Indices without the first or the last ones; one-dimensional only."""
    numbers = [graph.constant(v) if v else None for v in node.inputs[1:]]
    if run.axis != 0 or graph.type(node.inputs[0]).rank != 1 or any(n is None for n in numbers[:2]):
        return None
    start, end, *rest = (1 if n is None else int(n.reshape(-1)[0]) for n in numbers)
    if start < 0 or (len(rest) > 1 and rest[1] != 1):
        return None
    if end < 0:
        return replace(run, first=run.first + start, left=run.left - end)
    if isinstance(run.of, int):
        return replace(run, first=run.first + start, of=min(run.of - run.left, run.first + end), left=0)
    return replace(run, first=run.first + start) if end >= END >> 1 else None


def _unsqueezed(graph: Graph, node: Node, run: _Run) -> _Run | None:
    rank = graph.type(node.inputs[0]).rank
    axes = None if rank is None else unsqueezed_axes(graph, node, rank)
    if axes is None:
        return None
    return run if run.axis is None else replace(run, axis=axes.index(run.axis))


def _reshaped(graph: Graph, node: Node, run: _Run) -> _Run | None:
    """A list reshaped to one axis of a tensor with that many elements."""
    rank, shape = graph.type(node.inputs[0]).rank, graph.type(node.outputs[0]).shape
    if run.axis is None:
        return run
    if rank != 1 or shape is None:
        return None
    wide = [axis for axis, extent in enumerate(shape) if extent != 1]
    return replace(run, axis=wide[0] if wide else None) if len(wide) < 2 else None


def _expanded(graph: Graph, node: Node, run: _Run) -> _Run | None:
    inner, outer = (graph.type(v).shape for v in (node.inputs[0], node.outputs[0]))
    if inner is None or outer is None:
        return None
    if run.axis is None:
        return run
    axis = run.axis + len(outer) - len(inner)
    if inner[run.axis] == 1:
        return replace(run, axis=None)
    return replace(run, axis=axis) if inner[run.axis] is not None and inner[run.axis] == outer[axis] else None
