"""Constants, ranges, shapes, random numbers, windows of signals."""

from onnxfuse.ops.families import moving
from onnxfuse.ops.registry import Operator, Trait

Constant = moving("Constant")
ConstantOfShape = moving("ConstantOfShape", Trait.FOLDABLE)
Range = moving("Range", Trait.FOLDABLE)
Shape = moving("Shape", Trait.FOLDABLE)
Size = moving("Size", Trait.FOLDABLE)

EyeLike = moving("EyeLike", Trait.KEEPS_SHAPE)

Bernoulli = moving("Bernoulli", Trait.KEEPS_SHAPE, Trait.RANDOM)
RandomNormalLike = moving("RandomNormalLike", Trait.KEEPS_SHAPE, Trait.RANDOM)
RandomUniformLike = moving("RandomUniformLike", Trait.KEEPS_SHAPE, Trait.RANDOM)

RandomNormal = moving("RandomNormal", Trait.RANDOM)
RandomUniform = moving("RandomUniform", Trait.RANDOM)
Multinomial = Operator("Multinomial", Trait.RANDOM)

BlackmanWindow = Operator("BlackmanWindow", Trait.OPAQUE)
HammingWindow = Operator("HammingWindow", Trait.OPAQUE)
HannWindow = Operator("HannWindow", Trait.OPAQUE)
MelWeightMatrix = Operator("MelWeightMatrix", Trait.OPAQUE)
DFT = Operator("DFT", Trait.OPAQUE)
STFT = Operator("STFT", Trait.OPAQUE)
