"""Sliding windows and sampling of images."""

from onnxfuse.ops import flops
from onnxfuse.ops.registry import Operator, Trait

MaxPool = Operator("MaxPool", flops=flops.window)
AveragePool = Operator("AveragePool", flops=flops.window)
LpPool = Operator("LpPool", flops=flops.window)
GlobalAveragePool = Operator("GlobalAveragePool", flops=flops.per_input(1))
GlobalMaxPool = Operator("GlobalMaxPool", flops=flops.per_input(1))
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
