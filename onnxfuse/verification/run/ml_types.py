"""Element types that NumPy lacks (bfloat16, and those of eight bits and fewer), with their arrays and carriers.

A *carrier* is a NumPy type that represents every number of the other: float32 for floats, int8 or uint8 for integers.
ONNX Runtime returns no array of the narrow types, and some evaluators recognize integers by NumPy's types alone.
"""

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]


def _types() -> dict[int, np.dtype[Any]]:
    dtypes = {t: np.dtype(helper.tensor_dtype_to_np_dtype(t)) for t in helper.get_all_tensor_dtypes()}
    # `dtype.kind` is unreliable: E5M2 reports a float's, all others "V".
    return {t: d for t, d in dtypes.items() if d.type.__module__.startswith("ml_dtypes")}


ARRAYS = _types()
"""By element type, the array type of `ml_dtypes` that holds it."""

IN_ORT = {f"tensor({TensorProto.DataType.Name(t).lower()})": t for t in ARRAYS}
"""Element types by ONNX Runtime's names."""


def is_integer(dtype: np.dtype[Any]) -> bool:
    """Return whether it is an integer type of fewer than eight bits."""
    return dtype in ARRAYS.values() and dtype.name.lstrip("u").startswith("int")


def carrier(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type that represents numbers of this one exactly: itself if NumPy has it."""
    if dtype not in ARRAYS.values() or dtype == ml_dtypes.bfloat16:
        return dtype
    if is_integer(dtype):
        return np.dtype(np.uint8 if dtype.name.startswith("u") else np.int8)
    return np.dtype(np.float32)


def in_carrier(x: Any) -> Any:
    """Return small integers in their carrier type, and anything else unchanged."""
    return x.astype(carrier(x.dtype)) if isinstance(x, np.ndarray) and is_integer(x.dtype) else x


def decode(data: bytes, type_: int, shape: tuple[int, ...]) -> Array:
    """Decode the bytes of a tensor; small integers are packed two or four per byte."""
    tensor = onnx.TensorProto(data_type=type_, dims=shape, raw_data=data)
    return np.asarray(in_carrier(numpy_helper.to_array(tensor)))
