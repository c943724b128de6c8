"""Reductions in the body language: semantics of each norm, softmax and sum over any axes, by (domain, op type)."""

import math
from collections.abc import Callable

from onnx import TensorProto

from onnxfuse import ops
from onnxfuse.codegen.operators.node import BodyNode, Handler
from onnxfuse.codegen.program.builder import Term
from onnxfuse.codegen.program.movement import Alike, Channelled, Grouped, Movement, Squeezed
from onnxfuse.codegen.program.program import Move, Reduce
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.element_types import UnsupportedError

MICROSOFT = "com.microsoft"

REDUCTIONS: dict[tuple[str, str], Handler] = {}


def _reduction(*names: str, domain: str = "") -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        REDUCTIONS.update({(domain, name): handler for name in names})
        return handler

    return register


@_reduction(ops.LayerNormalization)
def _layer_normalization(node: BodyNode) -> tuple[Term, ...]:
    """Two passes over the row in registers: the mean, then the sum of squared differences. No cancellation."""
    return _normalized(node, node.term(0), node.term(1), node.optional(2))


@_reduction(ops.SkipLayerNormalization, domain=MICROSOFT)
def _skip_layer_normalization(node: BodyNode) -> tuple[Term, ...]:
    total = _skipped(node, node.optional(4))
    y, mean, inverse = _normalized(node, total, node.term(2), node.optional(3), epsilon=1e-12)
    return y, mean, inverse, total


@_reduction(ops.RMSNormalization, ops.SimplifiedLayerNormalization)
@_reduction(ops.SimplifiedLayerNormalization, domain=MICROSOFT)
def _rms_normalization(node: BodyNode) -> tuple[Term, ...]:
    return _root_mean_square(node, node.term(0), node.term(1), 1e-5)


def _skipped(node: BodyNode, bias: Term | None) -> Term:
    total = node.term(0) + node.term(1)
    return total if bias is None else total + bias


@_reduction(ops.SkipSimplifiedLayerNormalization, domain=MICROSOFT)
def _skip_simplified_layer_normalization(node: BodyNode) -> tuple[Term, ...]:
    total = _skipped(node, node.optional(3))
    y, inverse = _root_mean_square(node, total, node.term(2), 1e-12)
    return y, inverse, inverse, total


@_reduction(ops.Softmax, ops.LogSoftmax)
def _softmax(node: BodyNode) -> tuple[Term, ...]:
    x = node.real(0)
    # Before opset 13 the axis and all axes after it were flattened into one row.
    onward = node.opset < 13
    axis = int(node.number("axis", 1 if onward else -1))
    if node.op_type == ops.Softmax:
        return (softmax(x, axis, onward=onward),)
    shifted = x - _reduced("max", x, (axis,), onward)
    total = _reduced("sum", x.builder.apply("exp", shifted), (axis,), onward)
    return (shifted - x.builder.apply("log", total),)


def softmax(x: Term, axis: int, *, onward: bool) -> Term:
    """Return e^x divided by its sum along an axis; `onward`: along that axis and all after it."""
    exponential = x.builder.apply("exp", x - _reduced("max", x, (axis,), onward))
    return exponential * x.builder.apply("reciprocal", _reduced("sum", exponential, (axis,), onward))


Reduction = Callable[[str, Term], Term]
"""Maps a kind of reduction and its operand to the result, with length 1 on the node's axes."""


def _square(x: Term) -> Term:
    return x * x


def _log_sum_exp(x: Term, over: Reduction) -> Term:
    """ln(sum(e^x)) = m + ln(sum(e^(x - m))), m = max(x), or 0 where that is infinite."""
    b = x.builder
    greatest = over("max", x)
    zero = b.constant(0, x.dtype)
    finite = b.apply("less", b.apply("abs", greatest), math.inf, dtype=TensorProto.BOOL)
    shift = b.apply("where", finite, greatest, zero, dtype=x.dtype)
    return b.apply("log", over("sum", b.apply("exp", x - shift))) + shift


REDUCE: dict[str, Callable[[Term, Reduction], Term]] = {
    ops.ReduceSum: lambda x, over: over("sum", x),
    ops.ReduceMean: lambda x, over: over("mean", x),
    ops.ReduceMax: lambda x, over: over("max", x),
    ops.ReduceMin: lambda x, over: over("min", x),
    ops.ReduceProd: lambda x, over: over("prod", x),
    ops.ReduceL1: lambda x, over: over("sum", x.builder.apply("abs", x)),
    ops.ReduceL2: lambda x, over: x.builder.apply("sqrt", over("sum", _square(x))),
    ops.ReduceSumSquare: lambda x, over: over("sum", _square(x)),
    ops.ReduceLogSum: lambda x, over: x.builder.apply("log", over("sum", x)),
    ops.ReduceLogSumExp: _log_sum_exp,
}


