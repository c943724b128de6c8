"""Numbers in a lower precision: rounded, and at the ends of its range."""

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from onnx import TensorProto, numpy_helper

from onnxfuse.verification.run.floats import FloatType, float_type

Array = npt.NDArray[Any]

DTYPES: dict[int, np.dtype[Any]] = {
    TensorProto.FLOAT16: np.dtype(np.float16),
    TensorProto.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
    TensorProto.FLOAT: np.dtype(np.float32),
}


def facts(type_: int) -> FloatType:
    """Return range and precision of an element type."""
    return float_type(DTYPES[type_])


def rounded(x: Array, type_: int) -> Array:
    """Return the numbers rounded to `type_`, as float32, which holds them; what is beyond its range is infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(DTYPES[type_]).astype(np.float32)


def constant(x: Array, type_: int) -> Array:
    """Return a constant as it stands in the file: rounded, but no finite one infinite and no single one zero.

    A bound or a mask beyond the range is the largest number: it is as far as any value. An epsilon that is no number of
    the type is the smallest one: a divisor that it keeps from zero is not zero.
    """
    known = facts(type_)
    with np.errstate(over="ignore", invalid="ignore"):
        low = np.where(np.isfinite(x), np.clip(x, -known.largest, known.largest), x).astype(DTYPES[type_])
    if x.size == 1 and x.any() and not low.any():
        low = np.full(x.shape, np.copysign(known.denormal, x.reshape(())), DTYPES[type_])
    return low


def tensor(proto: TensorProto, type_: int, name: str) -> TensorProto:
    """Return a tensor of float32 as one of `type_`."""
    return numpy_helper.from_array(np.asarray(constant(numpy_helper.to_array(proto), type_)), name)
