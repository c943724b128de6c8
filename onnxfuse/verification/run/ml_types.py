"""Types that NumPy does not have: bfloat16, and those of eight bits and fewer. Which arrays hold them, and carry them.

A *carrier* is a type that NumPy has and that holds every number of the other: float32 of a float, int8 or uint8 of an
integer. ONNX Runtime hands out no array of the others, and some evaluators know integers by NumPy's types alone.
"""

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]


def _types() -> dict[int, np.dtype[Any]]:
    known = {t: np.dtype(helper.tensor_dtype_to_np_dtype(t)) for t in helper.get_all_tensor_dtypes()}
    # The kind does not tell: that of E5M2 is a float's, that of all others "V".
    return {t: d for t, d in known.items() if d.type.__module__.startswith("ml_dtypes")}


ARRAYS = _types()
"""By element type, the array type of `ml_dtypes` that holds it."""

IN_ORT = {f"tensor({TensorProto.DataType.Name(t).lower()})": t for t in ARRAYS}
"""By what ONNX Runtime calls a type, which it is."""


def is_integer(dtype: np.dtype[Any]) -> bool:
    """Return whether it is an integer of fewer than eight bits."""
    return dtype in ARRAYS.values() and dtype.name.lstrip("u").startswith("int")


def carrier(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type that carries numbers of this one exactly: itself, where NumPy has it."""
    if dtype not in ARRAYS.values() or dtype == ml_dtypes.bfloat16:
        return dtype
    if is_integer(dtype):
        return np.dtype(np.uint8 if dtype.name.startswith("u") else np.int8)
    return np.dtype(np.float32)


def whole(x: Any) -> Any:
    """Return small integers in the type that carries them, and anything else as it is."""
    return x.astype(carrier(x.dtype)) if isinstance(x, np.ndarray) and is_integer(x.dtype) else x


def of_bytes(data: bytes, type_: int, shape: tuple[int, ...]) -> Array:
    """Return the array of the bytes of a tensor; two or four small integers are one byte."""
    tensor = onnx.TensorProto(data_type=type_, dims=shape, raw_data=data)
    return np.asarray(whole(numpy_helper.to_array(tensor)))
