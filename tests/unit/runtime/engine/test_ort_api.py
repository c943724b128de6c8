"""The engine's view of ONNX Runtime's function table, held against the installed library."""

import ctypes
import re
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import onnxruntime
import pytest

from onnxfuse.runtime.engine.bridge import LIBRARY
from onnxfuse.runtime.engine.launch import Row
from onnxfuse.runtime.sessions import registration

HEADER = (Path(__file__).parents[4] / "engine" / "ort_api.h").read_text(encoding="utf-8")
NAMES = {
    "CreateStatus": "CreateStatus",
    "StatusMessage": "GetErrorMessage",
    "CreateEnv": "CreateEnv",
    "CreateSession": "CreateSessionFromArray",
    "CreateOptions": "CreateSessionOptions",
    "SetThreads": "SetIntraOpNumThreads",
    "CreateDomain": "CreateCustomOpDomain",
    "AddOp": "CustomOpDomain_Add",
    "AddDomain": "AddCustomOpDomain",
    "TensorData": "GetTensorMutableData",
    "ContextInput": "KernelContext_GetInput",
    "ContextOutput": "KernelContext_GetOutput",
    "ContextStream": "KernelContext_GetGPUComputeStream",
    "ReleaseEnv": "ReleaseEnv",
    "ReleaseStatus": "ReleaseStatus",
    "ReleaseSession": "ReleaseSession",
    "ReleaseOptions": "ReleaseSessionOptions",
    "HasConfig": "HasSessionConfigEntry",
    "Config": "GetSessionConfigEntry",
    "TensorShape": "GetTensorElementTypeAndShapeDataReference",
    "AllocatorAlloc": "AllocatorAlloc",
    "AllocatorFree": "AllocatorFree",
    "ReleaseAllocator": "ReleaseAllocator",
    "InfoAllocator": "KernelInfoGetAllocator",
    "KeyValue": "GetKeyValue",
    "ReleaseKeyValues": "ReleaseKeyValuePairs",
    "AllocatorStats": "AllocatorGetStats",
}
"""Of the engine and of ONNX Runtime."""
SLOTS = {NAMES[name]: int(slot) for name, slot in re.findall(r"using (\w+) = Slot<(\d+),", HEADER)}
VERSION = int(re.findall(r"kApiVersion = (\d+);", HEADER)[0])
FLOAT, RANK = 1, 2


class Api:
    """The installed library's functions, called through the engine's slot numbers."""

    def __init__(self) -> None:
        (library,) = (Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*")
        base = ctypes.CDLL(str(library)).OrtGetApiBase
        base.restype = ctypes.POINTER(ctypes.c_void_p)
        get_api = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(base()[0])
        self.table = (ctypes.c_void_p * (max(SLOTS.values()) + 1)).from_address(get_api(VERSION))

    def at(self, slot: int, *arguments: Any) -> Any:
        """Call the function in a slot; return its pointer, None for the null that means success."""
        return ctypes.CFUNCTYPE(ctypes.c_void_p)(self.table[slot] or 0)(*arguments)

    def call(self, name: str, *arguments: Any) -> None:
        status = self.at(SLOTS[name], *arguments)
        assert status is None, f"{name}: {self.message(status)}"

    def message(self, status: int) -> str:
        get_message = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(self.table[SLOTS["GetErrorMessage"]] or 0)
        return (get_message(status) or b"").decode()


@pytest.fixture(scope="module")
def api() -> Api:
    return Api()


def test_an_older_onnx_runtime_is_refused_with_its_version(api: Api) -> None:
    """By the one table that every release has."""
    get = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)
    tell, words = ctypes.CFUNCTYPE(ctypes.c_void_p), ctypes.create_string_buffer(b"1.20.1")
    older = get(lambda version: ctypes.addressof(api.table) if version <= 20 else None)
    named = tell(lambda: ctypes.addressof(words))
    base = (ctypes.c_void_p * 2)(ctypes.cast(older, ctypes.c_void_p), ctypes.cast(named, ctypes.c_void_p))
    options = ctypes.c_void_p()
    api.call("CreateSessionOptions", ctypes.byref(options))
    register = ctypes.CDLL(str(LIBRARY)).RegisterCustomOps
    register.restype = ctypes.c_void_p
    status = register(options, base)
    assert api.message(status) == "onnxfuse needs ONNX Runtime 1.24 or newer, this is 1.20.1"


def test_create_status(api: Api) -> None:
    """CreateStatus keeps code and message, which GetErrorMessage tells; ReleaseStatus takes what was made."""
    status = api.at(SLOTS["CreateStatus"], 1, b"all is lost")
    assert api.message(status) == "all is lost"
    api.at(SLOTS["ReleaseStatus"], ctypes.c_void_p(status))


def test_domain_functions_add_an_op_to_options(api: Api) -> None:
    """CreateCustomOpDomain, CustomOpDomain_Add and AddCustomOpDomain succeed on each other's results."""
    domain, options = ctypes.c_void_p(), ctypes.c_void_p()
    api.call("CreateCustomOpDomain", b"onnxfuse", ctypes.byref(domain))
    assert domain.value
    op = ctypes.create_string_buffer(256)
    api.call("CustomOpDomain_Add", domain, op)
    api.call("CreateSessionOptions", ctypes.byref(options))
    api.call("AddCustomOpDomain", options, domain)


