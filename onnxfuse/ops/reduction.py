"""Reductions, normalizations, softmax, running sums."""

import math
from collections.abc import Callable

from onnx import TensorProto

from onnxfuse.ops import scalar
from onnxfuse.ops.families import moving, reducing
from onnxfuse.ops.flops import per_input
from onnxfuse.ops.inputs import DATA, Axes, Indices, data
from onnxfuse.ops.registry import Operator, Over, Trait
from onnxfuse.ops.scalar import Kind, RowNode, S, Scalar, ScalarNode
from onnxfuse.ops.shapes.products import chosen

__all__ = [
    "LRN", "ArgMax", "ArgMin", "BatchNormalization", "CumProd", "CumSum", "GroupNormalization", "Hardmax",
    "InstanceNormalization", "LayerNormalization", "LogSoftmax", "LpNormalization", "MeanVarianceNormalization",
    "NegativeLogLikelihoodLoss", "RMSNormalization", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp",
    "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Softmax",
    "SoftmaxCrossEntropyLoss",
]  # fmt: skip

_INPUTS = {"data": DATA, "axes": Axes("data")}


def _log_sum_exp(x: Scalar, over: Over) -> Scalar:
    """ln(sum(e^x)) = m + ln(sum(e^(x - m))), m = max(x), or 0 where that is infinite."""
    greatest = over("max", x)
    zero = x.number(0)
    finite = scalar.less(scalar.absolute(greatest), math.inf)
    shift = scalar.where(finite, greatest, zero)
    return scalar.log(over("sum", scalar.exp(x - shift))) + shift


def softmax(x: S, over: Callable[[str, S], S]) -> S:
    """Return e^x divided by its sum; `over` reduces over the row."""
    exponential = scalar.exp(x - over("max", x))
    return exponential * scalar.reciprocal(over("sum", exponential))


def _softmax(node: RowNode) -> tuple[Scalar, ...]:
    return (softmax(node.real(0), _in_row(node)),)


def _log_softmax(node: RowNode) -> tuple[Scalar, ...]:
    x, over = node.real(0), _in_row(node)
    shifted = x - over("max", x)
    total = over("sum", scalar.exp(shifted))
    return (shifted - scalar.log(total),)


def _in_row(node: RowNode) -> Over:
    """Return the reduction over the axis; before opset 13 it and all after it were flattened into one row."""
    onward = node.opset < 13
    axis = int(node.number("axis", 1 if onward else -1))
    return lambda kind, x: node.over(kind, x, axis, onward=onward)


def _lp_normalization(node: RowNode) -> tuple[Scalar, ...]:
    """x / norm(x), and 0 where the norm is 0."""
    x, p, axis = node.real(0), node.number("p", 2), int(node.number("axis", -1))
    if p not in (1, 2):
        raise node.refusal(f"with p={p}")
    total = node.over("sum", scalar.absolute(x) if p == 1 else x * x, axis, onward=False)
    norm = total if p == 1 else scalar.sqrt(total)
    zero = x.number(0)
    return (scalar.where(scalar.equal(norm, zero), zero, x / norm),)


def normalized(
    node: RowNode, x: Scalar, scale: Scalar, bias: Scalar | None, epsilon: float = 1e-5
) -> tuple[Scalar, Scalar, Scalar]:
    """Return (x - mean) / root(variance + epsilon) * scale + bias, the mean, and the reciprocal of the root.

    Two passes over the row: the mean, then the sum of squared differences. No cancellation.
    """
    mean = _row_mean(node, x)
    difference = x - mean
    variance = _row_mean(node, difference * difference)
    inverse = inverse_root(node, variance, epsilon)
    y = difference * inverse * scale
    stash = int(node.number("stash_type", TensorProto.FLOAT))
    return y if bias is None else y + bias, _stashed(mean, stash), _stashed(inverse, stash)


def root_mean_square(node: RowNode, x: Scalar, scale: Scalar, epsilon: float) -> tuple[Scalar, Scalar]:
    """Return x / root(mean(x * x) + epsilon) * scale, and the reciprocal of the root."""
    inverse = inverse_root(node, _row_mean(node, x * x), epsilon)
    y = x * inverse * scale
    # The result has the type of the scale, which may differ from the input's.
    y = y if y.dtype == scale.dtype else y.retype(scale.dtype)
    return y, _stashed(inverse, int(node.number("stash_type", TensorProto.FLOAT)))


def _row_mean(node: RowNode, x: Scalar) -> Scalar:
    return node.over("mean", x, int(node.number("axis", -1)), onward=True)


def inverse_root(node: ScalarNode, x: Scalar, epsilon: float) -> Scalar:
    """Return 1 / root(x + epsilon), the latter an attribute."""
    return scalar.reciprocal(scalar.sqrt(x + node.number("epsilon", epsilon)))


def _stashed(x: Scalar, stash: int) -> Scalar:
    """The statistics use the stash type for any input type; the values keep theirs."""
    return x.retype(stash) if x.is_computed_as(stash) else x


def _layer_normalization(node: RowNode) -> tuple[Scalar, ...]:
    return normalized(node, node.term(0), node.term(1), node.optional(2))


