"""Operators of sequences and maps in the reference, in the forms that onnx's implementation lacks."""

from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper

from onnxfuse.verification.reference.float64_reference import reference_for
from onnxfuse.verification.reference.sequences import OF_MAPS, OPERATORS, CastMap, DictVectorizer, SequenceInsert
from onnxfuse.verification.run import sessions


def run(operator: type[Any], *inputs: Any, **attributes: Any) -> Any:
    """Return the only output of an operator."""
    node = helper.make_node(operator.__name__, ["x"], ["y"], domain=operator.op_domain)
    assert isinstance(node, NodeProto)
    (made,) = operator(node, {"log": lambda *_: None, "opsets": {"": 17, "ai.onnx.ml": 1}, "new_ops": None})._run(
        *inputs, **attributes
    )
    return made


def test_an_entry_is_inserted_at_its_position() -> None:
    """Without one behind the last, also into an empty sequence."""
    one, two, new = np.array(1), np.array(2), np.array(9)
    assert run(SequenceInsert, [one, two], new) == [1, 2, 9]
    assert run(SequenceInsert, [one, two], new, np.array(0)) == [9, 1, 2]
    assert run(SequenceInsert, [one, two], new, np.array([2])) == [1, 2, 9]
    assert run(SequenceInsert, [], new) == [9]


def test_a_map_is_a_row_of_its_words() -> None:
    """In the order of the vocabulary, 0 for a word that it lacks."""
    made = run(DictVectorizer, {"a": 2.0, "c": 3.0}, string_vocabulary=["c", "b", "a"])
    assert made.tolist() == [[3.0, 0.0, 2.0]]
    assert made.dtype == np.float64
    assert run(DictVectorizer, {1: 2.0}, int64_vocabulary=[1, 2]).tolist() == [[2.0, 0.0]]
    assert run(DictVectorizer, {1: 2.0}).shape == (1, 0)


def test_values_are_a_row_by_their_keys() -> None:
    """Dense in the order of the keys, sparse each at its key, up to the greatest."""
    assert run(CastMap, {7: 1.0, 2: 3.0}).tolist() == [[3.0, 1.0]]
    assert run(CastMap, {2: 3.0}, map_form="SPARSE", max_map=4).tolist() == [[0.0, 0.0, 3.0, 0.0]]
    assert run(CastMap, {2: 3.0}).dtype == np.float64
    assert run(CastMap, {2: 3.0}, cast_to="TO_INT64").dtype == np.int64
    with pytest.raises(NotImplementedError, match="CastMap to texts"):
        run(CastMap, {2: 3.0}, cast_to="TO_STRING")


def test_maps_are_of_the_other_domain() -> None:
    """As ONNX has them."""
    assert [o.op_domain for o in (*OPERATORS, *OF_MAPS)] == ["", "ai.onnx.ml", "ai.onnx.ml"]


FORMS: dict[str, tuple[dict[str, Any], list[list[float]]]] = {
    "in the order of keys": ({}, [[-1.5, 2.25, 4.0]]),
    "each at its key": ({"map_form": "SPARSE", "max_map": 6}, [[0, -1.5, 0, 2.25, 4.0, 0]]),
    "whole numbers": ({"cast_to": "TO_INT64"}, [[-1, 2, 4]]),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_map_is_cast_to_a_row(name: str) -> None:
    """As ONNX Runtime does it."""
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
