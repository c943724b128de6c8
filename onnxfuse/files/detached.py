"""Detached weights: while a model is explained its large weights are references, and read only when a pass asks.

protobuf copies a weight into the message that holds it, and frees it with that whole message: each weight that a pass
transposes or pads would stay in memory next to its original.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from onnxfuse.files import external, io
from onnxfuse.model.validate import tensors
from onnxfuse.support.errors import ModelError

LEAST = 1 << 16
"""Bytes. Smaller weights stay in the model: index lists of up to 32 kB become part of fused bodies."""

_READERS: ContextVar[dict[str, Callable[[], np.ndarray]] | None] = ContextVar("_READERS", default=None)
"""How the data of each detached weight is read, by its key."""

_KEYS = itertools.count()
"""No two weights of a process have one key."""


@contextlib.contextmanager
def detaching() -> Iterator[None]:
    """Within the block, large weights may be detached; those of the outermost block are gone at its end."""
    if is_detaching():
        yield
        return
    token = _READERS.set({})
    try:
        yield
    finally:
        _READERS.reset(token)


def is_detaching() -> bool:
    """Return whether large weights may be detached here."""
    return _READERS.get() is not None


def detach(name: str, data_type: int, dims: tuple[int, ...], read: Callable[[], np.ndarray]) -> TensorProto:
    """Return a reference to a weight whose data `read` returns."""
    readers = _READERS.get()
    assert readers is not None
    key = f"{next(_KEYS)}"
    readers[key] = read
    tensor = TensorProto(name=name, data_type=data_type, dims=dims, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key=external.DETACHED, value=key)
    return tensor


def array_of(tensor: TensorProto) -> np.ndarray | None:
    """Return the data of a weight, detached or not; None for external data that was not loaded."""
    if external.is_detached(tensor):
        readers, key = _READERS.get() or {}, external.fact(tensor, external.DETACHED)
        if key not in readers:
            raise ModelError(f"the data of weight '{tensor.name}' no longer exists", "Load the model again.")
        return readers[key]()
    return None if external.is_external(tensor) else numpy_helper.to_array(tensor)


def attached(tensor: TensorProto) -> TensorProto:
    """Return a weight that contains its data, if it is detached; any other as it is."""
    array = array_of(tensor) if external.is_detached(tensor) else None
    return tensor if array is None else numpy_helper.from_array(np.asarray(array, order="C"), tensor.name)


def load(source: str | Path | onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model with its large weights detached; raises what `io.load` raises."""
    if isinstance(source, onnx.ModelProto):
        return io.without_weights(source, _of_message)
    path = Path(source)
    model = io.outline(path, small=False)
    try:
        external.require_files(model, path)
        external.require_data(model, path)
        large = {t.name for t in model.graph.initializer if external.is_external(t) and external.bytes_of(t) > LEAST}
        main = io.without_weights(model, lambda t: _of_file(t, path) if t.name in large else t)
        external.read((t for t in tensors(main) if external.is_external(t) and not external.is_detached(t)), path)
    except ModelError as error:
        raise ModelError(f"{path}: {error}", error.hint) from None
    return main


def _of_message(tensor: TensorProto) -> TensorProto:
    """Return a reference to a weight of a model that stays in memory; a small one, or one of strings, as it is."""
    if external.is_external(tensor) or tensor.data_type == TensorProto.STRING or external.bytes_of(tensor) <= LEAST:
        return tensor
    return detach(tensor.name, tensor.data_type, tuple(tensor.dims), partial(numpy_helper.to_array, tensor))


def _of_file(tensor: TensorProto, path: Path) -> TensorProto:
    """Return a reference to an external weight of the model in the file `path`."""
    return detach(tensor.name, tensor.data_type, tuple(tensor.dims), partial(external.array, tensor, path))
