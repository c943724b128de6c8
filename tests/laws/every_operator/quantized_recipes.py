"""What a graph of quantized products and convolutions goes on with, in the forms that tools write."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.laws.every_operator.grow import Grower, RefusedError

CODES = (np.int8, np.int8, np.int8, np.uint8, np.uint8, np.uint8, np.int16, np.uint16)
SCALES = (0.0173, 0.0419, 0.0731, 0.1127, 0.2391)
"""No multiples of the steps of drawn numbers: few values lie in the middle of two steps."""
WIDTHS = (8, 16, 16, 32, 32, 20)
"""Of products: mostly such as kernels of 8 bits take, and one that they do not."""
FLOAT = TensorProto.FLOAT
TYPES = (FLOAT, FLOAT, FLOAT, TensorProto.FLOAT16)
"""Quantized operators compute in float32 at most: what is left of float64 has no more digits."""
OPSETS = range(10, 26)
"""Those that have QuantizeLinear."""


def begin(g: Grower) -> None:
    """Give a graph its inputs: tokens, and an image or a signal."""
    g.input((g.pick((1, 2)), g.pick((1, 3, 5)), g.pick((16, 32))))
    if g.chance(0.7):
        sizes = [g.pick((3, 4, 5)) for _ in range(g.pick((1, 2, 2, 2)))]
        g.input((g.pick((1, 2)), g.pick((3, 8, 16, 16, 32)), *sizes))


def step(g: Grower) -> None:
    """Add what one recipe adds. Raises RefusedError where that does not fit."""
    g.pick(QUANTIZED)(g)


def _code(g: Grower, *, wide: bool = True) -> np.dtype:
    dtype = np.dtype(g.pick(CODES))
    if dtype.itemsize == 2 and (not wide or g.opset < 21):
        dtype = np.dtype(np.int8)
    return dtype


def _scale(g: Grower, count: int | None = None) -> np.ndarray:
    drawn = g.rng.choice(SCALES, () if count is None else count)
    return np.asarray(drawn).astype(g.numpy if g.numpy == np.float16 and g.opset >= 19 else np.float32)


def _zero(g: Grower, dtype: np.dtype, count: int | None = None) -> np.ndarray:
    info = np.iinfo(dtype)
    middle = int(info.max) // 2 + 1 if dtype.kind == "u" else 0
    drawn = g.pick((middle, middle, 0, int(info.min), middle + 3, middle - 17))
    return np.full(() if count is None else count, np.clip(drawn, info.min, info.max), dtype)


def _operands(g: Grower, *arrays: np.ndarray) -> list[str]:
    return [g.constant(a) for a in arrays]


def _float(g: Grower, x: str, like: np.ndarray) -> str:
    """Return a value in the type of the scales."""
    same = g.found[x].dtype == like.dtype
    return x if same else g.add("Cast", [x], to=helper.np_dtype_to_tensor_dtype(like.dtype))


def _dequantized(g: Grower, x: str) -> str:
    """Return a value after QuantizeLinear and DequantizeLinear."""
    dtype, scale = _code(g), _scale(g)
    held = _operands(g, scale, _zero(g, dtype))
    if dtype == np.uint8 and g.chance(0.2):
        held = held[:1]
    q = g.add("QuantizeLinear", [_float(g, x, scale), *held])
    if g.chance(0.25):
        q = _moved(g, q)
    return str(g.add("DequantizeLinear", [q, *held]))


def _moved(g: Grower, q: str) -> str:
    shape = g.shape(q)
    match g.pick(range(4)):
        case 0 if len(shape) > 1:
            return str(g.add("Transpose", [q], perm=[*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]))
        case 1 if 0 not in shape and shape:
            return str(g.add("Reshape", [q, g.ints(1, *shape)]))
        case 2 if shape and shape[0] > 1:
            return str(g.add("Gather", [q, g.ints(0)], axis=0))
        case _:
            return q


def _weight(g: Grower, shape: Sequence[int], axis: int) -> str:
    """Return a dequantized weight: stored in 8 bits, with one scale or one for each channel of an axis."""
    dtype = np.dtype(g.pick((np.int8, np.int8, np.int8, np.uint8)))
    info = np.iinfo(dtype)
    codes = g.rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype)
    many = shape[axis] if g.opset >= 13 and g.chance(0.6) else None
    zero = np.full(() if many is None else many, 128 if dtype == np.uint8 else 0, dtype)
    if g.chance(0.15):
        zero = _zero(g, dtype, many)
    scale = (_scale(g, many) / 8).astype(_scale(g).dtype)
    held = _operands(g, codes, scale, zero)
    if dtype == np.int8 and not zero.any() and g.chance(0.3):
        held = held[:2]
    along: dict[str, Any] = {"axis": axis} if many is not None else {}
    return str(g.add("DequantizeLinear", held, **along))


def _finish(g: Grower, y: str) -> None:
    """Add what stands behind a product: an activation, a residual, quantization."""
    if g.chance(0.4):
        y = g.add(g.pick(("Relu", "Sigmoid", "Tanh", "Relu")), [y])
    if g.chance(0.2):
        y = g.add("Add", [y, y])
    if g.chance(0.6):
        y = _dequantized(g, y)
    _float(g, y, np.zeros((), g.numpy))


def _bias(g: Grower, count: int) -> str:
    """Return a bias: numbers, or int32 with a scale."""
    scale = _scale(g)
    if g.chance(0.5):
        return str(g.constant((g.rng.integers(-9, 9, count) / 8).astype(scale.dtype)))
    codes = g.rng.integers(-900, 900, count).astype(np.int32)
    return str(g.add("DequantizeLinear", _operands(g, codes, (scale / 100).astype(scale.dtype))))


def pair(g: Grower) -> None:
    """QuantizeLinear and DequantizeLinear, with other scales behind each other, or elementwise work between."""
    y = _dequantized(g, g.any())
    for _ in range(g.pick((0, 1, 2))):
        if g.chance(0.5):
            y = g.add(g.pick(("Relu", "Neg", "Abs", "Sigmoid", "Erf")), [y])
        y = _dequantized(g, y)
    _float(g, y, np.zeros((), g.numpy))


def product(g: Grower) -> None:
    """MatMul or Gemm of dequantized factors; one activation for several weights, one weight for two products."""
    x = _dequantized(g, g.any(least=2, most=3))
    k, n = g.shape(x)[-1], g.pick(WIDTHS)
    if not k:
        raise RefusedError
    weight = None
    for _ in range(g.pick((1, 1, 2, 3))):
        if len(g.shape(x)) == 2 and g.chance(0.5):
            transposed = g.chance(0.6)
            weight = _weight(g, (n, k) if transposed else (k, n), 0 if transposed else 1)
            how: dict[str, Any] = {"transB": 1} if transposed else {}
            how |= {"alpha": 0.5} if g.chance(0.2) else {}
            y = g.add("Gemm", [x, weight, *([_bias(g, n)] if g.chance(0.7) else [])], **how)
            weight = None
        else:
            weight = weight if weight is not None and g.chance(0.4) else _weight(g, (k, n), 1)
            y = g.add("MatMul", [x, weight])
            y = g.add("Add", [y, _bias(g, n)]) if g.chance(0.6) else y
        _finish(g, y)


def convolution(g: Grower) -> None:
    """Conv of dequantized factors: of one group, depthwise, strided, padded by rule."""
    x = _dequantized(g, g.any(least=3, most=4))
    channels, *sizes = g.shape(x)[1:]
    kernel = [g.pick((1, 3)) for _ in sizes]
    depthwise, filters = g.chance(0.2), g.pick((8, 16, 5))
    shape = (channels, 1, *kernel) if depthwise else (filters, channels, *kernel)
    how: dict[str, Any] = {"group": channels} if depthwise else {}
    if g.chance(0.3):
        how["auto_pad"] = g.pick(("SAME_UPPER", "SAME_LOWER", "VALID"))
    else:
        how["pads"] = [g.pick((0, k // 2)) for k in (*kernel, *kernel)]
    how["strides"] = [g.pick((1, 1, 2)) for _ in sizes]
    y = g.add("Conv", [x, _weight(g, shape, 0), *([_bias(g, shape[0])] if g.chance(0.7) else [])], **how)
    if g.chance(0.3) and min(g.shape(y)[2:], default=0) > 1:
        y = g.add("MaxPool", [_dequantized(g, y)], kernel_shape=[2] * len(sizes))
    _finish(g, y)


def _dynamic(g: Grower, x: str) -> list[str]:
    return list(g.add("DynamicQuantizeLinear", [g.add("Cast", [x], to=FLOAT)], outputs=3))


def _scaled(g: Grower, sums: str, scale: str, columns: int | None) -> str:
    """Return int32 sums as numbers: times the scales of activations and of weights, in the orders of tools."""
    own = g.constant((np.asarray(g.rng.choice(SCALES, () if columns is None else columns)) / 8).astype(np.float32))
    y = g.add("Cast", [sums], to=FLOAT)
    if g.chance(0.7):
        return str(g.add("Mul", [y, g.add("Mul", [scale, own])]))
    return str(g.add("Mul", [g.add("Mul", [y, scale]), own]))


def dynamic_product(g: Grower) -> None:
    """Several MatMulIntegers of one DynamicQuantizeLinear, with zero points, scales, biases and activations."""
    q, scale, zero = _dynamic(g, g.any(least=2, most=3))
    k, n = g.shape(q)[-1], g.pick(WIDTHS)
    if not k:
        raise RefusedError
    for _ in range(g.pick((1, 1, 2, 3))):
        dtype = np.dtype(g.pick((np.int8, np.int8, np.uint8)))
        info, many = np.iinfo(dtype), g.chance(0.3)
        w = g.rng.integers(info.min, info.max, (k, n), endpoint=True).astype(dtype)
        at = [g.constant(_zero(g, dtype, n if many else None))] if g.chance(0.7) else []
        sums = g.add("MatMulInteger", [q, g.constant(w), zero, *at])
        y = _scaled(g, sums, scale, n if many else None)
        if g.chance(0.6):
            y = g.add("Add", [y, g.constant((g.rng.integers(-9, 9, n) / 8).astype(np.float32))])
        if g.chance(0.4):
            y = g.add(g.pick(("Relu", "Sigmoid")), [y])
        _float(g, y, np.zeros((), g.numpy))


def dynamic_convolution(g: Grower) -> None:
    """ConvInteger of a DynamicQuantizeLinear, of signals and images."""
    q, scale, zero = _dynamic(g, g.any(least=3, most=4))
    channels, *sizes = g.shape(q)[1:]
    kernel, filters = [g.pick((1, 3)) for _ in sizes], g.pick((8, 16, 5))
    dtype = np.dtype(g.pick((np.uint8, np.int8)))
    info = np.iinfo(dtype)
    w = g.rng.integers(info.min, info.max, (filters, channels, *kernel), endpoint=True).astype(dtype)
    how: dict[str, Any] = {"pads": [g.pick((0, k // 2)) for k in (*kernel, *kernel)]}
    if g.chance(0.3):
        how = {"auto_pad": g.pick(("SAME_UPPER", "SAME_LOWER"))}
    at = [g.constant(_zero(g, dtype))] if g.chance(0.7) else []
    sums = g.add("ConvInteger", [q, g.constant(w), zero, *at], **how)
    y = _scaled(g, sums, scale, None)
    if g.chance(0.6):
        bias = (g.rng.integers(-9, 9, filters) / 8).astype(np.float32)
        y = g.add("Add", [y, g.constant(bias.reshape(1, -1, *[1] * len(sizes)))])
    _float(g, y, np.zeros((), g.numpy))


def _quantized(g: Grower, x: str, dtype: np.dtype) -> list[str]:
    scale = np.asarray(g.pick(SCALES)).astype(np.float32)
    held = _operands(g, scale, _zero(g, dtype))
    return [g.add("QuantizeLinear", [_float(g, x, scale), *held]), *held]


def operators(g: Grower) -> None:
    """QLinear operators in a row, of ONNX and of ONNX Runtime."""
    dtype = _code(g, wide=False)
    value = _quantized(g, g.any(least=2, most=4), dtype)
    for _ in range(g.pick((1, 2, 3))):
        shape, held = g.shape(value[0]), _operands(g, _scale(g).astype(np.float32), _zero(g, dtype))
        match g.pick(range(5)):
            case 0 if len(shape) in (2, 3) and shape[-1]:
                n = g.pick(WIDTHS)
                codes = g.rng.integers(-127, 127, (shape[-1], n)).astype(np.int8)
                weight = _operands(g, codes, np.array(g.pick(SCALES) / 8, np.float32), np.array(0, np.int8))
                y = g.add("QLinearMatMul", [*value, *weight, *held])
            case 1 if len(shape) == 4:
                codes = g.rng.integers(-127, 127, (16, shape[1], 3, 3)).astype(np.int8)
                weight = _operands(g, codes, np.array(g.pick(SCALES) / 8, np.float32), np.array(0, np.int8))
                y = g.add("QLinearConv", [*value, *weight, *held], pads=[1, 1, 1, 1])
            case 2:
                y = g.add(g.pick(("QLinearAdd", "QLinearMul")), [*value, *value, *held], domain="com.microsoft")
            case 3:
                y = g.add(g.pick(("QLinearSigmoid", "QLinearLeakyRelu")), [*value, *held], domain="com.microsoft")
            case _:
                other = _operands(g, _scale(g).astype(np.float32), _zero(g, dtype))
                again = g.add("DequantizeLinear", value)
                y = g.add("QuantizeLinear", [again, *other])
                held = other
        value = [y, *held]
    _float(g, g.add("DequantizeLinear", value), np.zeros((), g.numpy))


def table(g: Grower) -> None:
    """Rows of a table in 8 bits, dequantized behind the Gather or before it, or by Cast and Mul."""
    rows, columns = 9, g.pick((16, 32, 20))
    dtype = np.dtype(g.pick((np.int8, np.uint8)))
    info = np.iinfo(dtype)
    codes = g.constant(g.rng.integers(info.min, info.max, (rows, columns), endpoint=True).astype(dtype))
    ids = g.constant(g.rng.integers(0, rows, (2, 3)).astype(np.int64))
    held = _operands(g, _scale(g), _zero(g, dtype))
    match g.pick(range(3)):
        case 0:
            y = g.add("DequantizeLinear", [g.add("Gather", [codes, ids]), *held])
        case 1:
            y = g.add("Gather", [g.add("DequantizeLinear", [codes, *held]), ids])
        case _:
            y = g.add(
                "Mul",
                [g.add("Cast", [g.add("Gather", [codes, ids])], to=FLOAT), g.constant(np.array(0.0173, np.float32))],
            )
    x = _float(g, y, np.zeros((), g.numpy))
    if g.chance(0.5):
        g.add("Mul", [x, g.number(0.5)])


def spelled(g: Grower) -> None:
    """Quantization in elementwise nodes, with zero points, as exporters write it."""
    x = g.any(least=1)
    scale, zero = g.pick(SCALES), g.pick((0.0, 3.0, 128.0, 5.0))
    dtype = np.dtype(g.pick((np.uint8, np.int8)))
    low, high = (0, 255) if dtype == np.uint8 else (-128, 127)
    y = g.add("Div", [x, g.number(scale)]) if g.chance(0.5) else g.add("Mul", [x, g.number(1 / scale)])
    within = g.chance(0.3)
    y = g.add("Add", [y, g.number(zero)]) if within else y
    y = g.add("Round", [y])
    y = y if within else g.add("Add", [y, g.number(zero)])
    low, high = (0, 127) if g.chance(0.2) else (low, high)
    y = g.add("Clip", [y, g.constant(np.array(low, g.numpy)), g.constant(np.array(high, g.numpy))])
    if g.chance(0.7):
        y = g.add("Cast", [y], to=helper.np_dtype_to_tensor_dtype(dtype))
        y = _float(g, y, np.zeros((), g.numpy))
    g.add("Mul", [g.add("Sub", [y, g.number(zero)]), g.number(scale)])


def between(g: Grower) -> None:
    """An operator of another kind between two quantized ones."""
    x = g.any()
    match g.pick(range(4)):
        case 0:
            g.add(g.pick(("Relu", "Neg", "Abs", "Sigmoid")), [x])
        case 1 if g.shape(x):
            g.add("Softmax", [x], axis=-1)
        case 2 if len(g.shape(x)) > 1:
            g.along("ReduceMean", x, (-1,))
        case _:
            g.add("Add", [x, g.number(0.5)])


QUANTIZED: tuple[Callable[[Grower], None], ...] = (
    pair, pair, product, product, product, convolution, convolution, dynamic_product, dynamic_product,
    dynamic_convolution, operators, operators, table, spelled, between,
)  # fmt: skip
