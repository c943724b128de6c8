"""An Einsum of two operands that is a matrix product once their axes are in order: it is one.

Attention is written so, in letters of all kinds and any order. A MatMul between Transposes is what the rules know.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto

from onnxfuse.model.attributes import set_attribute
from onnxfuse.model.graph import Graph, Node
from onnxfuse.model.types import ValueType, differ

FLOATS = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE)
"""What ONNX Runtime's CUDA provider multiplies."""

Axes = tuple[str | int, ...]
"""The axes of a term: letters, and what three dots stand for as numbers, counted from the right."""


@dataclass(frozen=True)
class _Product:
    """`y = Transpose(MatMul(Transpose(left), Transpose(right)))`: operands, and the orders of their axes."""

    left: str
    right: str
    axes: Axes
    """Of the product of the two."""
    orders: tuple[list[int], list[int], list[int]]
    """Of the left operand, the right one and the result."""


def multiply_einsums(graph: Graph) -> bool:
    """Write each Einsum that is a product of matrices, one for each of a batch, as one; return whether any was."""
    changed = False
    for node in [n for n in graph.nodes if n.op == "Einsum" and not n.domain and len(n.inputs) == 2]:
        product = _product(graph, node)
        if product is not None:
            graph.replace([node], _written(graph, node, product))
            changed = True
    return changed


# ---- looking


def _product(graph: Graph, node: Node) -> _Product | None:
    equation, types = node.written["equation"], [graph.type(v) for v in node.inputs]
    assert isinstance(equation, bytes)
    shapes = [t.shape for t in types if t.shape is not None]
    terms = _terms(equation.decode(), [len(s) for s in shapes]) if len(shapes) == 2 else None
    if types[0].dtype not in FLOATS or terms is None:
        return None
    *operands, result = terms
    first, second = ([a for a in result if a in own and a not in other] for own, other in (operands, operands[::-1]))
    # What comes first in the result is of the left operand; a matrix for all of a batch is the right one.
    flip = not first or (bool(second) and result.index(second[0]) < result.index(first[0]))
    (left, right), (rows, columns) = (operands[::-1], (second, first)) if flip else (operands, (first, second))
    if len(rows) == 1 < len(columns):
        flip, left, right, rows, columns = not flip, right, left, columns, rows
    batch = [a for a in result if a in left and a in right]
    terms_summed = [a for a in left if a not in result]
    if not (rows and len(columns) == len(terms_summed) == 1 and set(terms_summed) == set(right) - set(result)):
        return None
    if len(rows) > 1 and batch:  # a matrix for some of a batch: ONNX Runtime copies a list of pointers in each run
        return None
    sizes = [dict(zip(axes, shape, strict=True)) for axes, shape in zip(operands, shapes, strict=True)]
    if any(differ(sizes[0][a], sizes[1][a]) for a in (*batch, *terms_summed)):  # one of them is 1, and repeated
        return None
    wanted = (batch + rows + terms_summed, batch + terms_summed + columns, list(result))
    axes = (*batch, *rows, *columns)
    orders = tuple([have.index(a) for a in want] for have, want in zip((left, right, axes), wanted, strict=True))
    names = node.inputs[::-1] if flip else node.inputs
    return _Product(names[0], names[1], axes, (orders[0], orders[1], orders[2]))


def _terms(equation: str, ranks: Sequence[int]) -> list[Axes] | None:
    """Return the axes of both operands and of the result; None for an axis that is taken twice in a term."""
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
    found = [_axes(term, n) for term, n in zip((*written, result), (*dots, max(dots)), strict=True)]
    return None if any(len(set(axes)) < len(axes) for axes in found) else found


def _axes(term: str, dots: int) -> Axes:
    before, _, after = term.partition("...")
    return (*before, *(range(dots, 0, -1) if "..." in term else ()), *after)


# ---- changing


def _written(graph: Graph, node: Node, product: _Product) -> list[Node]:
    (value,) = node.outputs
    shape = graph.type(value).shape
    left, right, result = product.orders
    nodes, names = list[onnx.NodeProto](), list[str]()
    for operand, order in ((product.left, left), (product.right, right)):
        names.append(_turned(graph, operand, order, graph.fresh(f"{operand}.turned"), nodes))
    made = value if result == sorted(result) else graph.fresh(f"{value}.product")
    nodes.append(onnx.helper.make_node("MatMul", names, [made], node.proto.name))
    if made != value:
        if shape is not None:
            extents = dict(zip(result, shape, strict=True))
            graph.types[made] = ValueType(graph.type(value).dtype, tuple(extents[a] for a in sorted(extents)))
        _turned(graph, made, result, value, nodes)
    return [Node(n) for n in nodes]


def _turned(graph: Graph, value: str, order: list[int], name: str, nodes: list[onnx.NodeProto]) -> str:
    """Return `value` with its axes in an order, by a Transpose more where they are not in it."""
    if order == sorted(order):
        return value
    nodes.append(onnx.helper.make_node("Transpose", [value], [name], name))
    set_attribute(nodes[-1], "perm", order)
    known = graph.type(value)
    if known.shape is not None:
        graph.types[name] = ValueType(known.dtype, tuple(known.shape[axis] for axis in order))
    return name
