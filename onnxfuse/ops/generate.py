"""Constants, ranges, shapes, random numbers, windows of signals."""

from onnxfuse.ops.families import moving
from onnxfuse.ops.inputs import DATA, Axes, Count, Extents, IfPresent, Length, Offset, Whole
from onnxfuse.ops.registry import Operator, Trait

__all__ = [
    "DFT", "STFT", "Bernoulli", "BlackmanWindow", "Constant", "ConstantOfShape", "EyeLike", "HammingWindow",
    "HannWindow", "MelWeightMatrix", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike", "Range", "Shape", "Size",
]  # fmt: skip

Constant = moving("Constant")
ConstantOfShape = moving("ConstantOfShape", Trait.FOLDABLE, Trait.SHAPES_ON_CUDA, inputs={"input": Extents()})
Range = moving(
    "Range",
    Trait.FOLDABLE,
    Trait.SHAPES_ON_CUDA,
    inputs={"start": Offset(0, 1), "limit": Offset(2, 4), "delta": Offset(1, 2)},
)
Shape = moving("Shape", Trait.FOLDABLE, Trait.READS_SHAPE)
Size = moving("Size", Trait.FOLDABLE, Trait.READS_SHAPE)

EyeLike = moving("EyeLike", Trait.KEEPS_SHAPE)

Bernoulli = moving("Bernoulli", Trait.KEEPS_SHAPE, Trait.RANDOM)
RandomNormalLike = moving("RandomNormalLike", Trait.KEEPS_SHAPE, Trait.RANDOM)
RandomUniformLike = moving("RandomUniformLike", Trait.KEEPS_SHAPE, Trait.RANDOM)

RandomNormal = moving("RandomNormal", Trait.RANDOM)
RandomUniform = moving("RandomUniform", Trait.RANDOM)
Multinomial = Operator("Multinomial", Trait.RANDOM)

BlackmanWindow = Operator("BlackmanWindow", Trait.OPAQUE, inputs={"size": Count(1, 16)})
HammingWindow = Operator("HammingWindow", Trait.OPAQUE, inputs={"size": Count(1, 16)})
HannWindow = Operator("HannWindow", Trait.OPAQUE, inputs={"size": Count(1, 16)})
MelWeightMatrix = Operator(
    "MelWeightMatrix",
    Trait.OPAQUE,
    inputs={
        "num_mel_bins": Count(),
        "dft_length": Count(32, 64),
        "sample_rate": Count(8000, 16000),
        "lower_edge_hertz": Offset(0, 500),
        "upper_edge_hertz": Offset(2000, 4000),
    },
)
DFT = Operator(
    "DFT",
    Trait.OPAQUE,
    Trait.HALF_ON_CPU,
    inputs={"input": DATA, "dft_length": Count(1, 16), "axis": Axes("input", but_last=1)},
    moved={"axis": 20},
)
STFT = Operator(
    "STFT",
    Trait.OPAQUE,
    Trait.HALF_ON_CPU,
    inputs={
        "signal": DATA,
        "frame_step": Count(),
        "window": DATA,
        "frame_length": IfPresent("window", Whole("window", 0), Length("signal", 1)),
    },
)
