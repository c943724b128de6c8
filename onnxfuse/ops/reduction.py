"""Reductions, normalizations, softmax, running sums."""

from onnxfuse.ops.registry import Operator, Trait

ReduceL1 = Operator("ReduceL1", Trait.REDUCTION)
ReduceL2 = Operator("ReduceL2", Trait.REDUCTION)
ReduceLogSum = Operator("ReduceLogSum", Trait.REDUCTION)
ReduceLogSumExp = Operator("ReduceLogSumExp", Trait.REDUCTION)
ReduceMax = Operator("ReduceMax", Trait.REDUCTION)
ReduceMean = Operator("ReduceMean", Trait.REDUCTION)
ReduceMin = Operator("ReduceMin", Trait.REDUCTION)
ReduceProd = Operator("ReduceProd", Trait.REDUCTION)
ReduceSum = Operator("ReduceSum", Trait.REDUCTION)
ReduceSumSquare = Operator("ReduceSumSquare", Trait.REDUCTION)
ArgMax = Operator("ArgMax", Trait.REDUCTION)
ArgMin = Operator("ArgMin", Trait.REDUCTION)

Softmax = Operator("Softmax", Trait.KEEPS_SHAPE)
LogSoftmax = Operator("LogSoftmax", Trait.KEEPS_SHAPE)
Hardmax = Operator("Hardmax", Trait.KEEPS_SHAPE)
LayerNormalization = Operator("LayerNormalization", Trait.KEEPS_SHAPE)
RMSNormalization = Operator("RMSNormalization", Trait.KEEPS_SHAPE)
InstanceNormalization = Operator("InstanceNormalization", Trait.KEEPS_SHAPE)
GroupNormalization = Operator("GroupNormalization", Trait.KEEPS_SHAPE)
BatchNormalization = Operator("BatchNormalization", Trait.KEEPS_SHAPE)
LpNormalization = Operator("LpNormalization", Trait.KEEPS_SHAPE)
LRN = Operator("LRN", Trait.KEEPS_SHAPE)
MeanVarianceNormalization = Operator("MeanVarianceNormalization", Trait.KEEPS_SHAPE)
CumSum = Operator("CumSum", Trait.KEEPS_SHAPE)
CumProd = Operator("CumProd", Trait.KEEPS_SHAPE)

NegativeLogLikelihoodLoss = Operator("NegativeLogLikelihoodLoss", Trait.OPAQUE)
SoftmaxCrossEntropyLoss = Operator("SoftmaxCrossEntropyLoss", Trait.OPAQUE)
