"""The tensors of outputs that are none themselves: of sequences, maps and optionals."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MISSING: Array = np.zeros((0, 0))
"""What stands for a tensor that one run gives and another does not: an entry of a longer sequence."""

LENGTH, KEYS, PRESENT = ".length", ".keys", ".present"
"""How the names of what stands beside the entries end: of a sequence, a map, an optional."""


def tensors_of(
    values: Mapping[str, Any],
    optional: Collection[str] = (),
    numbers: Mapping[str, np.dtype[Any]] | None = None,
) -> dict[str, Array]:
    """Return every tensor of the outputs, by name: those of a sequence `s` as `s[0]`, `s[1]`, with its `s.length`.

    A map `m` gives its numbers in the order of its keys, and these as `m.keys`; `numbers` holds their type by output,
    as Python numbers have none. What may be left out, the outputs `optional`, says by `o.present` whether it is there.
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
    """Return the name, with a dash for as long as an output is called like that."""
    while name in taken:
        name += "'"
    return name


def output_of(tensor: str, outputs: Collection[str]) -> str:
    """Return which of the model's outputs a tensor of `tensors_of` is a part of, or is."""
    if tensor in outputs:
        return tensor
    return max((o for o in outputs if tensor.startswith((f"{o}[", f"{o}."))), key=len, default=tensor)


def counts(tensor: str, outputs: Collection[str]) -> bool:
    """Return whether a tensor of `tensors_of` says how much there is, and is no value of the model itself."""
    return tensor not in outputs and tensor.rstrip("'").endswith((LENGTH, KEYS, PRESENT))


def holds_nothing(tensor: Array) -> bool:
    """Return whether one that `counts` says that there is nothing: an empty sequence, no key, no value."""
    return not tensor.size or (tensor.dtype.kind in "biu" and tensor.ndim == 0 and not tensor)


def element(tensor: str, where: tuple[int, ...], keys: Sequence[str | int] = ()) -> str:
    """Return an element as a user would write it.

    >>> element("y", (0, 3)), element("y[1]", (0,), ["cat"])
    ('y[0, 3]', 'y[1]["cat"]')
    """
    if not where:
        return tensor
    if not keys or len(where) != 1:
        return f"{tensor}[{', '.join(map(str, where))}]"
    key = keys[where[0]]
    return f"{tensor}[{json.dumps(key, ensure_ascii=False) if isinstance(key, str) else key}]"
