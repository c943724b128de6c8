"""Reductions, normalizations, softmax, running sums."""

from onnxfuse.ops.registry import Entries, Trait, entries

ENTRIES: Entries = (
    *entries(
        "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
        "ReduceSumSquare ArgMax ArgMin",
        Trait.REDUCTION,
    ),
    *entries(
        "Softmax LogSoftmax Hardmax LayerNormalization RMSNormalization InstanceNormalization "
        "GroupNormalization BatchNormalization LpNormalization LRN MeanVarianceNormalization CumSum CumProd",
        Trait.KEEPS_SHAPE,
    ),
    *entries(
        "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
        Trait.OPAQUE,
    ),
)
