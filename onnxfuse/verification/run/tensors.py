"""Tensors contained in sequences, maps and optionals: outputs are compared, and inputs made up, tensor by tensor."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from onnxfuse.model.overridable import required_inputs

Array = npt.NDArray[Any]

MISSING: Array = np.zeros((0, 0))
"""Placeholder for a tensor that is missing in one run: an entry of a longer sequence."""

LENGTH, KEYS, PRESENT = ".length", ".keys", ".present"
"""Name suffixes of the metadata of a sequence, a map, an optional."""


def tensors_of(
    values: Mapping[str, Any],
    optional: Collection[str] = (),
    map_types: Mapping[str, np.dtype[Any]] | None = None,
) -> dict[str, Array]:
    """Return every tensor of the outputs, by name: those of a sequence `s` as `s[0]`, `s[1]`, with its `s.length`.

    A map `m` yields its numbers in the order of its keys, and the keys as `m.keys`; `map_types` holds their type by
    output, as Python numbers have none. Optional outputs, `optional`, have an `o.present` that says whether there is a
    value.
    """
    parts: dict[str, Array] = {}
    for name, value in values.items():
        if name in optional:
            parts[_unused_name(name + PRESENT, values)] = np.asarray(value is not None)
        if value is not None:
            _add(parts, name, value, values, (map_types or {}).get(name))
    return parts


def _add(parts: dict[str, Array], name: str, value: Any, outputs: Collection[str], dtype: np.dtype[Any] | None) -> None:
    if isinstance(value, Mapping):
        keys = sorted(value)
        parts[_unused_name(name + KEYS, outputs)] = np.array(
            keys, object if keys and isinstance(keys[0], str) else np.int64
        )
        parts[name] = np.asarray([value[key] for key in keys], dtype)
    elif isinstance(value, list | tuple):
        parts[_unused_name(name + LENGTH, outputs)] = np.asarray(len(value))
        for n, one in enumerate(value):
            _add(parts, f"{name}[{n}]", one, outputs, dtype)
    else:
        parts[name] = np.asarray(value)


def values_of(tensors: Mapping[str, Any], types: Mapping[str, str]) -> dict[str, Any]:
    """Return the values that tensors named as by `tensors_of` make up; `types` has the type of each by name.

    Entries of a sequence that all have one shape may also be stacked: one tensor with them along its first axis. What
    is a list, a dict or None already remains. Tensors of other names remain, too.

    >>> values_of({"s.length": np.array(1), "s[0]": np.ones(2), "x": np.ones(1)}, {"s": "seq(tensor(double))"})
    {'x': array([1.]), 's': [array([1., 1.])]}
    """
    composite = {name: type_ for name, type_ in types.items() if is_composite(type_)}
    if not composite:
        return dict(tensors)
    parts = {n: x for n, x in tensors.items() if n not in types and output_of(n, composite) in composite}
    gathered = {n: x for n, x in tensors.items() if n not in parts}
    for name, type_ in composite.items():
        if name in gathered or f"{name}{LENGTH}" in parts or f"{name}{PRESENT}" in parts:
            gathered[name] = _value(name, type_, gathered.get(name), parts)
    return gathered


def _value(name: str, type_: str, value: Any, parts: Mapping[str, Any]) -> Any:
    if type_.startswith("optional("):
        present = parts.get(f"{name}{PRESENT}")
        if present is not None and not present:
            return None
        return _value(name, type_.removeprefix("optional(").removesuffix(")"), value, parts)
    if type_.startswith("seq(") and f"{name}{LENGTH}" in parts:
        return [parts[f"{name}[{n}]"] for n in range(int(parts[f"{name}{LENGTH}"]))]
    if not isinstance(value, np.ndarray):
        return value
    if type_.startswith("map("):
        return dict(zip(parts[f"{name}{KEYS}"].tolist(), value.tolist(), strict=True))
    return [np.asarray(x, value.dtype) for x in value] if type_.startswith("seq(") else value


def is_composite(type_: str) -> bool:
    """Return whether ONNX Runtime's name of a type is that of a sequence, a map or an optional."""
    return type_.startswith(("seq(", "map(", "optional("))


def type_name(proto: onnx.TypeProto) -> str:
    """Return ONNX Runtime's name of a type, such as `seq(tensor(float))`; empty for an undeclared one."""
    kind = proto.WhichOneof("value")
    if kind == "sequence_type":
        return f"seq({type_name(proto.sequence_type.elem_type)})"
    if kind == "optional_type":
        return f"optional({type_name(proto.optional_type.elem_type)})"
    if kind == "map_type":
        key = TensorProto.DataType.Name(proto.map_type.key_type).lower()
        return f"map({key},{type_name(proto.map_type.value_type)})"
    if kind == "tensor_type":
        return f"tensor({TensorProto.DataType.Name(proto.tensor_type.elem_type).lower()})"
    return ""


def input_types(graph: onnx.GraphProto) -> dict[str, str]:
    """Return the types of the inputs without an initializer, by ONNX Runtime's names."""
    return {i.name: type_name(i.type) for i in required_inputs(graph)}


def innermost(proto: onnx.TypeProto) -> onnx.TypeProto.Tensor | None:
    """Return the tensor type within a type: of a sequence's entries, of a map's numbers, of what is optional."""
    kind = proto.WhichOneof("value")
    if kind == "sequence_type":
        return innermost(proto.sequence_type.elem_type)
    if kind == "optional_type":
        return innermost(proto.optional_type.elem_type)
    if kind == "map_type":
        return innermost(proto.map_type.value_type)
    return proto.tensor_type if kind == "tensor_type" else None


def _unused_name(name: str, outputs: Collection[str]) -> str:
    """Return the name, with dashes appended until no output has it."""
    while name in outputs:
        name += "'"
    return name


def output_of(tensor: str, outputs: Collection[str]) -> str:
    """Return the model output that a tensor of `tensors_of` belongs to, or is."""
    if tensor in outputs:
        return tensor
    return max((o for o in outputs if tensor.startswith((f"{o}[", f"{o}."))), key=len, default=tensor)


def counts(tensor: str, outputs: Collection[str]) -> bool:
    """Return whether a tensor of `tensors_of` is metadata (length, keys, presence) instead of a value of the model."""
    return tensor not in outputs and tensor.rstrip("'").endswith((LENGTH, KEYS, PRESENT))


def is_empty_metadata(tensor: Array) -> bool:
    """Return whether a metadata tensor says that its output is empty: no entry, no key, no value."""
    return not tensor.size or (tensor.dtype.kind in "biu" and tensor.ndim == 0 and not tensor)


def element(tensor: str, where: tuple[int, ...], keys: Sequence[str | int] = ()) -> str:
    """Format an element as a user would write it.

    >>> element("y", (0, 3)), element("y[1]", (0,), ["cat"])
    ('y[0, 3]', 'y[1]["cat"]')
    """
    if not where:
        return tensor
    if not keys or len(where) != 1:
        return f"{tensor}[{', '.join(map(str, where))}]"
    key = keys[where[0]]
    return f"{tensor}[{json.dumps(key, ensure_ascii=False) if isinstance(key, str) else key}]"