@_reduction(*REDUCE)
def _reduce(node: BodyNode) -> tuple[Term, ...]:
    x = node.term(0)
    if element_types.computed(x.dtype) == "bool":
        raise UnsupportedError(f"{node.op_type} of BOOL")
    if node.op_type in (ops.ReduceL2, ops.ReduceLogSum, ops.ReduceLogSumExp) and not element_types.is_real(x.dtype):
        raise UnsupportedError(f"{node.op_type} of {element_types.name(x.dtype)}")
    found = _axes(node)
    if found is None:
        # No axes and noop_with_empty_axes: elementwise, everything but the reduction.
        return (REDUCE[node.op_type](x, lambda _, term: term),)
    axes, all_ = found
    result = REDUCE[node.op_type](x, lambda kind, term: _reduced(kind, term, axes, onward=all_))
    return (result if node.number("keepdims", 1) == 1 else _moved(result, Squeezed(None if all_ else axes)),)


@_reduction(ops.GlobalAveragePool, ops.GlobalMaxPool)
def _global_pool(node: BodyNode) -> tuple[Term, ...]:
    kind = "mean" if node.op_type == ops.GlobalAveragePool else "max"
    return (_reduced(kind, node.real(0), (2,), onward=True),)


@_reduction(ops.ArgMax, ops.ArgMin)
def _arg(node: BodyNode) -> tuple[Term, ...]:
    x = node.term(0)
    if element_types.computed(x.dtype) == "bool":
        raise UnsupportedError(f"{node.op_type} of BOOL")
    axis = int(node.number("axis", 0))
    kind = node.op_type.lower() + ("_last" if node.number("select_last_index", 0) else "")
    found = x.builder.term(Reduce(kind, x.index, (axis,), False, TensorProto.INT64))
    return (found if node.number("keepdims", 1) == 1 else _moved(found, Squeezed((axis,))),)


@_reduction(ops.InstanceNormalization)
def _instance_normalization(node: BodyNode) -> tuple[Term, ...]:
    """Over all axes after the channels, with scale and bias per channel."""
    x = node.real(0)
    scale, bias = (_moved(node.term(i), Channelled(), like=x) for i in (1, 2))
    return (_standard(node, x, (2,), onward=True) * scale + bias,)


@_reduction(ops.GroupNormalization)
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


@_reduction(ops.LpNormalization)
def _lp_normalization(node: BodyNode) -> tuple[Term, ...]:
    """x / norm(x), and 0 where the norm is 0."""
    x, p = node.real(0), node.number("p", 2)
    if p not in (1, 2):
        raise UnsupportedError(f"LpNormalization with p={p}")
    b = x.builder
    total = _reduced("sum", b.apply("abs", x) if p == 1 else _square(x), (int(node.number("axis", -1)),), onward=False)
    norm = total if p == 1 else b.apply("sqrt", total)
    zero = b.constant(0, x.dtype)
    return (b.apply("where", b.apply("equal", norm, zero, dtype=TensorProto.BOOL), zero, x / norm, dtype=x.dtype),)


def _normalized(
    node: BodyNode, x: Term, scale: Term, bias: Term | None, epsilon: float = 1e-5
) -> tuple[Term, Term, Term]:
    mean = _over_norm_axes(node, x)
    difference = x - mean
    variance = _over_norm_axes(node, difference * difference)
    inverse = _inverse_root(node, variance, epsilon)
    y = difference * inverse * scale
    stash = int(node.number("stash_type", TensorProto.FLOAT))
    return y if bias is None else y + bias, _stashed(mean, stash), _stashed(inverse, stash)


def _root_mean_square(node: BodyNode, x: Term, scale: Term, epsilon: float) -> tuple[Term, Term]:
    inverse = _inverse_root(node, _over_norm_axes(node, x * x), epsilon)
    y = x * inverse * scale
    # The result has the type of the scale, which may differ from the input's.
    y = y if y.dtype == scale.dtype else y.builder.apply("retype", y, dtype=scale.dtype)
    return y, _stashed(inverse, int(node.number("stash_type", TensorProto.FLOAT)))


def _over_norm_axes(node: BodyNode, x: Term) -> Term:
    return _reduced("mean", x, (int(node.number("axis", -1)),), onward=True)


def _inverse_root(node: BodyNode, x: Term, epsilon: float) -> Term:
    root = x.builder.apply("sqrt", x + node.number("epsilon", epsilon))
    return x.builder.apply("reciprocal", root)


def _stashed(x: Term, stash: int) -> Term:
    """The statistics use the stash type for any input type; the values keep theirs."""
    return (
        x
        if element_types.computed(x.dtype) != element_types.computed(stash)
        else x.builder.apply("retype", x, dtype=stash)
    )


def _standard(node: BodyNode, x: Term, axes: tuple[int, ...], *, onward: bool) -> Term:
    """(x - mean) / sqrt(variance + epsilon), in two passes."""
    difference = x - _reduced("mean", x, axes, onward=onward)
    variance = _reduced("mean", difference * difference, axes, onward=onward)
    return difference * _inverse_root(node, variance, 1e-5)


def _moved(x: Term, how: Movement, like: Term | None = None) -> Term:
    return x.builder.term(Move(how, (x.index,) if like is None else (x.index, like.index), x.dtype))


def _reduced(kind: str, x: Term, axes: tuple[int, ...], onward: bool) -> Term:
    return x.builder.term(Reduce(kind, x.index, axes, onward, x.dtype))


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
