"""External data: read only from within the model's own folder, written under a content-derived name."""

import contextlib
import hashlib
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from onnxfuse.files import formats
from onnxfuse.model.nested import graphs_in
from onnxfuse.model.validate import MOST_NODES, bits, check_tensor, tensors
from onnxfuse.support.errors import ModelError
from onnxfuse.support.plurals import plural

ALIGNMENT = 4096
"""Bytes. Offsets in the data file are multiples of a page, so that ONNX Runtime can map them into memory."""

SMALL = 1024
"""Bytes. Weights up to this size are visible to shape inference, and stay in the model file, as with onnx and torch."""

DIGITS = 16
"""Digits of the hash in a data file's name."""

DETACHED = "detached"
"""Key of the external-data entry of a detached weight (see `files.detached`)."""

_follow: ContextVar[bool] = ContextVar("follow_links", default=False)


@contextlib.contextmanager
def following_links() -> Iterator[None]:
    """Within the block, allow data files to link out of the model's folder, as in the caches of model hubs."""
    token = _follow.set(True)
    try:
        yield
    finally:
        _follow.reset(token)


def follows_links() -> bool:
    """Return whether data files may be symbolic links out of the model's folder."""
    return _follow.get()


def needed(model: onnx.ModelProto) -> int:
    """Return the total bytes of the model's external data."""
    return sum(bytes_of(t) for t in tensors(model) if is_external(t))


