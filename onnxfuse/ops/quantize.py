"""Quantization, and arithmetic on quantized values."""

from onnxfuse.ops.registry import Operator, Trait

QuantizeLinear = Operator("QuantizeLinear", Trait.KEEPS_SHAPE)
DequantizeLinear = Operator("DequantizeLinear", Trait.KEEPS_SHAPE)
DynamicQuantizeLinear = Operator("DynamicQuantizeLinear", Trait.KEEPS_SHAPE)

QLinearConv = Operator("QLinearConv")
QLinearMatMul = Operator("QLinearMatMul")
ConvInteger = Operator("ConvInteger")
MatMulInteger = Operator("MatMulInteger")
