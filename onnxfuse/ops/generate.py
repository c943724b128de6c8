"""Constants, ranges, shapes, random numbers, windows of signals."""

from onnxfuse.ops.registry import Operator, Trait

Constant = Operator("Constant")
ConstantOfShape = Operator("ConstantOfShape")
Range = Operator("Range")
Shape = Operator("Shape")
Size = Operator("Size")

EyeLike = Operator("EyeLike", Trait.KEEPS_SHAPE)

Bernoulli = Operator("Bernoulli", Trait.KEEPS_SHAPE, Trait.RANDOM)
RandomNormalLike = Operator("RandomNormalLike", Trait.KEEPS_SHAPE, Trait.RANDOM)
RandomUniformLike = Operator("RandomUniformLike", Trait.KEEPS_SHAPE, Trait.RANDOM)

RandomNormal = Operator("RandomNormal", Trait.RANDOM)
RandomUniform = Operator("RandomUniform", Trait.RANDOM)
Multinomial = Operator("Multinomial", Trait.RANDOM)

BlackmanWindow = Operator("BlackmanWindow", Trait.OPAQUE)
HammingWindow = Operator("HammingWindow", Trait.OPAQUE)
HannWindow = Operator("HannWindow", Trait.OPAQUE)
MelWeightMatrix = Operator("MelWeightMatrix", Trait.OPAQUE)
DFT = Operator("DFT", Trait.OPAQUE)
STFT = Operator("STFT", Trait.OPAQUE)
