"""Values of types that NumPy does not have are the numbers that they stand for, in the truth and out of sessions."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.verification import verify
from onnxfuse.verification.run import sessions
from onnxfuse.verification.run.ml_types import carrier, decode

CPU = ["CPUExecutionProvider"]
NARROW = ("FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT8E4M3FNUZ", "FLOAT8E5M2FNUZ", "INT4", "UINT4", "BFLOAT16", "FLOAT16")


def through(name: str, op: str, factor: float, *, given: bool) -> onnx.ModelProto:
    """Return a model that casts to a type and back, and scales the result."""
    type_, node = TensorProto.DataType.Value(name), helper.make_node
    nodes = [
        node("Sigmoid", ["x"], ["r"]), node("Cast", ["r"], ["q"], to=type_),
        node("Cast", ["q"], ["c"], to=TensorProto.FLOAT), node(op, ["c", "k"], ["y"]),
    ]  # fmt: skip
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 5])]
    outputs += [helper.make_tensor_value_info("q", type_, ["N", 5])] * given
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 5])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [numpy_helper.from_array(np.array(factor, np.float32), "k")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("given", [False, True], ids=["inside", "output"])
@pytest.mark.parametrize("name", NARROW)
def test_a_value_is_what_its_code_means(name: str, *, given: bool) -> None:
    """c * (1/3) is c / 3 and not c / 3.1, behind a Cast to the type; the truth is in float64 and can be judged by."""
    plain = through(name, "Mul", 1 / 3, given=given)
    report = verify(plain, through(name, "Div", 3, given=given), providers=CPU)
    assert report.ok
    assert report.truth == "float64"
    assert not verify(plain, through(name, "Div", 3.1, given=given), providers=CPU).ok


@pytest.mark.parametrize("name", NARROW[:7])
def test_sessions_give_numbers(name: str) -> None:
    """Whole small integers come as int8 and uint8, floats in their own type."""
    model = through(name, "Mul", 1.0, given=True)
    x = np.linspace(-4, 4, 10, dtype=np.float32).reshape(2, 5)
    got = sessions.run(sessions.unoptimized(model), {"x": x})
    assert np.array_equal(got["q"].astype(np.float32), got["y"])


def test_two_small_integers_are_one_byte() -> None:
    """The first is in the lower bits."""
    assert decode(b"\x21\x0d", TensorProto.INT4, (3,)).tolist() == [1, 2, -3]
    assert carrier(np.dtype(np.float64)) == np.float64
