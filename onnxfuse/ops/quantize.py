"""Quantization, and arithmetic on quantized values."""

from onnxfuse.ops.registry import Entries, Trait, entries

ENTRIES: Entries = (
    *entries(
        "QuantizeLinear DequantizeLinear DynamicQuantizeLinear",
        Trait.KEEPS_SHAPE,
    ),
    *entries(
        "QLinearConv QLinearMatMul ConvInteger MatMulInteger",
    ),
)
