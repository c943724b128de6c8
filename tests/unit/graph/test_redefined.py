"""Constants of one name: the last definition counts, as in ONNX Runtime, and a note says so."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfuse
from onnxfuse.support.errors import ModelError
from tests.support.small import run

X = np.ones((2, 4), np.float32)


def weight(value: float, count: int = 4) -> TensorProto:
    return numpy_helper.from_array(np.full(count, value, np.float32), "w")


def constant(value: float) -> onnx.NodeProto:
    return helper.make_node("Constant", [], ["w"], value=weight(value))


def add(x: str, y: str) -> onnx.NodeProto:
    return helper.make_node("Add", [x, "w"], [y])


def model(nodes: list[onnx.NodeProto], *weights: TensorProto) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, ["n", 4])], [value("y", TensorProto.FLOAT, ["n", 4])], list(weights)
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


FORMS = {
    "weights": (model([add("x", "y")], weight(1), weight(10), weight(100)), 101),
    "Constants": (model([constant(1), constant(10), add("x", "y")]), 11),
    "a Constant beside a weight": (model([constant(10), add("x", "y")], weight(1)), 11),
    "a Constant behind a reader": (model([constant(1), add("x", "a"), constant(10), add("a", "y")]), 21),
    "equal ones": (model([add("x", "y")], weight(1), weight(1)), 2),
}


@pytest.mark.parametrize("form", FORMS)
def test_the_last_is_taken(form: str) -> None:
    """As ONNX Runtime does with the original, whoever reads it."""
    original, number = FORMS[form]
    (theirs,) = run(original, {"x": X})
    with pytest.warns(UserWarning, match="'w' is defined more than once: the last definition counts"):
        made = onnxfuse.optimize(original)
    (ours,) = run(made, {"x": X})
    np.testing.assert_array_equal(theirs, np.full((2, 4), number, np.float32))
    np.testing.assert_array_equal(ours, theirs)
    assert onnxfuse.optimize(made) == made
    assert onnxfuse.verify(original, made, providers=["CPUExecutionProvider"], isolate=False).ok


def test_values_that_are_computed_twice_are_refused() -> None:
    """As ONNX Runtime refuses them; so are constants of other shapes."""
    twice = model(
        [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Exp", ["x"], ["a"]), add("a", "y")], weight(1)
    )
    with pytest.raises(ModelError, match="is not valid"):
        onnxfuse.optimize(twice)
    with pytest.raises(ModelError, match="is not valid"):
        onnxfuse.optimize(model([add("x", "y")], weight(1), weight(7, 1)))
