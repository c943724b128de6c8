"""The structures and functions of engine/onnxfuse.h, for ctypes."""

import ctypes
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char_p,
    c_int32,
    c_int64,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)  # fmt: skip
from pathlib import Path
from typing import Any, TypeVar

VERSION = 5
"""`ONNXFUSE_ABI`."""

Sized_ = TypeVar("Sized_", bound=Structure)


class Numbers(Structure):
    _fields_ = (("at", POINTER(c_int64)), ("count", c_size_t))


class TensorMap(Structure):
    _fields_ = (
        ("pointer", c_uint32), ("element_type", c_uint32), ("to_tf32", c_uint32), ("rank", c_uint32),
        ("offset", c_uint64), ("extents", c_uint64 * 5), ("strides", c_uint64 * 4), ("box", c_uint32 * 5),
        ("is_window", c_uint32), ("lower", c_int32 * 3), ("upper", c_int32 * 3), ("steps", c_uint32 * 3),
    )  # fmt: skip


class Launch(Structure):
    pass


Launch._fields_ = (
    ("size", c_size_t), ("function", c_void_p), ("grid", c_uint32 * 3), ("block", c_uint32 * 3),
    ("shared_bytes", c_uint32), ("early", c_uint32), ("parameters", c_void_p), ("parameter_bytes", c_size_t),
    ("tensor_maps", POINTER(TensorMap)), ("tensor_map_count", c_size_t), ("output_shapes", POINTER(Numbers)),
    ("output_count", c_size_t), ("scratch_bytes", c_size_t), ("counter_bytes", c_size_t), ("interim", c_uint32),
    ("owner", c_void_p), ("then", POINTER(Launch)), ("then_count", c_size_t),
)  # fmt: skip


class Kernel(Structure):
    _fields_ = (("function", c_void_p), ("early", c_uint32), ("owner", c_void_p))


class Program(Structure):
    _fields_ = (
        ("size", c_size_t), ("family", c_int64), ("tape", c_char_p), ("tape_bytes", c_size_t),
        ("kernels", POINTER(Kernel)), ("kernel_count", c_size_t), ("apart", POINTER(Numbers)),
        ("apart_count", c_size_t),
    )  # fmt: skip


class Question(Structure):
    _fields_ = (
        ("size", c_size_t), ("shapes", POINTER(Numbers)), ("shape_count", c_size_t), ("aligned", c_int32),
        ("device", c_int32), ("scratch_limit", c_size_t), ("varies", POINTER(c_uint8)),
    )  # fmt: skip


Plan = CFUNCTYPE(None, c_void_p, POINTER(Question), c_void_p)
Release = CFUNCTYPE(None, c_void_p)
See = CFUNCTYPE(None, c_void_p, POINTER(Launch))


class Host(Structure):
    _fields_ = (
        ("size", c_size_t), ("plan", Plan), ("release", Release),
        ("is_there", c_void_p), ("is_leaving", c_void_p), ("name", c_char_p), ("begins", c_void_p),
    )  # fmt: skip


class Op(Structure):
    _fields_ = (
        ("size", c_size_t), ("name", c_char_p), ("inputs", POINTER(c_int32)), ("input_count", c_size_t),
        ("outputs", POINTER(c_int32)), ("output_count", c_size_t), ("may_alias", c_uint64),
        ("on_host", c_uint64), ("planner", c_void_p),
    )  # fmt: skip


class Counts(Structure):
    _fields_ = (("name", c_char_p), ("calls", c_uint64), ("launches", c_uint64), ("answers", c_uint64))


class Memory(Structure):
    _fields_ = (
        ("size", c_size_t), ("scratch", c_uint64), ("allocated", c_uint64), ("in_use", c_uint64), ("peak", c_uint64),
        ("free", c_uint64),
    )  # fmt: skip


FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "onnxfuse_abi": (c_uint32, ()),
    "onnxfuse_reply_launch": (None, (c_void_p, POINTER(Launch), POINTER(Program))),
    "onnxfuse_reply_program": (None, (c_void_p, POINTER(Program))),
    "onnxfuse_reply_error": (None, (c_void_p, c_char_p)),
    "onnxfuse_create": (c_char_p, (POINTER(Host), POINTER(Op), c_size_t, POINTER(c_void_p))),
    "onnxfuse_stage": (None, (c_void_p,)),
    "onnxfuse_close": (None, (c_void_p,)),
    "onnxfuse_memory_of": (c_char_p, (c_void_p, POINTER(Memory))),
    "onnxfuse_extend_arena": (c_char_p, (c_void_p, c_size_t)),
    "onnxfuse_limit_scratch": (None, (c_void_p, c_size_t)),
    "onnxfuse_new_shapes": (c_uint64, (c_void_p,)),
    "onnxfuse_count": (c_size_t, (POINTER(Counts), c_size_t)),
    "onnxfuse_reset_counts": (None, ()),
    "onnxfuse_encode": (c_char_p, (POINTER(TensorMap), c_size_t, POINTER(c_void_p), c_size_t, c_char_p)),
    "onnxfuse_answered": (c_char_p, (c_char_p, c_size_t, c_char_p, c_size_t, c_size_t, c_char_p)),
    "onnxfuse_evaluate": (c_char_p, (POINTER(Host), POINTER(Program), POINTER(Numbers), c_size_t, See, c_void_p)),
}
"""Return type and argument types of each function."""


def opened(path: Path) -> ctypes.CDLL:
    """Load the library and declare the types of its functions. Raises OSError if it cannot be loaded or has another ABI
    version.

    Calls release the GIL, because the engine may wait for a thread that needs it.
    """
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in FUNCTIONS.items():
        if not hasattr(library, name):
            raise OSError(f"{path} has no {name}: it is of another version of onnxfuse")
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    if (version := library.onnxfuse_abi()) != VERSION:
        raise OSError(f"{path} is of version {version}, expected {VERSION}")
    return library


def sized(struct: type[Sized_], **fields: Any) -> Sized_:
    """Return a structure whose first field is its own size, as the ABI requires."""
    return struct(size=ctypes.sizeof(struct), **fields)


def is_finalizing() -> int:
    """Return the address of Py_IsFinalizing, which can be called without the GIL."""
    api = ctypes.pythonapi
    function = api.Py_IsFinalizing if hasattr(api, "Py_IsFinalizing") else api._Py_IsFinalizing  # public since 3.13
    return _address(function)


def is_initialized() -> int:
    """Return the address of Py_IsInitialized, which can be called without the GIL."""
    return _address(ctypes.pythonapi.Py_IsInitialized)


def _address(function: Any) -> int:
    return ctypes.cast(function, c_void_p).value or 0
