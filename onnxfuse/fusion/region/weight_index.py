"""The weights of a graph by their transposes: an embedding table can also be the head's weight."""

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from onnxfuse.graph.graph import Graph

SUFFIX = ".terms_last"
"""Name suffix of a transposed weight."""


class WeightIndex:
    """Finds float32 matrices of a graph by their data; weights added later are found, too."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._indexed: set[str] = set()
        self._of_dims: dict[tuple[int, ...], list[str]] = {}
        self._of_row: dict[tuple[int, ...], dict[bytes, list[str]]] = {}
        """By dimensions and first row, for the dimensions that were asked for."""
        self._alone: set[str] = set()
        """Matrices of which no transpose was found among the weights indexed so far."""

    def transpose_of(self, name: str, weight: npt.NDArray[Any]) -> str | None:
        """Return the first weight other than `name` that is the transpose of this matrix; None if there is none."""
        if not weight.size:
            return None
        self._index_new()
        if name in self._alone:
            return None
        dims = weight.shape[::-1]
        rows = self._of_row.setdefault(dims, {})
        for other in self._of_dims.pop(dims, ()):
            table = self._graph.constant(other)
            if table is not None:
                rows.setdefault(_key(table[0]), []).append(other)
        for other in rows.get(_key(weight[:, 0]), ()):
            table = self._graph.constant(other) if other != name and other in self._graph.initializers else None
            if table is not None and np.array_equal(table, weight.T):
                return other
        self._alone.add(name)
        return None

    def _index_new(self) -> None:
        """Index the weights added since the last request: they are the last ones."""
        new = list[str]()
        for name in reversed(self._graph.initializers):
            if name in self._indexed:
                break
            new.append(name)
        self._indexed.update(new)
        for name in reversed(new):
            tensor = self._graph.initializers[name]
            matrix = tensor.data_type == TensorProto.FLOAT and len(tensor.dims) == 2 and all(tensor.dims)
            if matrix and not name.endswith(SUFFIX):
                self._of_dims.setdefault(tuple(tensor.dims), []).append(name)
                self._alone.clear()


def _key(row: npt.NDArray[Any]) -> bytes:
    """Return equal bytes for equal rows: -0 + 0 is 0."""
    return (row + np.float32(0)).tobytes()
