"""Element types of kernels: storage type, compute type, and C++ literals of each."""

import math
import struct
from dataclasses import dataclass

from onnx import TensorProto

from onnxfuse.support.errors import KernelError


class UnsupportedError(KernelError):
    """No kernel can be generated for an op; the message is the reason, in one line."""


class DisagreeingError(UnsupportedError):
    """Inputs of inconsistent shapes: an extent of one is `found`, that of another `expected`."""

    def __init__(self, message: str, found: int, expected: int) -> None:
        super().__init__(message)
        self.found, self.expected = found, expected


@dataclass(frozen=True)
class ElementType:
    """An element type that kernels read, compute and write."""

    stored: str
    """C++ type in memory."""
    computed: str
    """C++ type in which its values are computed."""
    size: int
    """Bytes in memory."""
    low: int = 0
    """Minimum, for integers."""
    high: int = 0
    """Maximum, for integers."""


def _integer(name: str, bits: int, signed: bool) -> ElementType:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return ElementType(name, name, bits // 8, low, high)


TYPES: dict[int, ElementType] = {
    TensorProto.FLOAT: ElementType("float", "float", 4),
    TensorProto.FLOAT16: ElementType("f16", "float", 2),
    TensorProto.BFLOAT16: ElementType("bf16", "float", 2),
    TensorProto.FLOAT8E4M3FN: ElementType("e4m3", "float", 1),
    TensorProto.DOUBLE: ElementType("double", "double", 8),
    TensorProto.BOOL: ElementType("boolean", "bool", 1),
    TensorProto.INT8: _integer("signed char", 8, True),
    TensorProto.INT16: _integer("short", 16, True),
    TensorProto.INT32: _integer("int", 32, True),
    TensorProto.INT64: _integer("long long", 64, True),
    TensorProto.UINT8: _integer("unsigned char", 8, False),
    TensorProto.UINT16: _integer("unsigned short", 16, False),
    TensorProto.UINT32: _integer("unsigned", 32, False),
    TensorProto.UINT64: _integer("unsigned long long", 64, False),
}


def require(dtype: int) -> None:
    """Raise `UnsupportedError` for an element type that kernels do not support, such as strings."""
    if dtype not in TYPES:
        raise UnsupportedError(f"element type {name(dtype)}")


def name(dtype: int) -> str:
    """Return ONNX's name of an element type, its number if ONNX has none."""
    return str(TensorProto.DataType.Name(dtype)) if dtype in TensorProto.DataType.values() else f"number {dtype}"


def computed(dtype: int) -> str:
    """Return the C++ type in which values of this element type are computed."""
    require(dtype)
    return TYPES[dtype].computed


def is_real(dtype: int) -> bool:
    """Return whether values of this element type are computed in float or double."""
    return computed(dtype) in ("float", "double")


def is_integer(dtype: int) -> bool:
    """Return whether the element type is a signed or unsigned integer."""
    return not is_real(dtype) and computed(dtype) != "bool"


def as_python(value: float, dtype: int) -> float | int | bool:
    """Return `value` as the Python number of a constant of this element type; raises if it is not representable."""
    if computed(dtype) == "bool":
        return bool(value)
    if is_real(dtype):
        return float(value)
    if not math.isfinite(value) or int(value) != value or not TYPES[dtype].low <= value <= TYPES[dtype].high:
        raise UnsupportedError(f"the number {value} among {name(dtype)}")
    return int(value)


def literal(value: float | int | bool, dtype: int) -> str:
    """Return `value` as a C++ literal of the type that `dtype` is computed in; floats are exact."""
    cpp = computed(dtype)
    if cpp == "bool":
        return "true" if value else "false"
    if cpp == "float":
        return _float_literal(value)
    if cpp == "double":
        return _double_literal(value)
    low = TYPES[dtype].low
    # The minimum has no literal: -9223372036854775808 is the negation of an out-of-range literal.
    text = f"(-{-(int(value) + 1)}ll - 1)" if value == low and low < 0 else f"{int(value)}{'ll' if low else 'ull'}"
    return f"({cpp}){text}"


def _float_literal(value: float) -> str:
    if not math.isfinite(value) or abs(value) > 3.4028234663852886e38:
        bits = 0x7FC00000 if math.isnan(value) else (0x7F800000 if value > 0 else 0xFF800000)
        return f"float_of_bits({bits:#x}u)"
    exact = struct.unpack("f", struct.pack("f", value))[0]
    return f"{exact!r}f"


def _double_literal(value: float) -> str:
    if math.isfinite(value):
        return f"{float(value)!r}"
    bits = 0x7FF8 if math.isnan(value) else (0x7FF0 if value > 0 else 0xFFF0)
    return f"double_of_bits({bits << 48:#x}ull)"
