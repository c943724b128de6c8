"""A weight that another one is the transpose of is found by its first row, and only where all of it agrees."""

import numpy as np
import onnx
from onnx import numpy_helper

from onnxfuse.fusion.region.weight_index import SUFFIX, WeightIndex
from onnxfuse.graph.graph import Graph
from onnxfuse.shapes.inference import infer

W = np.arange(6, dtype=np.float32).reshape(2, 3)


def graph_with(**weights: np.ndarray) -> Graph:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Neg(x) }'
    )
    model.graph.initializer.extend(numpy_helper.from_array(w, name) for name, w in weights.items())
    return Graph(model.graph, infer(model).graph, 17)


def test_the_first_transpose_is_found() -> None:
    """Not the weight itself, nor one that agrees in its first row alone; signed zeros are one number."""
    other = W.T.copy()
    other[2, 1] += 1
    zeros = W.T.copy()
    zeros[0, 0] = -0.0
    index = WeightIndex(graph_with(w=W, like=other, same=zeros, again=W.T.copy()))
    assert index.transpose_of("w", W) == "same"
    assert index.transpose_of("same", zeros) == "w"
    square = np.eye(2, dtype=np.float32)
    assert WeightIndex(graph_with(s=square)).transpose_of("s", square) is None


def test_what_is_no_matrix_of_floats_is_never_one() -> None:
    """Other types, other ranks, no elements, and what is stored transposed already."""
    stored = {f"s{SUFFIX}": W.T.copy(), "i": W.T.astype(np.int32), "v": W.T.reshape(-1), "b": W.T[None].copy()}
    index = WeightIndex(graph_with(w=W, empty=np.zeros((3, 0), np.float32), **stored))
    assert index.transpose_of("w", W) is None
    assert index.transpose_of("none", np.zeros((0, 3), np.float32)) is None


def test_weights_that_come_and_go_are_followed() -> None:
    graph = graph_with(w=W)
    index = WeightIndex(graph)
    assert index.transpose_of("w", W) is None
    graph.initializers["new"] = numpy_helper.from_array(W.T.copy(), "new")
    assert index.transpose_of("w", W) == "new"
    del graph.initializers["new"]
    assert index.transpose_of("w", W) is None


def test_small_numbers_of_another_type_are_not_the_weight() -> None:
    """Though bytes are the same numbers: the op reads a weight of its own type."""
    same = W.T.astype(np.uint8)
    assert WeightIndex(graph_with(w=W, u=same)).transpose_of("w", W) is None
