"""Reductions, normalizations, softmax, running sums."""

import math

from onnxfuse.ops import scalar
from onnxfuse.ops.families import moving, reducing
from onnxfuse.ops.flops import per_input
from onnxfuse.ops.inputs import DATA, Axes, Index
from onnxfuse.ops.registry import Operator, Over, Trait
from onnxfuse.ops.scalar import Kind, Scalar

_INPUTS = {"data": DATA, "axes": Axes("data")}


def _log_sum_exp(x: Scalar, over: Over) -> Scalar:
    """ln(sum(e^x)) = m + ln(sum(e^(x - m))), m = max(x), or 0 where that is infinite."""
    greatest = over("max", x)
    zero = x.number(0)
    finite = scalar.less(scalar.absolute(greatest), math.inf)
    shift = scalar.where(finite, greatest, zero)
    return scalar.log(over("sum", scalar.exp(x - shift))) + shift


ReduceSum = reducing("ReduceSum", lambda x, over: over("sum", x), Trait.FOLDABLE, inputs=_INPUTS, moved={"axes": 13})
ReduceMean = reducing("ReduceMean", lambda x, over: over("mean", x), inputs=_INPUTS, moved={"axes": 18})
ReduceMax = reducing("ReduceMax", lambda x, over: over("max", x), Trait.FOLDABLE, inputs=_INPUTS, moved={"axes": 18})
ReduceMin = reducing("ReduceMin", lambda x, over: over("min", x), Trait.FOLDABLE, inputs=_INPUTS, moved={"axes": 18})
ReduceProd = reducing("ReduceProd", lambda x, over: over("prod", x), Trait.FOLDABLE, inputs=_INPUTS, moved={"axes": 18})
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
ArgMax = moving("ArgMax", Trait.REDUCTION, Trait.CHOOSES)
ArgMin = moving("ArgMin", Trait.REDUCTION, Trait.CHOOSES)

Softmax = Operator("Softmax", Trait.KEEPS_SHAPE, Trait.SOFTMAX, flops=per_input(5))
LogSoftmax = Operator("LogSoftmax", Trait.KEEPS_SHAPE, Trait.SOFTMAX, flops=per_input(6))
Hardmax = Operator("Hardmax", Trait.KEEPS_SHAPE, Trait.CHOOSES)
LayerNormalization = Operator("LayerNormalization", Trait.KEEPS_SHAPE, flops=per_input(8))
RMSNormalization = Operator("RMSNormalization", Trait.KEEPS_SHAPE, flops=per_input(5))
InstanceNormalization = Operator("InstanceNormalization", Trait.KEEPS_SHAPE, Trait.HALF_ON_CPU, flops=per_input(8))
GroupNormalization = Operator("GroupNormalization", Trait.KEEPS_SHAPE, flops=per_input(8))
BatchNormalization = Operator("BatchNormalization", Trait.KEEPS_SHAPE, flops=per_input(4))
LpNormalization = Operator("LpNormalization", Trait.KEEPS_SHAPE, flops=per_input(4))
LRN = Operator("LRN", Trait.KEEPS_SHAPE, flops=per_input(6))
MeanVarianceNormalization = Operator("MeanVarianceNormalization", Trait.KEEPS_SHAPE, flops=per_input(8))
CumSum = Operator("CumSum", Trait.KEEPS_SHAPE, flops=per_input(1), inputs={"x": DATA, "axis": Axes("x")})
CumProd = Operator("CumProd", Trait.KEEPS_SHAPE, inputs={"x": DATA, "axis": Axes("x")})

NegativeLogLikelihoodLoss = Operator(
    "NegativeLogLikelihoodLoss", Trait.OPAQUE, inputs={"input": DATA, "target": Index("input", 1), "weight": DATA}
)
SoftmaxCrossEntropyLoss = Operator(
    "SoftmaxCrossEntropyLoss", Trait.OPAQUE, inputs={"scores": DATA, "labels": Index("scores", 1), "weights": DATA}
)