def bytes_of(tensor: TensorProto) -> int:
    """Return the bytes of a weight by its type and shape, whatever its file states."""
    return -(-int(math.prod(tensor.dims)) * bits(tensor.data_type) // 8)


def elements_of(tensor: TensorProto) -> int:
    """Return a weight's number of elements."""
    return int(math.prod(tensor.dims))


def is_external(tensor: TensorProto) -> bool:
    """Return whether the tensor's data is external."""
    return tensor.data_location == TensorProto.EXTERNAL


def is_detached(tensor: TensorProto) -> bool:
    """Return whether the tensor is a reference to a weight in memory, or read on request (see `files.detached`)."""
    return tensor.data_location == TensorProto.EXTERNAL and any(e.key == DETACHED for e in tensor.external_data)


def location(tensor: TensorProto) -> str:
    """Return the data file name of an external tensor."""
    return fact(tensor, "location")


def end_of(tensor: TensorProto) -> int:
    """Return the end offset of an external tensor's data. Raises ModelError for an invalid offset."""
    return (_number(tensor, "offset") or 0) + bytes_of(tensor)


def fetch(model: onnx.ModelProto, path: Path, *, small: bool = False) -> None:
    """Load the external data of the model in the file `path`.

    With `small` only weights that may be a Reshape target, axes and the like, where available. Raises ModelError if
    weights are missing, truncated, or outside the model's folder.
    """
    selected = (t for t in tensors(model) if is_external(t) and (not small or belongs_inside(t)))
    read(selected, path, as_far_as_there=small)


def read(selected: Iterable[TensorProto], path: Path, *, as_far_as_there: bool = False) -> None:
    """Load these external tensors of the model in the file `path`, like `fetch`."""
    with _opening(path) as opened:
        for tensor in selected:
            try:
                file = opened(tensor)
            except ModelError:
                if as_far_as_there:
                    continue
                raise
            tensor.raw_data = _data(tensor, file)
            tensor.data_location = TensorProto.DEFAULT
            del tensor.external_data[:]
            check_tensor(tensor)


def array(tensor: TensorProto, path: Path) -> np.ndarray:
    """Return the data of one external tensor of the model in the file `path`. Raises what `fetch` raises."""
    with _opening(path) as opened:
        data = _data(tensor, opened(tensor))
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    if bits(tensor.data_type) == 8 * dtype.itemsize:
        return np.frombuffer(data, dtype).reshape(tensor.dims)
    return numpy_helper.to_array(TensorProto(data_type=tensor.data_type, dims=tensor.dims, raw_data=data))


def require_files(model: onnx.ModelProto, path: Path) -> None:
    """Raise ModelError unless the data files of the model in the file `path` exist."""
    absent = missing(model, path)
    if absent:
        raise ModelError(
            f"its weights are in {absent[0]}, which does not exist",
            "Copy the data file beside the model, under the name it had at export.",
        )


def require_data(model: onnx.ModelProto, path: Path) -> None:
    """Raise what `fetch` raises for the external data of the model in the file `path`, without reading it."""
    with _opening(path) as opened:
        for tensor in filter(is_external, tensors(model)):
            _range(tensor, opened(tensor))


@contextlib.contextmanager
def _opening(path: Path) -> Iterator[Callable[[TensorProto], BinaryIO]]:
    """Yield a function that returns the open data file of a tensor; each file is opened once."""
    files: dict[str, BinaryIO] = {}
    with contextlib.ExitStack() as closing:

        def opened(tensor: TensorProto) -> BinaryIO:
            name = location(tensor)
            if name not in files:
                files[name] = closing.enter_context(_open(path, name, tensor))
            return files[name]

        yield opened


def missing(model: onnx.ModelProto, path: Path) -> list[Path]:
    """Return the data files that do not exist."""
    locations = dict.fromkeys(fact(t, "location") for t in tensors(model) if is_external(t))
    return [path.parent / name for name in locations if not os.path.lexists(path.parent / name)]


def _open(path: Path, location: str, tensor: TensorProto) -> BinaryIO:
    parts = Path(location).parts
    if not parts or Path(location).is_absolute() or ".." in parts or "\0" in location:
        raise ModelError(
            f"weight '{tensor.name}' is in the file {location!r}, which is not inside the model's folder",
            "A model may not read files outside its own folder: put the data beside it, and export it again.",
        )
    file = path.parent / location
    folder = Path(os.path.realpath(path.parent))
    where = Path(os.path.realpath(file))
    is_model_itself = location == path.name  # the user named that file and trusts it, wherever it links to
    if not is_model_itself and not where.is_relative_to(folder) and not follows_links():
        raise ModelError(
            f"its data file {location} is a link to {where}, outside the model's folder",
            "If you trust it, as in a model hub's cache, use --follow-links; otherwise copy the file into the folder.",
        )
    try:
        if not where.is_file():
            raise ModelError(f"its data file {location} is not a regular file", "Copy the data file next to the model.")
        return file.open("rb")
    except OSError as error:
        raise ModelError(
            f"its data file {location} cannot be read: {error.strerror}", "Check its permissions."
        ) from None


def _range(tensor: TensorProto, file: BinaryIO) -> tuple[int, int]:
    """Return offset and length of a tensor's data in its file. Raises ModelError where they do not fit."""
    offset, length = _number(tensor, "offset") or 0, _number(tensor, "length")
    check_tensor(tensor)
    expected = bytes_of(tensor)
    if length is not None and length != expected:
        raise ModelError(
            f"weight '{tensor.name}' has {plural(length, 'byte')} of {location(tensor)}, and its shape wants "
            f"{expected}",
            "Export it again.",
        )
    length = expected
    available = os.fstat(file.fileno()).st_size
    if offset + length > available:
        file.seek(0)
        other_format = formats.of(file.read(formats.HEAD))
        it_is = f", and is {other_format.what}" if other_format else ""
        raise ModelError(
            f"weight '{tensor.name}' is at bytes {offset} to {offset + length} of {location(tensor)}, which has "
            f"{available}{it_is}",
            other_format.hint
            if other_format
            else "The data file is truncated, or belongs to another model: copy or export it again.",
        )
    return offset, length


def _data(tensor: TensorProto, file: BinaryIO) -> bytes:
    offset, length = _range(tensor, file)
    file.seek(offset)
    return file.read(length)


def fact(tensor: TensorProto, key: str) -> str:
    """Return an external-data entry of a tensor, empty if absent."""
    return next((e.value for e in tensor.external_data if e.key == key), "")


def _number(tensor: TensorProto, key: str) -> int | None:
    text = fact(tensor, key)
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise ModelError(
            f"weight '{tensor.name}': the {key} of its data is {text[:40]!r}, no number", "Export it again."
        )
    return int(text)


# ---- writing


def without_data(weight: TensorProto) -> TensorProto:
    """Return a large weight without its data, like one in a file that is not read; a small one as it is."""
    if (is_external(weight) and not is_detached(weight)) or bytes_of(weight) <= SMALL:
        return weight
    return TensorProto(
        name=weight.name, data_type=weight.data_type, dims=weight.dims, data_location=TensorProto.EXTERNAL
    )


def belongs_inside(tensor: TensorProto) -> bool:
    """Return whether a weight stays in the model file even with external data.

    Shape inference, ONNX's and ONNX Runtime's, reads Reshape targets, axes, sizes, scales and the like only from the
    model file, and fails if they are external. All of them are scalars or vectors, floats among them one for each axis;
    so only integer vectors can be longer than SMALL, such as the sizes of a Split, one for each output.
    """
    counts = tensor.data_type in (TensorProto.INT64, TensorProto.INT32) and len(tensor.dims) <= 1
    return bytes_of(tensor) <= SMALL or (counts and elements_of(tensor) <= MOST_NODES)


def locate(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    """Set the external-data location of a tensor without data."""
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


class Moved:
    """Weights written to a data file, and the hash of its contents."""

    def __init__(self, data: BinaryIO) -> None:
        self.data = data
        self.digest = hashlib.sha256()
        self.length = 0

    def move(self, tensor: TensorProto) -> TensorProto:
        """Write the data of `tensor`, and return its external reference, without the data file's name.

        Weights that stay inside the model are returned unchanged.
        """
        if tensor.data_type == TensorProto.STRING or is_external(tensor) or belongs_inside(tensor):
            return tensor
        raw = tensor.raw_data or numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data
        offset = -(-self.length // ALIGNMENT) * ALIGNMENT
        for part in (bytes(offset - self.length), raw):
            self.data.write(part)
            self.digest.update(part)
        self.length = offset + len(raw)
        shell = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        locate(shell, "", offset, len(raw))
        return shell

    def move_of_bodies(self, graph: onnx.GraphProto) -> None:
        """Move the weights of nested bodies of `graph`, which is modified."""
        for body in (body for node in graph.node for body in graphs_in(node)):
            for tensor in body.initializer:
                shell = self.move(tensor)
                if shell is not tensor:
                    tensor.CopyFrom(shell)

    def name(self, path: Path) -> str:
        """Return the data file's name for the model `path`: with a hash of its contents."""
        return f"{path.name}.{self.digest.hexdigest()[:DIGITS]}.data"


def name_data(model: onnx.ModelProto, name: str, former: str = "") -> None:
    """Set the data file's name in the moved weights; `former` is their current one."""
    for tensor in tensors(model):
        for entry in tensor.external_data:
            if entry.key == "location" and entry.value == former:
                entry.value = name


def remove_stale(path: Path, keep: str) -> None:
    """Delete data files of former models at `path`: all that match our naming scheme except `keep`."""
    ours = re.compile(re.escape(path.name) + rf"\.[0-9a-f]{{{DIGITS}}}\.data")
    for entry in os.scandir(path.parent):
        if entry.name != keep and ours.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(entry.path)
