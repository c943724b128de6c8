"""Sliding windows and sampling of images."""

from onnxfuse.ops import flops
from onnxfuse.ops.registry import Operator, Rows, Trait

MaxPool = Operator("MaxPool", flops=flops.window)
AveragePool = Operator("AveragePool", flops=flops.window)
LpPool = Operator("LpPool", flops=flops.window)


def _global_pool(kind: str) -> Rows:
    return lambda node: (node.over(kind, node.real(0), 2, onward=True),)


GlobalAveragePool = Operator("GlobalAveragePool", rows=_global_pool("mean"), flops=flops.per_input(1))
GlobalMaxPool = Operator("GlobalMaxPool", rows=_global_pool("max"), flops=flops.per_input(1))
GlobalLpPool = Operator("GlobalLpPool")
MaxUnpool = Operator("MaxUnpool")
Resize = Operator("Resize", flops=flops.per_output(7))
Upsample = Operator("Upsample")
Col2Im = Operator("Col2Im")

MaxRoiPool = Operator("MaxRoiPool", Trait.OPAQUE)
RoiAlign = Operator("RoiAlign", Trait.OPAQUE)
GridSample = Operator("GridSample", Trait.OPAQUE)
AffineGrid = Operator("AffineGrid", Trait.OPAQUE)
ImageDecoder = Operator("ImageDecoder", Trait.OPAQUE)
