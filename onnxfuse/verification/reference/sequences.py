"""Operators of sequences and maps in the reference, in the forms that onnx's implementation lacks."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx.reference.op_run import OpRun

Array = npt.NDArray[Any]


class SequenceInsert(OpRun):
    """A new entry at a position; onnx's implementation has none behind the last entry, nor in an empty sequence."""

    def _run(self, sequence: Sequence[Array], tensor: Array, position: Array | None = None) -> tuple[list[Array]]:
        entries = list(sequence)
        entries.insert(len(entries) if position is None else int(np.reshape(position, ())), tensor)
        return (entries,)


class DictVectorizer(OpRun):
    """A map as one row; onnx's implementation gives no leading axis, which ONNX Runtime does."""

    op_domain = "ai.onnx.ml"

    def _run(
        self,
        values: Mapping[int | str, float],
        int64_vocabulary: Sequence[int] | None = None,
        string_vocabulary: Sequence[str] | None = None,
    ) -> tuple[Array]:
        words = string_vocabulary if string_vocabulary is not None else int64_vocabulary or ()
        return (np.array([[values.get(word, 0) for word in words]], np.float64),)


class CastMap(OpRun):
    """A map's values as one row, in the order of their keys or each at its key; onnx has no implementation."""

    op_domain = "ai.onnx.ml"

    def _run(
        self, values: Mapping[int, float], cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1
    ) -> tuple[Array]:
        if cast_to == "TO_STRING":
            raise NotImplementedError("CastMap to texts")
        keys = sorted(values) if map_form == "DENSE" else range(max_map)
        row = [[values.get(key, 0) for key in keys]]
        return (np.array(row, np.int64 if cast_to == "TO_INT64" else np.float64),)


OPERATORS: tuple[type[OpRun], ...] = (SequenceInsert,)
OF_MAPS: tuple[type[OpRun], ...] = (DictVectorizer, CastMap)
