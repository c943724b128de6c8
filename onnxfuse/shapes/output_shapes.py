"""Shape functions of operators: output shapes from input shapes, with symbolic extents propagated like integers."""

from collections.abc import Callable, Sequence

from onnx import NodeProto

from onnxfuse import ops
from onnxfuse.ops import Trait, named
from onnxfuse.shapes import image_shapes
from onnxfuse.shapes.extents import broadcast, computed, element_count, quotient
from onnxfuse.shapes.types import Dim, Shape
from onnxfuse.shapes.value_facts import ValueFacts, attribute, integer
from onnxfuse.symbolic.integer import IntLike, at_most, bounds, exact_quotient, smallest

KEEPS = named(Trait.KEEPS_SHAPE)
"""Operators whose first output has the shape of the first input."""

BROADCASTS = named(Trait.BROADCASTS)


def shapes_of(known: ValueFacts, node: NodeProto) -> Sequence[Shape]:
    """Return a node's output shapes, None for an unknown one; empty for operators not handled here.

    Raises IndexError, ValueError, TypeError or ZeroDivisionError for a node with inconsistent inputs.
    """
    if node.domain not in ("", "ai.onnx"):
        return []
    shapes = [known.shapes.get(v) for v in node.input]
    if node.op_type in KEEPS:
        return shapes[:1]
    if node.op_type in BROADCASTS:
        return [broadcast(shapes)]
    shape_of = _SHAPES.get(node.op_type)
    return [] if shape_of is None else shape_of(known, node, shapes)


