"""Operators of maps in the float64 reference compute what ONNX Runtime does."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from onnxfuse.verification.reference.float64_reference import reference_for
from onnxfuse.verification.run import sessions

FORMS: dict[str, tuple[dict[str, Any], list[list[float]]]] = {
    "in the order of keys": ({}, [[-1.5, 2.25, 4.0]]),
    "each at its key": ({"map_form": "SPARSE", "max_map": 6}, [[0, -1.5, 0, 2.25, 4.0, 0]]),
    "whole numbers": ({"cast_to": "TO_INT64"}, [[-1, 2, 4]]),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_map_is_cast_to_a_row(name: str) -> None:
    attributes, row = FORMS[name]
    integers = "cast_to" in attributes
    node = helper.make_node("CastMap", ["m"], ["y"], domain="ai.onnx.ml", **attributes)
    kind = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    output = helper.make_tensor_value_info("y", TensorProto.INT64 if integers else TensorProto.FLOAT, [1, None])
    graph = helper.make_graph([node], "g", [helper.make_value_info("m", kind)], [output])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    values = {4: 4.0, 1: -1.5, 3: 2.25}
    reference = reference_for(model, "float64", [])
    assert reference.evaluator is not None
    ours = reference.evaluator.run(None, {"m": values})[0]
    theirs = sessions.unoptimized(model).run(None, {"m": values})[0]
    np.testing.assert_array_equal(ours, row)
    np.testing.assert_array_equal(theirs, row)
    assert ours.dtype == (np.int64 if integers else np.float64)
