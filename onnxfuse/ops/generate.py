"""Constants, ranges, shapes, random numbers, windows of signals."""

import math

import numpy as np
from onnx import TensorProto, numpy_helper

from onnxfuse.ops.families import moving
from onnxfuse.ops.inputs import DATA, Axes, Count, Extents, IfPresent, Integer, Length, Offset, RangeBound
from onnxfuse.ops.registry import Operator, Trait
from onnxfuse.ops.shapes.extents import UnknownError, is_symbolic, unknown
from onnxfuse.ops.shapes.node import Dims, Elements, ShapeNode
from onnxfuse.symbolic.integer import at_most


def _filled(node: ShapeNode) -> Elements:
    value = node.attribute("value")
    fill = numpy_helper.to_array(value).reshape(-1) if isinstance(value, TensorProto) else np.zeros(1, np.float32)
    if fill.dtype.kind != "i":
        raise UnknownError("elements that are no integers")
    return np.full(node.axes("input"), int(fill[0]), object)


def _steps(node: ShapeNode) -> list[Dims]:
    """Return the shape of a Range; the number of steps of 1 that is symbolic is taken to be at least 0."""
    (start,), (limit,), (delta,) = (node.integers(name) for name in ("start", "limit", "delta"))
    if not is_symbolic(start, limit, delta):
        return [(max(0, int(-((start - limit) // delta))),)]
    if is_symbolic(delta) or delta != 1:
        return [(unknown(),)]
    if is_symbolic(start) or start or not is_symbolic(limit):
        return [(limit - start if at_most(start, limit) else unknown(),)]
    return [(limit,)]


def _extents(node: ShapeNode) -> Dims:
    end = node.attribute("end")
    return node.shape(0)[node.attribute("start", 0) : end]


__all__ = [
    "DFT", "STFT", "Bernoulli", "BlackmanWindow", "Constant", "ConstantOfShape", "EyeLike", "HammingWindow",
    "HannWindow", "MelWeightMatrix", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
    "RandomUniformLike", "Range", "Shape", "Size",
]  # fmt: skip

Constant = moving("Constant")
ConstantOfShape = moving(
    "ConstantOfShape",
    Trait.FOLDABLE,
    Trait.SHAPES_ON_CUDA,
    inputs={"input": Extents()},
    shape=lambda node: [node.integers("input")],
    value=_filled,
)
Range = moving(
    "Range",
    Trait.FOLDABLE,
    Trait.SHAPES_ON_CUDA,
    inputs={"start": RangeBound(0, 1), "limit": RangeBound(2, 4), "delta": RangeBound(1, 2)},
    shape=_steps,
)
Shape = moving(
    "Shape",
    Trait.FOLDABLE,
    Trait.READS_SHAPE,
    shape=lambda node: [(len(_extents(node)),)],
    value=lambda node: np.array(_extents(node), object),
)
Size = moving(
    "Size",
    Trait.FOLDABLE,
    Trait.READS_SHAPE,
    shape=lambda node: [()],
    value=lambda node: np.array(math.prod(node.shape(0)), object),
)

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
        "frame_length": IfPresent("window", Integer("window", 0), Length("signal", 1)),
    },
)
