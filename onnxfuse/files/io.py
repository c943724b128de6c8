"""Read and write model files of any size: atomically, with one clear message on failure."""

import contextlib
import math
import os
import stat
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto

from onnxfuse.files import external, formats, orphaned_data, pipes
from onnxfuse.files.atomic_write import (
    as_model_error,
    collect,
    is_through,
    real,
    replace_file,
    replacing,
    temporary,
)
from onnxfuse.files.locks import folder_locked
from onnxfuse.files.outline import GRAPH, INITIALIZER, embedded
from onnxfuse.files.outline import outline as outlined
from onnxfuse.files.trial import Opens, is_utf8, opened_whole, opened_with_data, spooled
from onnxfuse.model import bodies
from onnxfuse.model.fused import DOMAIN
from onnxfuse.model.validate import tensors, validate
from onnxfuse.support.close_match import hint_for_missing, no_such_file
from onnxfuse.support.errors import DeviceError, ModelError
from onnxfuse.support.plurals import plural

PROTOBUF_READS = 1 << 31
"""Maximum bytes of a message that protobuf reads."""

PROTOBUF_LIMIT = 2_000_000_000
"""Bytes. A protobuf file must stay below 2 GiB; beyond this the weights become external data."""


def load(path: str | Path, *, weights: bool = True) -> onnx.ModelProto:
    """Return the model in `path`, with external data loaded; without `weights` only small ones.

    Raises ModelError if the file is missing, unreadable, truncated, not an ONNX model, or lacks its external data.
    """
    path = Path(path)
    model = parse(_data(path), str(path))
    try:
        if not weights:
            external.fetch(model, path, small=True)
            return model
        external.require_files(model, path)
        _check_room(path, external.needed(model))
        external.fetch(model, path)
    except ModelError as error:
        raise ModelError(f"{path}: {error}", error.hint) from None
    return model


def outline(path: str | Path, *, small: bool = True) -> onnx.ModelProto:
    """Return the model in `path` with every large weight as a reference into its file, or another one.

    For inspecting the graph, shapes and single weights (`external.read`): as fast for 2 GB as for 2 MB. `small`: small
    weights of other files are loaded. Raises what `load` raises, except for missing external data.
    """
    path = Path(path)
    try:
        light = outlined(path) if path.is_file() else None
        model = None if light is None else parse(light, str(path))
    except (OSError, ModelError):
        model = None
    if model is None:  # parsing the whole file may succeed, or reports why not
        return load(path, weights=False)
    try:
        if small:
            external.fetch(model, path, small=True)
    except ModelError as error:
        raise ModelError(f"{path}: {error}", error.hint) from None
    return model


def _data(path: Path) -> bytes:
    """Return the file's bytes; raises ModelError if it cannot be read."""
    if path.is_dir():
        raise ModelError(
            f"{path}: is a directory", "Give the .onnx file inside it; optimize takes a whole folder with -o DIR."
        )
    try:
        status = path.stat()
        if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
            raise ModelError(f"{path}: is a device, which has no end", "Give an .onnx file.")
        if status.st_size >= PROTOBUF_READS:
            with path.open("rb") as file:
                _refuse_known(file.read(formats.HEAD), str(path))
            raise ModelError(
                f"{path}: has {status.st_size / 1e9:.1f} GB, and an .onnx file has at most 2",
                "Is it the file with the weights? Give the model beside it.",
            )
        return pipes.read(path, PROTOBUF_READS) if stat.S_ISFIFO(status.st_mode) else path.read_bytes()
    except FileNotFoundError:
        raise ModelError(no_such_file(path), hint_for_missing(path)) from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}", "Check the file's permissions.") from None


def name_in_utf8(path: Path) -> str:
    """Return the name under which ONNX Runtime opens a file; raises ModelError for one that it does not accept."""
    if not is_utf8(path):
        raise ModelError(f"{path}: the name is not UTF-8, and ONNX Runtime cannot open such a file", "Rename it.")
    return f"{path}"


def check(model: onnx.ModelProto) -> None:
    """Raise ModelError for a model that must not be loaded: inconsistent, or with invalid fused bodies."""
    for function in model.functions:
        if function.domain == DOMAIN:
            bodies.check(function)
    validate(model)


def parse(data: bytes, name: str) -> onnx.ModelProto:
    """Return the model in `data`; `name` is used in the messages of the ModelError raised for anything else."""
    hint = "Is it a complete .onnx file? Copy or export it again."
    if not data:
        raise ModelError(f"{name}: is empty", hint)
    try:
        model: onnx.ModelProto = onnx.ModelProto.FromString(data)
    except DecodeError:
        _refuse_known(data, name)
        raise ModelError(f"{name}: is not an ONNX model, or is truncated ({plural(data, 'byte')})", hint) from None
    if not model.HasField("graph") or not model.opset_import:
        _refuse_known(data, name)
        raise ModelError(f"{name}: is not an ONNX model: it has no graph or no operator set", hint)
    try:
        check(model)
    except ModelError as error:
        raise ModelError(f"{name}: {error}", error.hint) from None
    return model


