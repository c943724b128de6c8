"""Col2Im: images, blocks and columns that are made up fit each other."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.verification import verify
from onnxfuse.verification.inputs.col2im_sizes import Col2ImParameters
from onnxfuse.verification.inputs.input_specs import input_specs
from onnxfuse.verification.inputs.inputs import cases

CPU = ["CPUExecutionProvider"]
Attributes = dict[str, Any]
DYNAMIC = ["n", "c", "l"]

FORMS: dict[str, tuple[list[int | str], list[int] | None, list[int] | None, Attributes, int]] = {
    "both": ([2, 8, 6], None, None, {}, 2),
    "both, open": ([*DYNAMIC], None, None, {}, 2),
    "both, one axis": ([*DYNAMIC], None, None, {}, 1),
    "both, three axes": ([*DYNAMIC], None, None, {}, 3),
    "both, strides": ([2, 4, 6], None, None, {"strides": [2, 2]}, 2),
    "both, pads": ([2, 4, 6], None, None, {"pads": [1, 1, 1, 1]}, 2),
    "image": ([2, 8, 6], None, [2, 2], {}, 2),
    "image, open": ([*DYNAMIC], None, [2, 2], {}, 2),
    "image, strides and pads": (["n", 8, "l"], None, [2, 2], {"strides": [2, 2], "pads": [1, 0, 1, 0]}, 2),
    "image, dilations": (["n", 12, "l"], None, [3, 2], {"dilations": [2, 2]}, 2),
    "block": ([1, 8, 16], [5, 5], None, {}, 2),
    "block, open": (["n", 8, "l"], [5, 5], None, {}, 2),
    "block, strides and pads": ([1, 8, 9], [4, 4], None, {"strides": [2, 2], "pads": [1, 1, 1, 1]}, 2),
    "neither, open": ([*DYNAMIC], [12, 12], [3, 3], {}, 2),
}
"""Shape of the columns; image and block, None where they are inputs; attributes; axes of the image."""


def model(name: str, carried: bool) -> onnx.ModelProto:
    """Return exp(Col2Im(relu(x))); `carried` puts a Cast between the inputs and what they say."""
    shape, image, block, attributes, rank = FORMS[name]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    weights, nodes = [], [helper.make_node("Relu", ["x"], ["r"])]
    for value, numbers in (("image", image), ("block", block)):
        if numbers is not None:
            weights.append(numpy_helper.from_array(np.array(numbers, np.int64), value))
        elif carried:
            inputs.append(helper.make_tensor_value_info(f"{value}32", TensorProto.INT32, [rank]))
            nodes.append(helper.make_node("Cast", [f"{value}32"], [value], to=TensorProto.INT64))
        else:
            inputs.append(helper.make_tensor_value_info(value, TensorProto.INT64, [rank]))
    nodes += [
        helper.make_node("Col2Im", ["r", "image", "block"], ["i"], **attributes), helper.make_node("Exp", ["i"], ["y"])
    ]  # fmt: skip
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", inputs, [output], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


@pytest.mark.parametrize("carried", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_made_up_inputs_are_taken(name: str, carried: bool) -> None:
    """Most cases run: what hangs on each other is made up together, at sizes that the operator takes."""
    made = model(name, carried)
    report = verify(made, made, providers=CPU, seconds=30)
    ran = [c for c in report.cases if not c.note]
    assert report.ok
    assert 2 * len(ran) > len(report.cases)


def test_blocks_have_more_than_one_tap_where_they_may() -> None:
    """Of one tap nothing is added up."""
    specs = input_specs(model("both", carried=False))
    for case in cases(specs, (0,)):
        given = case.make()
        assert given["block"].tolist() == [2, 2]
        assert int(np.prod(given["image"] - 1)) == 6


@pytest.mark.parametrize(("pads", "strides"), [((), ()), ((1, 0, 1, 0), (2, 1)), ((3, 3, 3, 3), (1, 3))])
def test_images_have_as_many_places_as_there_are_columns(pads: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """With any padding, as far as there is such an image; else it is ones."""
    for count in range(1, 40):
        made = Col2ImParameters(1, 12, count, (), (2, 3), (1, 2), pads, strides)
        image = made({}, (2,))
        assert image == (1, 1) or np.prod(made.positions(image, (2, 3))) == count
