"""Quantization, and arithmetic on quantized values."""

from onnxfuse.ops.inputs import DATA, ZeroPoint, data
from onnxfuse.ops.registry import Operator, Trait
from onnxfuse.ops.shapes import windows

__all__ = [
    "ConvInteger", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "QLinearConv", "QLinearMatMul",
    "QuantizeLinear",
]  # fmt: skip

QuantizeLinear = Operator("QuantizeLinear", Trait.KEEPS_SHAPE, Trait.QUANTIZES)
DequantizeLinear = Operator(
    "DequantizeLinear",
    Trait.KEEPS_SHAPE,
    Trait.QUANTIZES,
    inputs={"x": DATA, "x_scale": DATA, "x_zero_point": ZeroPoint()},
)
DynamicQuantizeLinear = Operator("DynamicQuantizeLinear", Trait.KEEPS_SHAPE, Trait.QUANTIZES)

QLinearConv = Operator(
    "QLinearConv",
    Trait.QUANTIZED,
    Trait.SLIDES,
    inputs=data("x", "x_scale", "x_zero_point", "w", "w_scale", "w_zero_point", "y_scale", "y_zero_point", "B"),
    shape=windows.convolved(3),
)
QLinearMatMul = Operator("QLinearMatMul", Trait.QUANTIZED)
ConvInteger = Operator("ConvInteger", Trait.QUANTIZED, Trait.SLIDES, shape=windows.convolved(1))
MatMulInteger = Operator("MatMulInteger", Trait.QUANTIZED)