def _refuse_known(data: bytes, name: str) -> None:
    """Raise ModelError that names the format of `data`, if it is another known one."""
    other_format = formats.recognized(data)
    if other_format is not None:
        raise ModelError(f"{name}: is not an ONNX model, but {other_format.what}", other_format.hint) from None


def save(model: onnx.ModelProto, path: str | Path) -> None:
    """Write `model` to `path` atomically: the old file stays intact until the new one is complete.

    Weights go to `<path>.<hash of the weights>.data` if the model would exceed protobuf's limit of 2 GiB, and the
    replaced model's data is deleted afterwards. Links are followed; a device or a pipe is written in place. Stale files
    of killed processes are collected. Raises ModelError.
    """
    with saving(model, path):
        pass


@contextlib.contextmanager
def saving(
    model: onnx.ModelProto, path: str | Path, *, external_data: bool = False, opens: Opens | None = None
) -> Iterator[list[Path]]:
    """Write `model`, and move it to `path` when the block succeeds; otherwise delete it.

    `external_data`: weights become external data, whatever their size, except those that shape inference reads. `opens`
    loads the written model before the block, with its data. Yields the replaced model's data files that will be
    deleted, those that no other file refers to (`orphans`), at the end those that were. If `path` is a device or a
    pipe, it is written before the block. Otherwise like `save`.
    """
    named = Path(path)
    with as_model_error(named):
        through = is_through(named)
        large = size(model) > PROTOBUF_LIMIT
        if through and large:
            raise ModelError(
                f"{named}: is not a regular file, and a model over 2 GB keeps its weights in a file next to it",
                "Name a file to write.",
            )
        if through:
            with _sending(model, opens) as send, pipes.writing(named) as device:
                send(device)
    if through:
        yield []
        return
    external_data = external_data or large
    path = real(named)
    if external_data and Path(os.path.realpath(path.parent)) != Path(os.path.realpath(named.parent)):
        raise ModelError(
            f"{named}: is a link into {path.parent}, and the model's weights are kept beside it",
            f"Name the file itself: {path}",
        )
    with contextlib.ExitStack() as open_files:
        with as_model_error(named):
            collect(path)
            left_behind = orphaned_data.read_by(path)
            data_name, data_location, light = None, "", model
            if external_data:
                data, written = open_files.enter_context(temporary(path))
                writer = external.Moved(data)
                light = without_weights(model, writer.move)
                writer.move_of_bodies(light.graph)
                if writer.length:
                    data_name, data_location = written, name_in_utf8(Path(writer.name(path)))
                    external.name_data(light, data_location)
                    data.flush()
            file, name = open_files.enter_context(temporary(path))
            _stream(light, file)
            file.flush()
            if opens is not None and data_name is not None:
                opened_with_data(light, path, data_location, data_name, opens)
            elif opens is not None:
                opened_whole(name, path, opens)
        left_behind = tuple(file for file in left_behind if file.name != data_location)
        removed = orphaned_data.removable(left_behind, [path])
        del model, light  # written: the pending model takes no memory
        yield removed
        with as_model_error(named), folder_locked(path.parent) as alone:
            # The data first and the model last: at any moment the model at `path` finds its own weights.
            if data_name is not None:
                replace_file(data, data_name, path.with_name(data_location))
            replace_file(file, name, path)
            if alone:
                external.remove_stale(path, data_location)
            removed[:] = orphaned_data.remove(left_behind) if alone else []


@contextlib.contextmanager
def streaming(model: onnx.ModelProto, stream: BinaryIO, opens: Opens) -> Iterator[None]:
    """Write `model` into a stream when the block succeeds; `opens` loads it before.

    Raises ModelError for one that is too big for a single file.
    """
    if size(model) > PROTOBUF_LIMIT:
        raise ModelError("-: a model over 2 GB keeps its weights in a file beside it", "Name a file to write.")
    with _sending(model, opens) as send:
        yield
        send(stream)
        stream.flush()


def _sending(
    model: onnx.ModelProto, opens: Opens | None
) -> contextlib.AbstractContextManager[Callable[[BinaryIO], None]]:
    write = partial(_stream, model)
    return contextlib.nullcontext(write) if opens is None else spooled(write, opens)


def has_external_data(path: str | Path) -> bool:
    """Return whether the model in `path` has external data, if it can be parsed again."""
    return bool(data_files(Path(path)))


