"""Quantization, and arithmetic on quantized values."""

from collections.abc import Mapping

from onnx import TensorProto

from onnxfuse.ops import contraction, elementwise, flops, movement, reduction, scalar, window
from onnxfuse.ops.inputs import DATA, ZeroPoint, data
from onnxfuse.ops.registry import MICROSOFT, TENSORRT, NumbersForm, Operator, StandardForm, Trait
from onnxfuse.ops.scalar import Kind, Scalar, ScalarNode
from onnxfuse.ops.shapes import alike, windows

__all__ = [
    "ConvInteger", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "MicrosoftDequantizeLinear",
    "MicrosoftQuantizeLinear", "QGemm", "QLinearAdd",
    "QLinearAveragePool", "QLinearConcat", "QLinearConv", "QLinearGlobalAveragePool", "QLinearLeakyRelu",
    "QLinearMatMul", "QLinearMul", "QLinearReduceMean", "QLinearSigmoid", "QLinearSoftmax", "QLinearWhere",
    "QuantizeLinear", "TRT_FP8DequantizeLinear", "TRT_FP8QuantizeLinear", "TensorRTDequantizeLinear",
]  # fmt: skip

ONE_SCALE = -(2**31)
"""No axis: the normal form of a node whose scale has one element is without the attribute."""
RANGES: Mapping[int, tuple[int, int]] = {
    TensorProto.INT8: (-128, 127), TensorProto.UINT8: (0, 255),
    TensorProto.INT16: (-(2**15), 2**15 - 1), TensorProto.UINT16: (0, 2**16 - 1),
}  # fmt: skip
"""Smallest and largest number of the integer types to which kernels quantize values."""
INTEGER_RANGES: Mapping[int, tuple[int, int]] = {
    **RANGES,
    TensorProto.INT4: (-8, 7), TensorProto.UINT4: (0, 15), TensorProto.INT2: (-2, 1), TensorProto.UINT2: (0, 3),
}  # fmt: skip
"""The same of all integer types to which values are quantized."""


def _of_one_scale(node: ScalarNode) -> None:
    """Raise for a node with several scales: one for each index of an axis, or for each block of values."""
    if node.number("axis", ONE_SCALE) != ONE_SCALE:
        raise node.refusal("with a scale for each index of an axis")


def _saturates(node: ScalarNode, zero: Scalar | None) -> None:
    """Raise for a node of float8 that has a zero point, or gives NaN for what is out of range."""
    if not node.number("saturate", 1):
        raise node.refusal("that does not saturate")
    if zero is not None and zero.literal != 0:
        raise node.refusal("with a zero point among float8")


def _quantized(node: ScalarNode) -> Scalar:
    """saturate(round_half_even(x / scale) + zero); float8 is rounded to its own numbers"""
    # Of two float16 the quotient is a float32, too, as in ONNX Runtime's CPU provider. Its CUDA provider rounds it to
    # float16, so that values close to the middle of two steps become the other one.
    _of_one_scale(node)
    x, scale, zero = node.real(0), node.real(1), node.optional(2)
    to = int(node.number("output_dtype", 0)) or (TensorProto.UINT8 if zero is None else zero.dtype)
    if to == TensorProto.FLOAT8E4M3FN:
        _saturates(node, zero)
        return (x.cast(TensorProto.FLOAT) / scale.cast(TensorProto.FLOAT)).cast(to)
    if to not in RANGES:
        raise node.refusal("to no integers of 8 or 16 bits")
    low, high = RANGES[to]
    shift = 0 if zero is None else zero.literal
    # A computed zero point lies within the range: what is further from it than the range is wide saturates.
    below, above = (low - high, high - low) if shift is None else (low - shift, high - shift)
    steps = scalar.steps(x.cast(TensorProto.FLOAT), scale.cast(TensorProto.FLOAT), float(below), float(above))
    if zero is None or shift == 0:
        return steps.cast(to)
    shifted = steps + zero.cast(TensorProto.FLOAT)
    return (scalar.clip(shifted, float(low), float(high)) if shift is None else shifted).cast(to)


def _dequantized(node: ScalarNode) -> Scalar:
    """(x - zero) * scale"""
    _of_one_scale(node)
    x, scale, zero = node.term(0), node.real(1), node.optional(2)
    to = int(node.number("output_dtype", 0)) or scale.dtype
    if x.dtype == TensorProto.FLOAT8E4M3FN:
        _saturates(node, zero)
    elif x.kind is not Kind.INTEGER:
        raise node.refusal("of neither integers nor float8e4m3fn")
    steps = x.cast(TensorProto.FLOAT)
    shifted = steps if zero is None or zero.literal == 0 else steps - zero.cast(TensorProto.FLOAT)
    return (shifted * scale.cast(TensorProto.FLOAT)).cast(to)