def rms_normalization(node: RowNode) -> tuple[Scalar, ...]:
    """Return what RMSNormalization computes, and ONNX Runtime's operators of that kind."""
    return root_mean_square(node, node.term(0), node.term(1), 1e-5)


ReduceSum = reducing(
    "ReduceSum",
    lambda x, over: over("sum", x),
    Trait.ADDS,
    Trait.SHAPES_ON_CUDA,
    Trait.FOLDABLE,
    inputs=_INPUTS,
    moved={"axes": 13},
)
ReduceMean = reducing("ReduceMean", lambda x, over: over("mean", x), Trait.ADDS, inputs=_INPUTS, moved={"axes": 18})
ReduceMax = reducing(
    "ReduceMax",
    lambda x, over: over("max", x),
    Trait.SHAPES_ON_CUDA,
    Trait.FOLDABLE,
    inputs=_INPUTS,
    moved={"axes": 18},
)
ReduceMin = reducing(
    "ReduceMin",
    lambda x, over: over("min", x),
    Trait.SHAPES_ON_CUDA,
    Trait.FOLDABLE,
    inputs=_INPUTS,
    moved={"axes": 18},
)
ReduceProd = reducing(
    "ReduceProd", lambda x, over: over("prod", x), Trait.NONZERO, Trait.FOLDABLE, inputs=_INPUTS, moved={"axes": 18}
)
ReduceL1 = reducing(
    "ReduceL1", lambda x, over: over("sum", scalar.absolute(x)), flops=2, inputs=_INPUTS, moved={"axes": 18}
)
ReduceL2 = reducing(
    "ReduceL2",
    lambda x, over: scalar.sqrt(over("sum", x * x)),
    kinds=(Kind.REAL,),
    flops=2,
    inputs=_INPUTS,
    moved={"axes": 18},
)
ReduceSumSquare = reducing(
    "ReduceSumSquare", lambda x, over: over("sum", x * x), flops=2, inputs=_INPUTS, moved={"axes": 18}
)
ReduceLogSum = reducing(
    "ReduceLogSum", lambda x, over: scalar.log(over("sum", x)), kinds=(Kind.REAL,), inputs=_INPUTS, moved={"axes": 18}
)
ReduceLogSumExp = reducing(
    "ReduceLogSumExp", _log_sum_exp, kinds=(Kind.REAL,), flops=3, inputs=_INPUTS, moved={"axes": 18}
)
ArgMax = moving("ArgMax", Trait.REDUCTION, Trait.CHOOSES, shape=chosen)
ArgMin = moving("ArgMin", Trait.REDUCTION, Trait.CHOOSES, shape=chosen)

Softmax = Operator(
    "Softmax",
    Trait.KEEPS_SHAPE,
    Trait.SOFTMAX,
    Trait.NAMES_AXES,
    inputs=data("input"),
    rows=_softmax,
    flops=per_input(5),
)
LogSoftmax = Operator(
    "LogSoftmax",
    Trait.KEEPS_SHAPE,
    Trait.SOFTMAX,
    Trait.NAMES_AXES,
    inputs=data("input"),
    rows=_log_softmax,
    flops=per_input(6),
)
Hardmax = Operator("Hardmax", Trait.KEEPS_SHAPE, Trait.CHOOSES)
LayerNormalization = Operator("LayerNormalization", Trait.KEEPS_TYPE, rows=_layer_normalization, flops=per_input(8))
RMSNormalization = Operator("RMSNormalization", Trait.KEEPS_SHAPE, rows=rms_normalization, flops=per_input(5))
InstanceNormalization = Operator(
    "InstanceNormalization", Trait.KEEPS_SHAPE, Trait.IMAGES, Trait.HALF_ON_CPU, flops=per_input(8)
)
GroupNormalization = Operator("GroupNormalization", Trait.KEEPS_TYPE, Trait.IMAGES, flops=per_input(8))
BatchNormalization = Operator("BatchNormalization", Trait.KEEPS_SHAPE, flops=per_input(4))
LpNormalization = Operator("LpNormalization", Trait.KEEPS_SHAPE, rows=_lp_normalization, flops=per_input(4))
LRN = Operator("LRN", Trait.KEEPS_SHAPE, Trait.IMAGES, flops=per_input(6))
MeanVarianceNormalization = Operator("MeanVarianceNormalization", Trait.KEEPS_TYPE, flops=per_input(8))
CumSum = Operator(
    "CumSum", Trait.KEEPS_SHAPE, Trait.SHAPES_ON_CUDA, flops=per_input(1), inputs={"x": DATA, "axis": Axes("x")}
)
CumProd = Operator("CumProd", Trait.KEEPS_SHAPE, inputs={"x": DATA, "axis": Axes("x")})

NegativeLogLikelihoodLoss = Operator(
    "NegativeLogLikelihoodLoss", Trait.OPAQUE, inputs={"input": DATA, "target": Indices("input", 1), "weight": DATA}
)
SoftmaxCrossEntropyLoss = Operator(
    "SoftmaxCrossEntropyLoss", Trait.OPAQUE, inputs={"scores": DATA, "labels": Indices("scores", 1), "weights": DATA}
)