def test_config_functions_read_what_options_say(api: Api) -> None:
    """HasSessionConfigEntry and GetSessionConfigEntry, which gives the size of what it has no room for."""
    options, there, size = ctypes.c_void_p(), ctypes.c_int(-1), ctypes.c_size_t(0)
    add_entry = 130
    api.call("CreateSessionOptions", ctypes.byref(options))
    api.call("HasSessionConfigEntry", options, b"a.key", ctypes.byref(there))
    assert there.value == 0
    assert api.at(add_entry, options, b"a.key", b"value") is None
    api.call("HasSessionConfigEntry", options, b"a.key", ctypes.byref(there))
    assert there.value == 1
    api.call("GetSessionConfigEntry", options, b"a.key", None, ctypes.byref(size))
    value = ctypes.create_string_buffer(size.value)
    api.call("GetSessionConfigEntry", options, b"a.key", value, ctypes.byref(size))
    assert value.value == b"value"


def test_session_functions_open_a_model(api: Api) -> None:
    """CreateEnv, CreateSessionOptions, SetIntraOpNumThreads and CreateSessionFromArray, and what gives each back."""
    env, options, session = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    warning = 2
    api.call("CreateEnv", warning, b"test", ctypes.byref(env))
    api.call("CreateSessionOptions", ctypes.byref(options))
    api.call("SetIntraOpNumThreads", options, 1)
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 13]> one (bool[] x) => (bool[] y) { y = Identity(x) }'
    ).SerializeToString()
    api.call("CreateSessionFromArray", env, model, ctypes.c_size_t(len(model)), options, ctypes.byref(session))
    for name, thing in (("Session", session), ("SessionOptions", options), ("Env", env)):
        assert thing.value
        api.at(SLOTS[f"Release{name}"], thing)


def test_tensor_functions_read_data_and_shape(api: Api) -> None:
    """GetTensorMutableData and GetTensorElementTypeAndShapeDataReference see the tensor that was made."""
    memory, value = ctypes.c_void_p(), ctypes.c_void_p()
    create_cpu_memory_info, create_tensor = 69, 49
    assert api.at(create_cpu_memory_info, 0, 0, ctypes.byref(memory)) is None
    data, dims = (ctypes.c_float * 6)(), (ctypes.c_int64 * RANK)(2, 3)
    made = api.at(
        create_tensor, memory, data, ctypes.c_size_t(24), dims, ctypes.c_size_t(RANK), FLOAT, ctypes.byref(value)
    )
    assert made is None

    pointer = ctypes.c_void_p()
    api.call("GetTensorMutableData", value, ctypes.byref(pointer))
    assert pointer.value == ctypes.addressof(data)

    element, shape, rank = ctypes.c_int(), ctypes.POINTER(ctypes.c_int64)(), ctypes.c_size_t()
    api.call(
        "GetTensorElementTypeAndShapeDataReference",
        value,
        ctypes.byref(element),
        ctypes.byref(shape),
        ctypes.byref(rank),
    )
    assert (element.value, shape[: rank.value]) == (FLOAT, [2, 3])


def test_the_other_slots_are_the_kernel_context_functions() -> None:
    """The slots left need a running kernel: test_inference.py and test_memory.py fail if one of them is wrong."""
    tested_here = {
        "CreateStatus",
        "GetErrorMessage",
        "CreateEnv",
        "CreateSessionFromArray",
        "CreateSessionOptions",
        "SetIntraOpNumThreads",
        "ReleaseEnv",
        "ReleaseStatus",
        "ReleaseSession",
        "ReleaseSessionOptions",
        "HasSessionConfigEntry",
        "GetSessionConfigEntry",
        "CreateCustomOpDomain",
        "CustomOpDomain_Add",
        "AddCustomOpDomain",
        "GetTensorMutableData",
        "GetTensorElementTypeAndShapeDataReference",
    }
    assert set(SLOTS) - tested_here == {
        "KernelContext_GetInput",
        "KernelContext_GetOutput",
        "KernelContext_GetGPUComputeStream",
        "AllocatorAlloc",
        "AllocatorFree",
        "ReleaseAllocator",
        "KernelInfoGetAllocator",
        "GetKeyValue",
        "ReleaseKeyValuePairs",
        "AllocatorGetStats",
    }


def test_registering_the_library_by_itself_is_an_error() -> None:
    """Without a staged table there is nothing to register, and ONNX Runtime passes on what to do."""
    with pytest.raises(Exception, match=r"register with onnxfuse\.register\(session_options, model\)"):
        onnxruntime.SessionOptions().register_custom_ops_library(str(LIBRARY))


class Failing:
    """Session options of which ONNX Runtime asks for nothing."""

    def get_session_config_entry(self, key: str) -> str:
        raise RuntimeError("no such entry")

    def register_custom_ops_library(self, path: str) -> None:
        raise OSError(f"{path}: no more memory to map it")


def test_what_nobody_asked_for_is_no_others() -> None:
    """A registration that failed leaves nothing for the next one in its thread, which is for another model."""
    with pytest.raises(OSError, match="no more memory"):
        registration._register(Failing(), [Row("Left_1", (1,), (1,), (), lambda *asked: pytest.fail("asked"))])
    test_registering_the_library_by_itself_is_an_error()
