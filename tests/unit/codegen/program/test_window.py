"""A window of a convolution is no larger than its image."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxfuse.codegen.program.window import Sliding
from tests.unit.ops.shapes.test_windows import run


def test_no_window_of_a_convolution_is_larger_than_the_image() -> None:
    """ONNX Runtime refuses it when it runs."""
    sliding = Sliding((2, 2), (1, 1), (0,) * 4, "NOTSET")
    assert [sliding.over((1, n, 4, 1), (4, 4)).out for n in (1, 2, 3, 4, 6)] == [(0, 1), (0, 1), (0, 1), (1, 1), (2, 1)]
    with pytest.raises(Exception, match="Invalid input shape"):
        run(convolution(), {"x": np.ones((1, 1, 3, 3), np.float32)})


def convolution() -> onnx.ModelProto:
    """Return a model of a convolution by 4x4 pixels over images of any size."""
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, "h", "w"])
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1, 1, 4, 4], [1.0] * 16)
    node = helper.make_node("Conv", ["x", "w"], ["y"], strides=[2, 2])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "convolution", [image], [out], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=8)
