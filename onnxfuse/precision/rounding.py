"""Rounding to a lower precision, with the limits of its range."""

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
    """Return the array rounded to `type_`, in float32, which represents it exactly; values beyond its range become
    infinite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(DTYPES[type_]).astype(np.float32)


def constant(x: Array, type_: int) -> Array:
    """Return a constant as stored in the file: rounded, but no finite value becomes infinite and no scalar becomes
    zero.

    A bound or mask constant beyond the range becomes the largest number, which is as far as any value. An epsilon below
    the range becomes the smallest number, so that the divisor it protects is not zero.
    """
    type_facts = facts(type_)
    with np.errstate(over="ignore", invalid="ignore"):
        low = np.where(np.isfinite(x), np.clip(x, -type_facts.largest, type_facts.largest), x).astype(DTYPES[type_])
    if x.size == 1 and x.any() and not low.any():
        low = np.full(x.shape, np.copysign(type_facts.denormal, x.reshape(())), DTYPES[type_])
    return low


def tensor(proto: TensorProto, type_: int, name: str) -> TensorProto:
    """Convert a float32 tensor to `type_`."""
    return numpy_helper.from_array(np.asarray(constant(numpy_helper.to_array(proto), type_)), name)
