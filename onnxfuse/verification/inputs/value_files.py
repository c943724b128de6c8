"""Values in ONNX's test data format: a file is a TensorProto, SequenceProto, MapProto or OptionalProto, by its type."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet
from onnx import MapProto, OptionalProto, SequenceProto, TensorProto, numpy_helper

from onnxfuse.files import external
from onnxfuse.model.validate import check_tensor
from onnxfuse.support.bounded_text import read_file
from onnxfuse.support.errors import ModelError, UsageError

PROTOS: Mapping[str, type[Message]] = {
    "tensor": TensorProto,
    "seq": SequenceProto,
    "map": MapProto,
    "optional": OptionalProto,
}
"""By the first word of ONNX Runtime's name of a type."""
NAMES = {"tensor": "a tensor", "seq": "a sequence", "map": "a map", "optional": "an optional"}


def serialized(name: str, value: Any, type_: str = "") -> bytes:
    """Return a value in the format of `input_0.pb` and `output_0.pb`; `type_` tells an optional from its value."""
    if value is None or type_.startswith("optional("):
        proto: Any = numpy_helper.from_optional(value, name)
    elif isinstance(value, Mapping):
        proto = _of_map(name, value)
    elif isinstance(value, list) and value and isinstance(value[0], Mapping):
        proto = SequenceProto(name=name, elem_type=SequenceProto.MAP, map_values=[_of_map("", one) for one in value])
    elif isinstance(value, list):
        proto = numpy_helper.from_list(value, name)
    else:
        proto = numpy_helper.from_array(np.asarray(value), name)
    return bytes(proto.SerializeToString(deterministic=True))


def _of_map(name: str, value: Mapping[Any, Any]) -> MapProto:
    """Return a map of numbers; `numpy_helper.from_dict` takes a key of text for the name of a type."""
    by_text = any(isinstance(key, str) for key in value)
    proto = MapProto(name=name, key_type=TensorProto.STRING if by_text else TensorProto.INT64)
    if by_text:
        proto.string_keys.extend(key.encode() for key in value)
    else:
        proto.keys.extend(value)
    proto.values.CopyFrom(numpy_helper.from_list([np.asarray(x, np.float32) for x in value.values()]))
    return proto


def read_value(file: Path, type_: str = "tensor") -> tuple[str, Any]:
    """Return the name that a file holds, and its value of that type. Raises UsageError.

    What is optional may also be there as the value itself.
    """
    try:
        proto = _parsed(read_file(file), type_)
        tensors = list(_tensors(proto))
        external.read([t for t in tensors if external.is_external(t)], file)
        for tensor in tensors:
            check_tensor(tensor)
        return str(proto.name), _value(proto)
    except (DecodeError, ValueError, TypeError, IndexError) as error:
        type_name, proto_type = _kind(type_)
        raise UsageError(
            f"{file}: does not hold {type_name}: {error}", f"It should be a serialized {proto_type.__name__}."
        ) from None
    except ModelError as error:
        raise UsageError(f"{file}: {error}", error.hint) from None


def _kind(type_: str) -> tuple[str, type[Message]]:
    word = type_.partition("(")[0]
    return NAMES[word], PROTOS[word]


def _parsed(data: bytes, type_: str) -> Any:
    """Return the message of a type. Raises DecodeError."""
    proto: Any = _kind(type_)[1]()
    inner = type_.removeprefix("optional(").removesuffix(")") if type_.startswith("optional(") else type_
    try:
        proto.ParseFromString(data)
    except DecodeError:
        if inner == type_:
            raise
        return _parsed(data, inner)
    if inner != type_ and not _is_optional(proto, inner):
        return _parsed(data, inner)
    if inner == type_ and not isinstance(proto, TensorProto) and len(UnknownFieldSet(proto)):
        raise DecodeError("it is a message of another type")
    return proto


def _is_optional(proto: OptionalProto, inner: str) -> bool:
    """Return whether bytes that were read as an optional are one: messages have no type of their own."""
    if len(UnknownFieldSet(proto)):
        return False
    if proto.elem_type == OptionalProto.UNDEFINED:
        return True
    field = "sequence_value" if inner.startswith("seq(") else "tensor_value"
    element_type = OptionalProto.SEQUENCE if inner.startswith("seq(") else OptionalProto.TENSOR
    return bool(proto.elem_type == element_type and proto.HasField(field))


def _tensors(proto: Any) -> Iterator[TensorProto]:
    if isinstance(proto, TensorProto):
        yield proto
        return
    for _, value in proto.ListFields():
        for one in value if not isinstance(value, Message | str | bytes | int) else [value]:
            if isinstance(one, Message):
                yield from _tensors(one)


def _value(proto: Any) -> Any:
    if isinstance(proto, OptionalProto):
        return numpy_helper.to_optional(proto)
    if isinstance(proto, SequenceProto):
        return numpy_helper.to_list(proto)
    if isinstance(proto, MapProto):
        entries = numpy_helper.to_dict(proto).items()
        return {key.decode() if isinstance(key, bytes) else key: value.item() for key, value in entries}
    return np.asarray(numpy_helper.to_array(proto))
