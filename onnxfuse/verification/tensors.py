"""The tensors of outputs that are none themselves: of sequences, maps and optionals."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MISSING: Array = np.zeros((0, 0))
"""What stands for a tensor that one run gives and another does not: an entry of a longer sequence."""


def tensors_of(values: Mapping[str, Any]) -> dict[str, Array]:
    """Return every tensor of the outputs, by name: those of a sequence `s` as `s[0]`, `s[1]`, with its `s.length`.

    A map gives the numbers of its keys, which stand in the name; an optional without a value gives nothing.
    """
    found: dict[str, Array] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found[f"{name}{{{', '.join(map(str, value))}}}"] = np.asarray(list(value.values()))
        elif isinstance(value, list | tuple):
            found[f"{name}.length"] = np.asarray(len(value))
            found.update(tensors_of({f"{name}[{n}]": one for n, one in enumerate(value)}))
        elif value is not None:
            found[name] = np.asarray(value)
    return found
