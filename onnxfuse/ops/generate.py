"""Constants, ranges, shapes, random numbers, windows of signals."""

from onnxfuse.ops.inputs import DATA, Axes, Count, Extents, IfPresent, Length, Offset, Whole
from onnxfuse.ops.registry import Operator, Trait

Constant = Operator("Constant")
ConstantOfShape = Operator("ConstantOfShape", Trait.SHAPES_ON_CUDA, inputs={"input": Extents()})
Range = Operator(
    "Range", Trait.SHAPES_ON_CUDA, inputs={"start": Offset(0, 1), "limit": Offset(2, 4), "delta": Offset(1, 2)}
)
Shape = Operator("Shape", Trait.READS_SHAPE)
Size = Operator("Size", Trait.READS_SHAPE)

EyeLike = Operator("EyeLike", Trait.KEEPS_SHAPE)

Bernoulli = Operator("Bernoulli", Trait.KEEPS_SHAPE, Trait.RANDOM)
RandomNormalLike = Operator("RandomNormalLike", Trait.KEEPS_SHAPE, Trait.RANDOM)
RandomUniformLike = Operator("RandomUniformLike", Trait.KEEPS_SHAPE, Trait.RANDOM)

RandomNormal = Operator("RandomNormal", Trait.RANDOM)
RandomUniform = Operator("RandomUniform", Trait.RANDOM)
Multinomial = Operator("Multinomial", Trait.RANDOM)

BlackmanWindow = Operator("BlackmanWindow", Trait.OPAQUE, inputs={"size": Count(1, 16)})
HammingWindow = Operator("HammingWindow", Trait.OPAQUE, inputs={"size": Count(1, 16)})
HannWindow = Operator("HannWindow", Trait.OPAQUE, inputs={"size": Count(1, 16)})
MelWeightMatrix = Operator(
    "MelWeightMatrix", Trait.OPAQUE,
    inputs={
        "num_mel_bins": Count(), "dft_length": Count(32, 64), "sample_rate": Count(8000, 16000),
        "lower_edge_hertz": Offset(0, 500), "upper_edge_hertz": Offset(2000, 4000),
    },
)  # fmt: skip
DFT = Operator(
    "DFT", Trait.OPAQUE, Trait.HALF_ON_CPU,
    inputs={"input": DATA, "dft_length": Count(1, 16), "axis": Axes("input", but_last=1)}, moved={"axis": 20},
)  # fmt: skip
STFT = Operator(
    "STFT", Trait.OPAQUE, Trait.HALF_ON_CPU,
    inputs={
        "signal": DATA, "frame_step": Count(), "window": DATA,
        "frame_length": IfPresent("window", Whole("window", 0), Length("signal", 1)),
    },
)  # fmt: skip
