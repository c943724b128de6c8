"""Reductions, normalizations, softmax, running sums."""

from onnxfuse.ops.inputs import DATA, Axes, Index
from onnxfuse.ops.registry import Operator, Trait

_INPUTS = {"data": DATA, "axes": Axes("data")}

ReduceL1 = Operator("ReduceL1", Trait.REDUCTION, inputs=_INPUTS, moved={"axes": 18})
ReduceL2 = Operator("ReduceL2", Trait.REDUCTION, inputs=_INPUTS, moved={"axes": 18})
ReduceLogSum = Operator("ReduceLogSum", Trait.REDUCTION, inputs=_INPUTS, moved={"axes": 18})
ReduceLogSumExp = Operator("ReduceLogSumExp", Trait.REDUCTION, inputs=_INPUTS, moved={"axes": 18})
ReduceMax = Operator("ReduceMax", Trait.REDUCTION, inputs=_INPUTS, moved={"axes": 18})
ReduceMean = Operator("ReduceMean", Trait.REDUCTION, inputs=_INPUTS, moved={"axes": 18})
ReduceMin = Operator("ReduceMin", Trait.REDUCTION, inputs=_INPUTS, moved={"axes": 18})
ReduceProd = Operator("ReduceProd", Trait.REDUCTION, inputs=_INPUTS, moved={"axes": 18})
ReduceSum = Operator("ReduceSum", Trait.REDUCTION, inputs=_INPUTS, moved={"axes": 13})
ReduceSumSquare = Operator("ReduceSumSquare", Trait.REDUCTION, inputs=_INPUTS, moved={"axes": 18})
ArgMax = Operator("ArgMax", Trait.REDUCTION, Trait.CHOOSES)
ArgMin = Operator("ArgMin", Trait.REDUCTION, Trait.CHOOSES)

Softmax = Operator("Softmax", Trait.KEEPS_SHAPE, Trait.SOFTMAX)
LogSoftmax = Operator("LogSoftmax", Trait.KEEPS_SHAPE, Trait.SOFTMAX)
Hardmax = Operator("Hardmax", Trait.KEEPS_SHAPE, Trait.CHOOSES)
LayerNormalization = Operator("LayerNormalization", Trait.KEEPS_SHAPE)
RMSNormalization = Operator("RMSNormalization", Trait.KEEPS_SHAPE)
InstanceNormalization = Operator("InstanceNormalization", Trait.KEEPS_SHAPE, Trait.HALF_ON_CPU)
GroupNormalization = Operator("GroupNormalization", Trait.KEEPS_SHAPE)
BatchNormalization = Operator("BatchNormalization", Trait.KEEPS_SHAPE)
LpNormalization = Operator("LpNormalization", Trait.KEEPS_SHAPE)
LRN = Operator("LRN", Trait.KEEPS_SHAPE)
MeanVarianceNormalization = Operator("MeanVarianceNormalization", Trait.KEEPS_SHAPE)
CumSum = Operator("CumSum", Trait.KEEPS_SHAPE, inputs={"x": DATA, "axis": Axes("x")})
CumProd = Operator("CumProd", Trait.KEEPS_SHAPE, inputs={"x": DATA, "axis": Axes("x")})

NegativeLogLikelihoodLoss = Operator(
    "NegativeLogLikelihoodLoss", Trait.OPAQUE, inputs={"input": DATA, "target": Index("input", 1), "weight": DATA}
)
SoftmaxCrossEntropyLoss = Operator(
    "SoftmaxCrossEntropyLoss", Trait.OPAQUE, inputs={"scores": DATA, "labels": Index("scores", 1), "weights": DATA}
)
