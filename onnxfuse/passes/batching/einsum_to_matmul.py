"""Rewrite an Einsum of two operands that is a matrix product, up to axis order, as MatMul.

Attention is often written so, with any letters in any order, and so are projections to heads and back. Rules match a
MatMul between Transposes, with Reshapes where several axes form one axis of a matrix.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnx import TensorProto

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter, rewrite_each
from onnxfuse.shapes.extents import element_count, reshape_target
from onnxfuse.shapes.types import Dim, differ

FLOATS = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE)
"""Element types that ONNX Runtime's CUDA provider multiplies."""

Axes = tuple[str | int, ...]
"""The axes of a term: letters, and integers (counted from the right) for the axes of an ellipsis."""


Groups = list[list[str | int]]
"""Groups of axes, each of which forms one axis of a matrix."""


@dataclass(frozen=True)
class _Form:
    """Conversion of an operand to matrices: a permutation, then a Reshape; for the result the inverse."""

    value: str
    order: list[int]
    target: list[int]
    """Target of the Reshape; empty if no axes are merged."""


@graph_pass
def einsum_to_matmul(graph: Graph) -> bool:
    """Rewrites an Einsum that is a matrix product as MatMul and Transposes."""
    return rewrite_each(graph, {ops.Einsum: _written})


# ---- analysis


def _product(graph: Graph, node: Node) -> tuple[_Form, _Form, _Form] | None:
    """Return the forms of both factors and of the result."""
    equation, types = node.written["equation"], [graph.type(v) for v in node.inputs]
    assert isinstance(equation, bytes)
    shapes = [t.shape for t in types if t.shape is not None]
    terms = _terms(equation.decode(), [len(s) for s in shapes]) if len(shapes) == 2 else None
    if types[0].dtype not in FLOATS or terms is None:
        return None
    *operands, result = terms
    sizes = [dict(zip(axes, shape, strict=True)) for axes, shape in zip(operands, shapes, strict=True)]
    both = set(operands[0]) & set(operands[1])
    alone = [[a for a in result if a in own and a not in both] for own in operands]
    summed = [a for a in operands[0] if a not in result]
    batch = [a for a in result if a in both]
    if not all(alone) or not summed or set(summed) != (set(operands[0]) | set(operands[1])) - set(result):
        return None
    if not both.issuperset(summed) or any(differ(sizes[0][a], sizes[1][a]) for a in both):  # extent 1, broadcast
        return None
    # Along a summed axis an Einsum broadcasts an extent of 1, a product does not: of unknown ones it may be.
    if any(sizes[0][a] is None or sizes[0][a] != sizes[1][a] for a in summed):
        return None
    first = int(result.index(alone[1][0]) < result.index(alone[0][0]))  # the result is rows, then columns
    rows, columns = alone[first], alone[1 - first]
    row_groups = [rows] if batch else [[a] for a in rows]  # MatMul accepts any leading axes with one matrix
    extents = sizes[0] | sizes[1]
    forms = []
    for value, axes, groups in (
        (node.inputs[first], operands[first], [*row_groups, summed]),
        (node.inputs[1 - first], operands[1 - first], [summed, columns]),
        (node.outputs[0], result, [*row_groups, columns]),
    ):
        target = _target(batch, groups, extents, joins=axes is not result)
        if target is None:
            return None
        matrix = [*batch, *(a for group in groups for a in group)]
        order = [matrix.index(a) for a in axes] if axes is result else [axes.index(a) for a in matrix]
        forms.append(_Form(value, order, target))
    return forms[0], forms[1], forms[2]


def _target(
    batch: Sequence[str | int], groups: Groups, extents: Mapping[str | int, Dim], *, joins: bool
) -> list[int] | None:
    """Return the target of a Reshape that merges, or splits, the axes of each group; None if it is not constant."""
    if all(len(group) == 1 for group in groups):
        return []
    split = tuple(extents[a] for a in (*batch, *(a for group in groups for a in group)))
    merged = (*(extents[a] for a in batch), *(element_count([extents[a] for a in group]) for group in groups))
    return reshape_target(split, merged) if joins else reshape_target(merged, split)


def _terms(equation: str, ranks: Sequence[int]) -> list[Axes] | None:
    """Return the axes of both operands and of the result; None if a term repeats an axis (a diagonal)."""
    equation, has_result, result = equation.replace(" ", "").partition("->")
    written = equation.split(",")
    if len(written) != len(ranks):
        return None
    dots = [rank - len(term.replace("...", "")) for term, rank in zip(written, ranks, strict=True)]
    if any(n < 0 or (n > 0 and "..." not in term) for term, n in zip(written, dots, strict=True)):
        return None
    if not has_result:
        letters = "".join(written).replace(".", "")
        result = "..." + "".join(a for a in sorted(letters) if letters.count(a) == 1)
    terms = [_axes(term, n) for term, n in zip((*written, result), (*dots, max(dots)), strict=True)]
    return None if any(len(set(axes)) < len(axes) for axes in terms) else terms


def _axes(term: str, dots: int) -> Axes:
    before, _, after = term.partition("...")
    return (*before, *(range(dots, 0, -1) if "..." in term else ()), *after)


# ---- rewriting


def _written(node: Node, to: Rewriter) -> bool:
    product = _product(to.graph, node) if len(node.inputs) == 2 else None
    if product is None:
        return False
    *factors, result = product
    matrices = [_reshaped(_transposed(f.value, f.order, to), f.target, to) for f in factors]
    whole = to.add(ops.MatMul, *matrices, hint=f"{result.value}.product", name=node.proto.name)
    to.replace(result.value, _transposed(_reshaped(whole, result.target, to), result.order, to))
    return True


def _transposed(value: str, order: list[int], to: Rewriter) -> str:
    """Return `value` with its axes permuted, adding a Transpose unless they are in order already."""
    if order == sorted(order):
        return value
    return to.add(ops.Transpose, value, perm=order, hint=f"{value}.turned")


def _reshaped(value: str, target: list[int], to: Rewriter) -> str:
    return to.add(ops.Reshape, value, shape=target, hint=f"{value}.matrix") if target else value
