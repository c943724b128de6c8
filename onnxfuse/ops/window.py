"""Sliding windows and sampling of images."""

from onnxfuse.ops import flops
from onnxfuse.ops.inputs import (
    DATA,
    BlockShape,
    Boxes,
    CropRegion,
    GridShape,
    ImageShape,
    Indices,
    PooledIndex,
    ResizedShape,
    Scales,
    UnpooledShape,
)
from onnxfuse.ops.registry import Operator, Rows, Trait
from onnxfuse.ops.shapes import alike, windows

__all__ = [
    "AffineGrid", "AveragePool", "Col2Im", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "GridSample",
    "ImageDecoder", "LpPool", "MaxPool", "MaxRoiPool", "MaxUnpool", "Resize", "RoiAlign", "Upsample",
]  # fmt: skip

MaxPool = Operator("MaxPool", Trait.POOL, Trait.IMAGES, flops=flops.window, shape=windows.pooled, alike=alike.pooled)
AveragePool = Operator(
    "AveragePool", Trait.POOL, Trait.IMAGES, flops=flops.window, shape=windows.pooled, alike=alike.pooled
)
LpPool = Operator("LpPool", Trait.POOL, flops=flops.window, shape=windows.pooled, alike=alike.pooled)


def _global_pool(kind: str) -> Rows:
    return lambda node: (node.over(kind, node.real(0), 2, onward=True),)


GlobalAveragePool = Operator(
    "GlobalAveragePool",
    Trait.ADDS,
    reduction="ReduceMean",
    rows=_global_pool("mean"),
    flops=flops.per_input(1),
    shape=windows.pooled_whole,
)
GlobalMaxPool = Operator(
    "GlobalMaxPool",
    reduction="ReduceMax",
    rows=_global_pool("max"),
    flops=flops.per_input(1),
    shape=windows.pooled_whole,
)
GlobalLpPool = Operator("GlobalLpPool", shape=windows.pooled_whole)
MaxUnpool = Operator("MaxUnpool", Trait.SLIDES, inputs={"X": DATA, "I": PooledIndex(), "output_shape": UnpooledShape()})
Resize = Operator(
    "Resize",
    Trait.NAMES_AXES,
    Trait.FLOATS_ON_CUDA,
    flops=flops.per_output(7),
    inputs={"X": DATA, "roi": CropRegion("X"), "scales": Scales("X"), "sizes": ResizedShape("X")},
    shape=windows.resized,
)
Upsample = Operator(
    "Upsample",
    Trait.NAMES_AXES,
    Trait.FLOATS_ON_CUDA,
    inputs={"X": DATA, "scales": Scales("X")},
    moved={"scales": 9},
    shape=windows.upsampled,
)
Col2Im = Operator("Col2Im", inputs={"input": DATA, "image_shape": ImageShape(), "block_shape": BlockShape()})

MaxRoiPool = Operator("MaxRoiPool", Trait.OPAQUE)
RoiAlign = Operator("RoiAlign", Trait.OPAQUE, inputs={"X": DATA, "rois": Boxes("X"), "batch_indices": Indices("X", 0)})
GridSample = Operator("GridSample", Trait.OPAQUE, Trait.HALF_ON_CPU)
AffineGrid = Operator("AffineGrid", Trait.OPAQUE, inputs={"theta": DATA, "size": GridShape()})
ImageDecoder = Operator("ImageDecoder", Trait.OPAQUE)
