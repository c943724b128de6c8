"""Shapes of sums of products, and of reductions."""

from collections.abc import Collection, Sequence

from onnxfuse.ops.shapes.extents import UnknownError, axis_of, broadcast, different_axes, may_equal
from onnxfuse.ops.shapes.node import Dims, ShapeNode
from onnxfuse.symbolic.branching import want


def multiplied(left: Sequence[int], right: Sequence[int], axes: tuple[int, int] = (-1, -2)) -> tuple[int, ...]:
    """Return the shape of a matrix product that sums over these axes of the operands, of their last two each."""
    want(min(len(left), len(right)) > 1, lambda: f"a product of ranks {len(left)} and {len(right)}, expected 2 or more")
    a, b = axes
    want(may_equal(left[a], right[b]), lambda: f"a product with {left[a]} in one axis and {right[b]} in the other")
    return (*broadcast((left[:-2], right[:-2])), left[-3 - a], right[-3 - b])


def matmul(node: ShapeNode) -> list[Dims]:
    """Return the shape of a MatMul; a vector is a row on the left, a column on the right, and gone from the result."""
    a, b = node.shape(0), node.shape(1)
    if not a or not b:
        raise UnknownError("a product of scalars")
    made = multiplied((1, *a) if len(a) == 1 else a, (*b, 1) if len(b) == 1 else b)
    kept = made[:-2] if len(a) == 1 else made[:-1]
    return [(*kept, *made[-1:]) if len(b) > 1 else kept]


def gemm(node: ShapeNode) -> list[Dims]:
    """Return the shape of a Gemm."""
    axes = -2 if node.attribute("transA", 0) else -1, -1 if node.attribute("transB", 0) else -2
    return [multiplied(node.shape(0), node.shape(1), axes)]


def packed(node: ShapeNode) -> list[Dims]:
    """Return the shape of a product by a weight in few bits, whose sizes are attributes."""
    a, k = node.shape(0), node.attribute("K")
    want(bool(a) and may_equal(a[-1], k), lambda: f"a product of shape {a} by a weight of {k} terms")
    return [(*a[:-1], node.attribute("N"))]


def einsum(node: ShapeNode) -> list[Dims]:
    """Return the shape of an Einsum without an ellipsis."""
    terms, arrow, result = str(node.attribute("equation"), "ascii").replace(" ", "").partition("->")
    extents: dict[str, Dims] = {}
    for position, term in enumerate(terms.split(",")):
        shape = node.shape(position)
        if "." in term or len(term) != len(shape):
            raise UnknownError("axes without letters")
        for letter, n in zip(term, shape, strict=True):
            extents[letter] = broadcast((extents.get(letter, (1,)), (n,)))
    if not arrow:
        result = "".join(sorted(letter for letter in extents if terms.count(letter) == 1))
    if not extents.keys() >= set(result):
        raise UnknownError(f"a result of {result!r}, which is not of the operands' letters")
    return [tuple(extents[letter][0] for letter in result)]


def reduced(of: Sequence[int], axes: Collection[int], keep: bool) -> tuple[int, ...]:
    """Return the shape of a reduction over these axes, which are non-negative."""
    return tuple(1 if d in axes else n for d, n in enumerate(of) if keep or d not in axes)


def reduced_axes(node: ShapeNode) -> tuple[int, ...]:
    """Return the axes of a reduction, non-negative; all if the node names none."""
    rank = len(node.shape(0))
    axes = different_axes(node.axes("axes"), rank, "a reduction") if node.has("axes") else ()
    return axes if axes or node.attribute("noop_with_empty_axes", 0) else tuple(range(rank))


def reduction(node: ShapeNode) -> list[Dims]:
    """Return the shape of a reduction over the axes that the node names."""
    # As in ONNX Runtime and in ONNX's inference, 1 alone keeps them.
    return [reduced(node.shape(0), reduced_axes(node), node.attribute("keepdims", 1) == 1)]


def chosen(node: ShapeNode) -> list[Dims]:
    """Return the shape of an ArgMax or ArgMin."""
    of = node.shape(0)
    return [reduced(of, (axis_of(node.attribute("axis", 0), len(of)),), node.attribute("keepdims", 1) == 1)]