def _transpose(known: ValueFacts, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    shape, perm = shapes[0], attribute(node, "perm")
    if shape is None:
        return []
    return [tuple(shape[i] for i in perm) if isinstance(perm, list) else shape[::-1]]


def _matmul(known: ValueFacts, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    a, b = shapes
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        return []
    batch = broadcast([a[:-2], b[:-2]])
    return [] if batch is None else [(*batch, a[-2], b[-1])]


def _gemm(known: ValueFacts, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    a, b = shapes[:2]
    if a is None or b is None:
        return []
    return [(a[1 if attribute(node, "transA", 0) else 0], b[0 if attribute(node, "transB", 0) else 1])]


def _reshape(known: ValueFacts, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    source, target = shapes[0], known.vector(node, 1)
    if target is None:
        return []
    copies = not attribute(node, "allowzero", 0)
    whole: list[Dim] = []
    for axis, extent in enumerate(target):
        copied = copies and extent == 0
        whole.append((source[axis] if source is not None and axis < len(source) else None) if copied else extent)
    if -1 in whole:
        rest = [d for d in whole if d != -1]
        whole[whole.index(-1)] = quotient(source, rest)
    return [tuple(whole)]


def _flatten(known: ValueFacts, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    if shapes[0] is None:
        return []
    axis = integer(node, "axis", 1)
    return [(element_count(shapes[0][:axis]), element_count(shapes[0][axis:]))]


def _unsqueeze(known: ValueFacts, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    if shapes[0] is None:
        return []
    written = attribute(node, "axes")
    axes = written if isinstance(written, list) else known.ints(node, 1)
    if axes is None:
        return []
    rank = len(shapes[0]) + len(axes)
    at = {a % rank for a in axes}
    rest = iter(shapes[0])
    return [tuple(1 if i in at else next(rest) for i in range(rank))]


def _squeeze(known: ValueFacts, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    axes = None if shapes[0] is None else known.axes(node, 1, len(shapes[0]))
    if shapes[0] is None or axes is None:
        return []
    return [tuple(d for i, d in enumerate(shapes[0]) if i not in axes)]


def _split(known: ValueFacts, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    if shapes[0] is None:
        return []
    axis = integer(node, "axis", 0) % len(shapes[0])
    written = attribute(node, "split")
    sizes = written if isinstance(written, list) else known.vector(node, 1)
    count = len(node.output)
    if sizes is None and len(node.input) < 2:
        sizes = [computed(exact_quotient, shapes[0][axis], count)] * count
    parts = sizes if sizes is not None and len(sizes) == count else [None] * count
    return [tuple(part if i == axis else d for i, d in enumerate(shapes[0])) for part in parts]


def _slice(known: ValueFacts, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    axes = known.ints(node, 3)
    if shapes[0] is None or axes is None:
        return []
    cut = {a % len(shapes[0]) for a in axes}
    first = _first(known, node)
    return [tuple(computed(_shortened, d, first) if i in cut else d for i, d in enumerate(shapes[0]))]


def _first(known: ValueFacts, node: NodeProto) -> Dim:
    """Return the length of a Slice of one axis that starts at the first element, if the axis is long enough."""
    start, end = known.vector(node, 1), known.vector(node, 2)
    step = known.vector(node, 4) if len(node.input) > 4 else (1,)
    return end[0] if end is not None and len(end) == 1 and start == (0,) and step == (1,) else None


def _shortened(extent: IntLike, end: IntLike) -> Dim:
    """Return the length of the part before `end`, None if that counts from the end."""
    return smallest(extent, end) if bounds(end)[1] >= 0 else None


def _concat(known: ValueFacts, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    parts = [s for s in shapes if s is not None]
    if not parts:
        return []
    axis = integer(node, "axis", 0) % len(parts[0])
    whole = computed(lambda *extents: sum(extents), *(s[axis] for s in parts)) if len(parts) == len(shapes) else None
    return [tuple(whole if i == axis else d for i, d in enumerate(parts[0]))]


def _reduce(known: ValueFacts, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    axes = None if shapes[0] is None else known.axes(node, 1, len(shapes[0]))
    if shapes[0] is None or axes is None:
        return []
    keep = attribute(node, "keepdims", 1) == 1  # as in ONNX Runtime and in ONNX's inference
    return [tuple(1 if i in axes else d for i, d in enumerate(shapes[0]) if keep or i not in axes)]


def _pooled(known: ValueFacts, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    return [] if shapes[0] is None else [(*shapes[0][:2], *(1 for _ in shapes[0][2:]))]


def _range(known: ValueFacts, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    start, limit, delta = (known.vector(node, n) for n in range(3))
    if start is None or limit is None or delta != (1,):
        return []
    return [(computed(_steps, *start, *limit),)]


def _steps(start: IntLike, limit: IntLike) -> Dim:
    """Return the number of integers from `start` up to `limit`; one that is symbolic is taken to be at least 0."""
    if start == 0 and not isinstance(limit, int):
        return limit
    return limit - start if at_most(start, limit) else None


def _gather(known: ValueFacts, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    data, indices = shapes
    if data is None or indices is None:
        return []
    axis = integer(node, "axis", 0) % max(len(data), 1)
    return [(*data[:axis], *indices, *data[axis + 1 :])]


def _filled(known: ValueFacts, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    return [known.vector(node, 0)]


def _expand(known: ValueFacts, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    return [broadcast([shapes[0], known.vector(node, 1)])]


def _tile(known: ValueFacts, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    shape, repeats = shapes[0], known.vector(node, 1)
    if shape is None or repeats is None:
        return []
    return [tuple(computed(lambda extent, count: extent * count, *both) for both in zip(shape, repeats, strict=True))]


_SHAPES: dict[str, Callable[[ValueFacts, NodeProto, list[Shape]], list[Shape]]] = {
    ops.Transpose: _transpose, ops.MatMul: _matmul, ops.Gemm: _gemm, ops.Reshape: _reshape, ops.Flatten: _flatten,
    ops.Unsqueeze: _unsqueeze, ops.Squeeze: _squeeze, ops.Split: _split, ops.Slice: _slice, ops.Concat: _concat,
    ops.GlobalAveragePool: _pooled, ops.GlobalMaxPool: _pooled,
    ops.Gather: _gather, ops.ConstantOfShape: _filled, ops.Expand: _expand, ops.Tile: _tile,
    ops.ReduceMean: _reduce, ops.ReduceSum: _reduce, ops.ReduceMax: _reduce, ops.Range: _range,
    ops.Conv: image_shapes.sliding, ops.ConvInteger: image_shapes.sliding, ops.QLinearConv: image_shapes.sliding,
    ops.MaxPool: image_shapes.sliding, ops.AveragePool: image_shapes.sliding, ops.LpPool: image_shapes.sliding,
    ops.ConvTranspose: image_shapes.spreading, ops.Pad: image_shapes.padded, ops.Resize: image_shapes.resized,
    ops.Upsample: image_shapes.resized, ops.DepthToSpace: image_shapes.from_blocks,
    ops.SpaceToDepth: image_shapes.to_blocks,
}  # fmt: skip
