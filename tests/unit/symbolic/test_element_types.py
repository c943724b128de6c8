"""Numbers of every element type: which there are, and how C++ spells them."""

import ctypes
import math
import struct

import numpy as np
import pytest
from onnx import TensorProto, helper

from onnxfuse.symbolic.element_types import TYPES, UnsupportedError, as_python, is_integer, is_real, literal, require

INTEGERS = [t for t in TYPES if is_integer(t)]


def test_kinds_of_types() -> None:
    """Numbers that are whole, those that are not, and truth values."""
    assert [t for t in TYPES if is_real(t)] == [
        TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN, TensorProto.DOUBLE,
    ]  # fmt: skip
    assert set(TYPES) - set(INTEGERS) - {t for t in TYPES if is_real(t)} == {TensorProto.BOOL}
    with pytest.raises(UnsupportedError, match="element type STRING"):
        require(TensorProto.STRING)


@pytest.mark.parametrize("dtype", INTEGERS)
def test_an_integer_is_one_that_the_type_has(dtype: int) -> None:
    """To both ends, and none beyond; no fraction, no infinity."""
    low, high = TYPES[dtype].low, TYPES[dtype].high
    numpy = np.iinfo(helper.tensor_dtype_to_np_dtype(dtype))
    assert (low, high, 8 * TYPES[dtype].size) == (numpy.min, numpy.max, numpy.bits)
    for value in (low, low + 1, 0, high - 1, high):
        assert as_python(value, dtype) == value
    for wrong in (low - 1, high + 1, 0.5, math.inf, math.nan):
        with pytest.raises(UnsupportedError, match=r"the number .* among "):
            as_python(wrong, dtype)


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (2, TensorProto.BOOL, "true"), (0, TensorProto.BOOL, "false"),
        (-(2**63), TensorProto.INT64, "(long long)(-9223372036854775807ll - 1)"),
        (-(2**63) + 1, TensorProto.INT64, "(long long)-9223372036854775807ll"),
        (2**63 - 1, TensorProto.INT64, "(long long)9223372036854775807ll"),
        (-128, TensorProto.INT8, "(signed char)(-127ll - 1)"),
        (0, TensorProto.UINT8, "(unsigned char)0ull"),
        (2**64 - 1, TensorProto.UINT64, "(unsigned long long)18446744073709551615ull"),
        (math.inf, TensorProto.DOUBLE, "double_of_bits(0x7ff0000000000000ull)"),
        (-math.inf, TensorProto.DOUBLE, "double_of_bits(0xfff0000000000000ull)"),
        (math.nan, TensorProto.DOUBLE, "double_of_bits(0x7ff8000000000000ull)"),
        (1e39, TensorProto.DOUBLE, "1e+39"),
        (0.1, TensorProto.FLOAT, f"{ctypes.c_float(0.1).value!r}f"),
        (math.inf, TensorProto.FLOAT16, "float_of_bits(0x7f800000u)"),
        (-math.inf, TensorProto.FLOAT, "float_of_bits(0xff800000u)"),
        (math.nan, TensorProto.BFLOAT16, "float_of_bits(0x7fc00000u)"),
        (1e39, TensorProto.FLOAT, "float_of_bits(0x7f800000u)"),
        (struct.unpack("f", b"\xff\xff\x7f\x7f")[0], TensorProto.FLOAT, "3.4028234663852886e+38f"),
    ],
)  # fmt: skip
def test_a_literal_is_exactly_the_number(value: float, dtype: int, text: str) -> None:
    """The least integer has none: it is the negative of one that is too large."""
    assert literal(value, dtype) == text
