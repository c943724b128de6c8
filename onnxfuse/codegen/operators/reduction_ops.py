"""Reductions in the body language: semantics of each norm, softmax and sum over any axes, by (domain, op type)."""

from onnx import TensorProto

from onnxfuse import ops
from onnxfuse.codegen.operators.node import BodyNode, Handler, Handlers, handles, reduced
from onnxfuse.codegen.program.builder import Term, as_term
from onnxfuse.codegen.program.movement import Alike, Channelled, Grouped, Movement, Squeezed
from onnxfuse.codegen.program.program import Move, Reduce
from onnxfuse.ops.reduction import inverse_root
from onnxfuse.ops.registry import Reduced, Rows
from onnxfuse.ops.scalar import Kind, Scalar
from onnxfuse.symbolic.element_types import UnsupportedError

REDUCTIONS: Handlers = {}


def _rows(rows: Rows) -> Handler:
    return lambda node: tuple(map(as_term, rows(node)))


def _reduce(formula: Reduced) -> Handler:
    """Return the handler of an operator that reduces over axes given by an attribute or an input."""

    def handler(node: BodyNode) -> tuple[Term, ...]:
        axes_read = _axes(node)
        if axes_read is None:
            # No axes and noop_with_empty_axes: elementwise, everything but the reduction.
            return (as_term(formula(node, lambda _, x: x)),)
        axes, all_ = axes_read

        def over(kind: str, x: Scalar) -> Scalar:
            return reduced(kind, as_term(x), axes, onward=all_)

        result = as_term(formula(node, over))
        return (result if node.number("keepdims", 1) == 1 else _moved(result, Squeezed(None if all_ else axes)),)

    return handler


REDUCTIONS.update({key: _rows(entry.rows) for key, entry in ops.ENTRIES.items() if entry.rows is not None})
REDUCTIONS.update({key: _reduce(entry.reduced) for key, entry in ops.ENTRIES.items() if entry.reduced is not None})


@handles(REDUCTIONS, ops.ArgMax, ops.ArgMin)
def _arg(node: BodyNode) -> tuple[Term, ...]:
    x = node.term(0, Kind.REAL, Kind.INTEGER)
    axis = int(node.number("axis", 0))
    kind = node.op_type.lower() + ("_last" if node.number("select_last_index", 0) else "")
    index = x.builder.term(Reduce(kind, x.index, (axis,), False, TensorProto.INT64))
    return (index if node.number("keepdims", 1) == 1 else _moved(index, Squeezed((axis,))),)


@handles(REDUCTIONS, ops.InstanceNormalization)
def _instance_normalization(node: BodyNode) -> tuple[Term, ...]:
    """Over all axes after the channels, with scale and bias per channel."""
    x = node.real(0)
    scale, bias = (_moved(node.term(i), Channelled(), like=x) for i in (1, 2))
    return (_standard(node, x, (2,), onward=True) * scale + bias,)


@handles(REDUCTIONS, ops.GroupNormalization)
def _group_normalization(node: BodyNode) -> tuple[Term, ...]:
    """Over the channels of a group and all axes after them; scale and bias per channel, before opset 21 per group."""
    x, groups = node.real(0), int(node.number("num_groups", 0))
    if groups < 1:
        raise UnsupportedError("GroupNormalization without num_groups")
    grouped = _moved(x, Grouped(groups))
    normal = _standard(node, grouped, (2,), onward=True)
    if node.opset < 21:
        scale, bias = (_moved(node.term(i), Channelled(), like=grouped) for i in (1, 2))
        return (_moved(normal * scale + bias, Alike(), like=x),)
    scale, bias = (_moved(node.term(i), Channelled(), like=x) for i in (1, 2))
    return (_moved(normal, Alike(), like=x) * scale + bias,)


def _standard(node: BodyNode, x: Term, axes: tuple[int, ...], *, onward: bool) -> Term:
    """(x - mean) / sqrt(variance + epsilon), in two passes."""
    difference = x - reduced("mean", x, axes, onward=onward)
    variance = reduced("mean", difference * difference, axes, onward=onward)
    return difference * as_term(inverse_root(node, variance, 1e-5))


def _moved(x: Term, how: Movement, like: Term | None = None) -> Term:
    return x.builder.term(Move(how, (x.index,) if like is None else (x.index, like.index), x.dtype))


def _listed_axes(node: BodyNode) -> tuple[int, ...] | None:
    """Return the axes of a node, an attribute in older operator sets and an input in newer ones."""
    listed = node.attributes.get("axes")
    return tuple(int(a) for a in listed) if isinstance(listed, list) else node.integers(1)


def _axes(node: BodyNode) -> tuple[tuple[int, ...], bool] | None:
    """Return (axes, whether they are all), or None if nothing is reduced."""
    axes = _listed_axes(node)
    if axes:
        return axes, False
    return None if node.number("noop_with_empty_axes", 0) else ((0,), True)
