"""Tensors contained in non-tensor outputs: sequences, maps and optionals."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MISSING: Array = np.zeros((0, 0))
"""Placeholder for a tensor that is missing in one run: an entry of a longer sequence."""

LENGTH, KEYS, PRESENT = ".length", ".keys", ".present"
"""Name suffixes of the metadata of a sequence, a map, an optional."""


def tensors_of(
    values: Mapping[str, Any],
    optional: Collection[str] = (),
    numbers: Mapping[str, np.dtype[Any]] | None = None,
) -> dict[str, Array]:
    """Return every tensor of the outputs, by name: those of a sequence `s` as `s[0]`, `s[1]`, with its `s.length`.

    A map `m` yields its numbers in the order of its keys, and the keys as `m.keys`; `numbers` holds their type by
    output, as Python numbers have none. Optional outputs, `optional`, have an `o.present` that says whether there is a
    value.
    """
    found: dict[str, Array] = {}
    for name, value in values.items():
        if name in optional:
            found[_free(name + PRESENT, values)] = np.asarray(value is not None)
        if value is not None:
            _add(found, name, value, values, (numbers or {}).get(name))
    return found


def _add(found: dict[str, Array], name: str, value: Any, taken: Collection[str], dtype: np.dtype[Any] | None) -> None:
    if isinstance(value, Mapping):
        keys = sorted(value)
        found[_free(name + KEYS, taken)] = np.array(keys, object if keys and isinstance(keys[0], str) else np.int64)
        found[name] = np.asarray([value[key] for key in keys], dtype)
    elif isinstance(value, list | tuple):
        found[_free(name + LENGTH, taken)] = np.asarray(len(value))
        for n, one in enumerate(value):
            _add(found, f"{name}[{n}]", one, taken, dtype)
    else:
        found[name] = np.asarray(value)


def _free(name: str, taken: Collection[str]) -> str:
    """Return the name, with dashes appended until no output has it."""
    while name in taken:
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


def holds_nothing(tensor: Array) -> bool:
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