QuantizeLinear = Operator(
    "QuantizeLinear",
    Trait.KEEPS_SHAPE,
    Trait.QUANTIZES,
    Trait.FINITE_FROM_ZERO,
    Trait.ROUNDS,
    inputs={"x": DATA, "y_scale": DATA, "y_zero_point": ZeroPoint()},
    meaning=_quantized,
    flops=flops.per_output(3),
)
DequantizeLinear = Operator(
    "DequantizeLinear",
    Trait.KEEPS_SHAPE,
    Trait.QUANTIZES,
    Trait.FINITE_FROM_ZERO,
    inputs={"x": DATA, "x_scale": DATA, "x_zero_point": ZeroPoint()},
    meaning=_dequantized,
    flops=flops.per_output(2),
)


def _twin(of: Operator, domain: str) -> Operator:
    return Operator(
        of,
        Trait.QUANTIZES,
        *{Trait.ROUNDS} & of.traits,
        domain=domain,
        inputs=of.inputs,
        alike=alike.of_its_name,
        standard=StandardForm(of),
    )


def _float8(name: str, of: Operator) -> Operator:
    form = StandardForm(of, TensorProto.FLOAT8E4M3FN)
    return Operator(name, Trait.QUANTIZES, domain=TENSORRT, standard=form)


MicrosoftQuantizeLinear = _twin(QuantizeLinear, MICROSOFT)
MicrosoftDequantizeLinear = _twin(DequantizeLinear, MICROSOFT)
TensorRTDequantizeLinear = _twin(DequantizeLinear, TENSORRT)  # of int4 weights in blocks
TRT_FP8QuantizeLinear = _float8("TRT_FP8QuantizeLinear", QuantizeLinear)
TRT_FP8DequantizeLinear = _float8("TRT_FP8DequantizeLinear", DequantizeLinear)
DynamicQuantizeLinear = Operator(
    "DynamicQuantizeLinear",
    Trait.KEEPS_SHAPE,
    Trait.QUANTIZES,
    Trait.ROUNDS,
    left="runs on the CPU: the rank of its input is not known",
)

QLinearConv = Operator(
    "QLinearConv",
    Trait.QUANTIZED,
    Trait.ROUNDS,
    Trait.SLIDES,
    inputs=data("x", "x_scale", "x_zero_point", "w", "w_scale", "w_zero_point", "y_scale", "y_zero_point", "B"),
    shape=windows.convolved(3),
    numbers=NumbersForm(contraction.Conv, (0, 3), 6, bias=8, channels=0),
)
QLinearMatMul = Operator(
    "QLinearMatMul", Trait.QUANTIZED, Trait.ROUNDS, numbers=NumbersForm(contraction.MatMul, (0, 3), 6, channels=-1)
)


def _of_microsoft(name: str, form: NumbersForm) -> Operator:
    return Operator(name, Trait.QUANTIZED, Trait.ROUNDS, domain=MICROSOFT, numbers=form)


QGemm = _of_microsoft("QGemm", NumbersForm(contraction.Gemm, (0, 3), 7, bias=6, channels=-1))
QLinearAdd = _of_microsoft("QLinearAdd", NumbersForm(elementwise.Add, (0, 3), 6))
QLinearMul = _of_microsoft("QLinearMul", NumbersForm(elementwise.Mul, (0, 3), 6))
QLinearSigmoid = _of_microsoft("QLinearSigmoid", NumbersForm(elementwise.Sigmoid))
QLinearLeakyRelu = _of_microsoft("QLinearLeakyRelu", NumbersForm(elementwise.LeakyRelu))
QLinearSoftmax = _of_microsoft("QLinearSoftmax", NumbersForm(reduction.Softmax))
QLinearReduceMean = _of_microsoft("QLinearReduceMean", NumbersForm(reduction.ReduceMean))
QLinearAveragePool = _of_microsoft("QLinearAveragePool", NumbersForm(window.AveragePool))
QLinearGlobalAveragePool = _of_microsoft("QLinearGlobalAveragePool", NumbersForm(window.GlobalAveragePool))
QLinearConcat = _of_microsoft("QLinearConcat", NumbersForm(movement.Concat, (2,), 0, more=True))
QLinearWhere = _of_microsoft("QLinearWhere", NumbersForm(elementwise.Where, (1, 4), 7, plain=(0,)))
ConvInteger = Operator(
    "ConvInteger",
    Trait.INTEGER_PRODUCT,
    Trait.SLIDES,
    Trait.FOLDABLE,
    shape=windows.convolved(1),
    left="runs on the CPU: kernels convolve by constant filters, with zero points that are numbers",
)
MatMulInteger = Operator(
    "MatMulInteger",
    Trait.INTEGER_PRODUCT,
    Trait.BATCHED_PRODUCT,
    left="stays with ONNX Runtime: kernels multiply by constant matrices, with zero points that are numbers",
)
