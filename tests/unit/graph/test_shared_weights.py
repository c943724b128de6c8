"""Equal weights of several bodies are one weight of the main graph; what is computed stays the same."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.graph.shared_weights import LEAST, share_equal_weights
from tests.support.small import assert_same_numbers

COUNT = LEAST // 4
ONES, TWOS = np.full(COUNT, 1, np.float32), np.full(COUNT, 2, np.float32)
TYPE = ("x", TensorProto.FLOAT, [COUNT])


def branch(out: str, weight: str, array: np.ndarray) -> onnx.GraphProto:
    """Return a body that adds its weight to x."""
    tensor = numpy_helper.from_array(array, weight)
    result = helper.make_tensor_value_info(out, TensorProto.FLOAT, [COUNT])
    return helper.make_graph([helper.make_node("Add", ["x", weight], [out])], out, [], [result], [tensor])


def model(then: onnx.GraphProto, other: onnx.GraphProto, **weights: np.ndarray) -> onnx.ModelProto:
    """Return a model of one If, with more weights in the main graph."""
    node = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
    inputs = [helper.make_tensor_value_info(*TYPE), helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [COUNT])]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph([node], "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def shared(given: onnx.ModelProto) -> tuple[list[str], list[list[str]]]:
    """Return the weights of the main graph and of both bodies once equal ones are shared, and what each body adds."""
    made = onnx.ModelProto()
    made.CopyFrom(given)
    share_equal_weights(made)
    onnx.checker.check_model(made, full_check=True)
    assert_same_numbers(given, made)
    inside = [[*(t.name for t in a.g.initializer), a.g.node[0].input[1]] for a in made.graph.node[0].attribute]
    return [t.name for t in made.graph.initializer], sorted(inside)


def test_equal_weights_of_two_bodies_become_one() -> None:
    """Of either name, read by both."""
    assert shared(model(branch("p", "u", ONES), branch("q", "v", ONES))) in (
        (["u"], [["u"], ["u"]]),
        (["v"], [["v"], ["v"]]),
    )


def test_a_weight_that_the_main_graph_has_is_read_there() -> None:
    """Also one that a single body has."""
    assert shared(model(branch("p", "u", ONES), branch("q", "v", TWOS), w=ONES)) == (["w"], [["v", "v"], ["w"]])


@pytest.mark.parametrize("other", [TWOS, ONES[:1]], ids=["other numbers", "another shape"])
def test_unequal_weights_stay(other: np.ndarray) -> None:
    given = model(branch("p", "u", ONES), branch("q", "v", other))
    assert shared(given) == ([], [["u", "u"], ["v", "v"]])


def test_equal_numbers_of_another_shape_are_another_weight() -> None:
    given = model(branch("p", "u", ONES), branch("q", "v", ONES.reshape(2, -1)))
    share_equal_weights(given)
    assert not given.graph.initializer


def test_small_weights_stay() -> None:
    """They cost less than a name of the main graph does to a reader."""
    given = model(branch("p", "u", ONES[:1]), branch("q", "v", ONES[:1]))
    assert shared(given) == ([], [["u", "u"], ["v", "v"]])


def test_a_weight_that_a_caller_may_replace_is_no_home() -> None:
    """Its numbers are a default, those of the bodies are not."""
    given = model(branch("p", "u", ONES), branch("q", "v", TWOS), w=ONES)
    given.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [COUNT]))
    assert shared(given) == (["w"], [["u", "u"], ["v", "v"]])


def test_a_name_that_another_body_has_is_not_taken() -> None:
    """The other weight would hide the shared one."""
    other = branch("q", "u", TWOS)
    other.initializer.append(numpy_helper.from_array(ONES, "v"))
    other.node[0].output[0] = "t"
    other.node.append(helper.make_node("Mul", ["t", "v"], ["q"]))
    given = model(other, branch("p", "u", ONES))
    assert given.graph.node[0].attribute[0].name == "else_branch"
    assert shared(given) == (["u_1"], [["u", "u"], ["u_1"]])


def test_a_weight_that_a_body_returns_stays_its_own() -> None:
    given = model(branch("p", "u", ONES), branch("q", "v", ONES))
    for attribute in given.graph.node[0].attribute:
        weight = attribute.g.initializer[0].name
        attribute.g.output.add().CopyFrom(helper.make_tensor_value_info(weight, TensorProto.FLOAT, [COUNT]))
    given.graph.node[0].output.append("z")
    given.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [COUNT]))
    assert shared(given) == ([], [["u", "u"], ["v", "v"]])
