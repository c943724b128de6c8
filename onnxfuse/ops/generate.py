"""Constants, ranges, shapes, random numbers, windows of signals."""

from onnxfuse.ops.registry import Entries, Trait, entries

ENTRIES: Entries = (
    *entries(
        "Constant ConstantOfShape Range Shape Size",
    ),
    *entries(
        "EyeLike",
        Trait.KEEPS_SHAPE,
    ),
    *entries(
        "Bernoulli RandomNormalLike RandomUniformLike",
        Trait.RANDOM,
        Trait.KEEPS_SHAPE,
    ),
    *entries(
        "RandomNormal RandomUniform Multinomial",
        Trait.RANDOM,
    ),
    *entries(
        "BlackmanWindow HammingWindow HannWindow MelWeightMatrix DFT STFT",
        Trait.OPAQUE,
    ),
)