def data_files(path: Path) -> tuple[str, ...]:
    """Return the data file names in the model in `path`; none if it is not a model."""
    light = outlined(path) if path.is_file() else None
    if light is None:
        return ()
    try:
        model = onnx.ModelProto.FromString(light)
    except DecodeError:
        return ()
    locations = dict.fromkeys(external.location(t) for t in tensors(model) if external.is_external(t))
    return tuple(name for name in locations if name != path.name)


def write_text(path: Path, text: str, *, at_once: bool = False) -> None:
    """Write `text` to `path` like `write_bytes`."""
    write_bytes(path, text.encode(), at_once=at_once)


def write_bytes(path: Path, data: bytes, *, at_once: bool = False) -> None:
    """Write `data` to `path` atomically: the old file stays intact until the new one is complete. Raises ModelError.

    `at_once` also within `together`: for files that are useful even if the block fails.
    """
    with as_model_error(path), replacing(path, at_once=at_once) as file:
        file.write(data)


def _stream(model: onnx.ModelProto, file: BinaryIO) -> None:
    """Write the model weight by weight: the same bytes as `SerializeToString`, at a fraction of the memory."""
    light = without_weights(model, lambda _: None)
    graph = light.graph.SerializeToString(deterministic=True)
    light.ClearField("graph")
    sizes = [tensor.ByteSize() for tensor in model.graph.initializer]
    total = len(graph) + sum(len(embedded(INITIALIZER, size)) + size for size in sizes)
    file.write(light.SerializeToString(deterministic=True))
    file.write(embedded(GRAPH, total))
    file.write(graph)
    for tensor, size in zip(model.graph.initializer, sizes, strict=True):
        file.write(embedded(INITIALIZER, size))
        file.write(tensor.SerializeToString(deterministic=True))


def size(model: onnx.ModelProto) -> int:
    """Return the bytes of the model: exact for weights, approximate for the rest."""
    return sum(tensor_bytes(t) for t in model.graph.initializer) + int(without_weights(model, _shell).ByteSize())


def tensor_bytes(tensor: TensorProto) -> int:
    """Return the bytes of the tensor's data in the file.

    Computed from its shape where possible: protobuf copies all of the data to return its length.
    """
    if external.is_detached(tensor):
        return external.bytes_of(tensor)
    if tensor.HasField("raw_data") and tensor.data_type in ELEMENT_BYTES:
        elements: int = math.prod(tensor.dims)
        return elements * ELEMENT_BYTES[tensor.data_type]
    return len(tensor.raw_data) or tensor.ByteSize()


ELEMENT_BYTES: dict[int, int] = {
    TensorProto.FLOAT: 4, TensorProto.DOUBLE: 8, TensorProto.FLOAT16: 2, TensorProto.BFLOAT16: 2,
    TensorProto.INT8: 1, TensorProto.UINT8: 1, TensorProto.INT16: 2, TensorProto.UINT16: 2,
    TensorProto.INT32: 4, TensorProto.UINT32: 4, TensorProto.INT64: 8, TensorProto.UINT64: 8, TensorProto.BOOL: 1,
}  # fmt: skip
"""Bytes per element, for element types of whole bytes."""


def without_weights(model: onnx.ModelProto, weight: Callable[[TensorProto], TensorProto | None]) -> onnx.ModelProto:
    """Return a copy of `model` with each initializer of the main graph replaced by `weight(tensor)`; None drops it.

    Weights are never copied, so it is cheap for a model of any size.
    """
    light = onnx.ModelProto()
    _copy_fields(model, light, except_field="graph")
    _copy_fields(model.graph, light.graph, except_field="initializer")
    for tensor in model.graph.initializer:
        stand_in = weight(tensor)
        if stand_in is not None:
            light.graph.initializer.append(stand_in)
    return light


def _copy_fields(source: onnx.ModelProto | onnx.GraphProto, target: object, except_field: str) -> None:
    for field, value in source.ListFields():
        if field.name == except_field:
            continue
        if field.is_repeated:
            getattr(target, field.name).extend(value)
        elif field.message_type is not None:
            getattr(target, field.name).CopyFrom(value)
        else:
            setattr(target, field.name, value)


def _shell(tensor: TensorProto) -> TensorProto:
    return TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)


def _check_room(path: Path, needed: int) -> None:
    """Raise DeviceError if weights do not fit the available memory: the process would be killed silently."""
    available = memory_left()
    if available is not None and needed > available:
        raise DeviceError(
            f"{path}: its weights take {needed / 1e9:.1f} GB, and {available / 1e9:.1f} GB of memory are left",
            "Free memory, or use a machine with more: optimize holds the weights once, verify three times.",
        )


def memory_left() -> int | None:
    """Return the available bytes of memory, as Linux counts them; None if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:  # no Linux, or a sandbox without /proc: nothing is checked
        return None
    available = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return None if available is None else int(available) * 1024
