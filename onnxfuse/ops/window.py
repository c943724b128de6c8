"""Sliding windows and sampling of images."""

from onnxfuse.ops.registry import Operator, Trait

MaxPool = Operator("MaxPool")
AveragePool = Operator("AveragePool")
LpPool = Operator("LpPool")
GlobalAveragePool = Operator("GlobalAveragePool")
GlobalMaxPool = Operator("GlobalMaxPool")
GlobalLpPool = Operator("GlobalLpPool")
MaxUnpool = Operator("MaxUnpool")
Resize = Operator("Resize")
Upsample = Operator("Upsample")
Col2Im = Operator("Col2Im")

MaxRoiPool = Operator("MaxRoiPool", Trait.OPAQUE)
RoiAlign = Operator("RoiAlign", Trait.OPAQUE)
GridSample = Operator("GridSample", Trait.OPAQUE)
AffineGrid = Operator("AffineGrid", Trait.OPAQUE)
ImageDecoder = Operator("ImageDecoder", Trait.OPAQUE)
