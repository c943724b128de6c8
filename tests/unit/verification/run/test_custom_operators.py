"""Operators that only ONNX Runtime or a user's library computes: run as they are, their results taken as exact."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxfuse.model import custom_ops
from onnxfuse.verification.run import custom_operators
from onnxfuse.verification.run.custom_operators import CustomOperator, RuntimeOperator, in_runtime, standalone_node
from tests.support.small import parse

MICROSOFT = "com.microsoft"
OPSETS = {"": 20, MICROSOFT: 1}


def node_of(kind: type[CustomOperator], node: onnx.NodeProto, **types: int) -> CustomOperator:
    """Return an operator's node, as the reference holds it."""
    made = type(node.op_type, (kind,), {"op_domain": node.domain, "types": types})
    return made(node, {"log": lambda *_: None, "opsets": OPSETS, "verbose": 0, "new_ops": None})


def model(text: str) -> onnx.ModelProto:
    return parse(f'<ir_version: 10, opset_import: ["" : 20, "{MICROSOFT}" : 1, "my.ops" : 1, "ai.onnx.ml" : 3]> {text}')


@pytest.fixture
def library(tmp_path: Path) -> Iterator[None]:
    """A user's library is named, which may have any operator."""
    (tmp_path / "own.so").touch()
    with custom_ops.using([tmp_path / "own.so"]):
        yield


MATRIX = np.array([[4.0, 1.0], [2.0, 3.0]])


@pytest.mark.parametrize(
    ("declared", "ran"), [(0, "float32"), (TensorProto.FLOAT, "float32"), (TensorProto.DOUBLE, "float64")]
)
def test_it_runs_in_the_type_that_it_takes_and_gives_float64(declared: int, ran: str) -> None:
    """The declared one, else the first that it accepts; its precision is told."""
    inverse = node_of(RuntimeOperator, helper.make_node("Inverse", ["x"], ["y"], domain=MICROSOFT), x=declared)
    assert inverse.dtype == ""
    (got,) = inverse.run(MATRIX)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, np.linalg.inv(MATRIX), rtol=1e-6)
    assert inverse.dtype == ran
    (again,) = inverse.run(2 * MATRIX)
    np.testing.assert_allclose(again, np.linalg.inv(2 * MATRIX), rtol=1e-6)
    assert len(inverse._opened) == 1


def test_what_no_session_takes_is_told_by_the_first_reason() -> None:
    unknown = node_of(CustomOperator, helper.make_node("Bend", ["x"], ["y"], domain="my.ops"))
    with pytest.raises(NotImplementedError, match=r"my\.ops\.Bend does not run by itself: .*Bend"):
        unknown.run(MATRIX)


def test_integers_keep_their_type_and_missing_inputs_stay_missing() -> None:
    """And so do outputs that nobody reads."""
    node = helper.make_node("Clip", ["x", "", "high"], ["y"])
    (clipped,) = node_of(RuntimeOperator, node).run(np.array([1, 5, 9]), None, np.array(6))
    np.testing.assert_array_equal(clipped, [1, 5, 6])
    assert clipped.dtype == np.int64
    norm = node_of(RuntimeOperator, helper.make_node("LayerNormalization", ["x", "g"], ["y", "", "i"], epsilon=0.0))
    normed, mean, inverse = norm.run(MATRIX, np.ones(2))
    assert mean is None
    np.testing.assert_allclose(normed, [[1, -1], [-1, 1]], rtol=1e-6)
    np.testing.assert_allclose(inverse, [[1 / 1.5], [1 / 0.5]], rtol=1e-6)


def test_attributes_of_a_function_reach_its_nodes() -> None:
    node = helper.make_node("LeakyRelu", ["x"], ["y"])
    node.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT))
    operator = node_of(RuntimeOperator, node)
    for slope in (0.5, 0.25):
        (got,) = operator.run(np.array([-4.0, 2.0]), linked_attributes={"slope": slope})
        np.testing.assert_array_equal(got, [-4 * slope, 2])
    assert len(operator._opened) == 2


def test_a_node_alone_has_names_of_its_own() -> None:
    """An input that is absent stays so: its place counts."""
    alone = standalone_node(helper.make_node("Any", ["a", "", "a"], ["", "b"], domain="my.ops", size=3), None)
    assert (list(alone.input), list(alone.output)) == (["x0", "", "x2"], ["", "y1"])
    assert (alone.domain, alone.op_type, alone.attribute[0].i) == ("my.ops", "Any", 3)


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        ("y = Relu (x)", []),
        ("y = com.microsoft.Inverse (x)", [(MICROSOFT, "Inverse")]),
        ("y = com.microsoft.FastGelu (x)", []),  # its entry says what it computes
        ("y = ai.onnx.ml.Normalizer (x)", []),
        ("y = ai.onnx.ml.NoSuch (x)", [("ai.onnx.ml", "NoSuch")]),
        ("y = MaxRoiPool <pooled_shape = [1, 1]> (x, x)", [("", "MaxRoiPool")]),
        ("a = com.microsoft.Inverse (x) y = my.ops.Bend (a)", [(MICROSOFT, "Inverse")]),
    ],
)
@pytest.mark.usefixtures("library")
def test_what_the_reference_lacks_is_run_by_onnx_runtime(nodes: str, found: list[tuple[str, str]]) -> None:
    """Unless an entry of the operator has its meaning; a user's own is another case."""
    classes = in_runtime(model(f"g (float[N,N] x) => (float[N,N] y) {{ {nodes} }}"))
    assert [(c.op_domain, c.__name__) for c in classes] == found
    assert not any(c.library for c in classes)


@pytest.mark.usefixtures("library")
def test_a_users_operators_know_the_types_of_the_values() -> None:
    """In bodies, too; a function of the model by that name is none."""
    made = model(
        "g (float16[N,N] x, bool c) => (float16[N,N] y) { a = my.ops.Bend (x) b = Relu (a) "
        "y = If (c) <then_branch = t () => (float16[N,N] z) { z = my.ops.Turn (b) }, "
        "else_branch = e () => (float16[N,N] z) { z = my.ops.Own (b) }> }"
    )
    assert [c.__name__ for c in custom_operators.operators(made)] == ["Bend", "Turn", "Own"]
    made.functions.append(
        onnx.parser.parse_function('<opset_import: ["" : 20], domain: "my.ops"> Own (a) => (b) { b = Neg (a) }')
    )
    classes = custom_operators.operators(made)
    assert [c.__name__ for c in classes] == ["Bend", "Turn"]
    assert all(c.library for c in classes)
    assert classes[0].types["x"] == TensorProto.FLOAT16
    assert custom_operators.operators(model("g (float[N] x) => (float[N] y) { y = Relu (x) }")) == ()


@pytest.mark.parametrize(
    ("value", "declared"),
    [
        (MATRIX, helper.make_tensor_type_proto(TensorProto.FLOAT16, None)),
        ([MATRIX], helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT16, None))),
        ({"a": 1.0}, helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(1, ()))),
        ({2: 1.0}, helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(1, ()))),
    ],
)
def test_sequences_and_maps_are_declared_as_such(value: Any, declared: onnx.TypeProto) -> None:
    """Floats are rounded to the type that the operator reads, one by one."""
    assert custom_operators._declared(value, TensorProto.FLOAT16) == declared
    cast = custom_operators._as(value, TensorProto.FLOAT16)
    if isinstance(value, dict):
        assert cast is value
    else:
        assert (cast[0] if isinstance(value, list) else cast).dtype == np.float16


def test_the_type_of_a_sequence_is_that_of_its_elements() -> None:
    operator = node_of(CustomOperator, helper.make_node("Bend", ["x"], ["y"], domain="my.ops"), x=TensorProto.DOUBLE)
    assert operator._type("x", MATRIX, TensorProto.FLOAT) == TensorProto.DOUBLE
    assert operator._type("unknown", MATRIX, TensorProto.FLOAT16) == TensorProto.FLOAT16
    assert operator._type("x", [np.array([1])], TensorProto.FLOAT) == TensorProto.INT64
    assert operator._type("x", [], TensorProto.FLOAT16) == TensorProto.FLOAT16
    assert operator._type("x", None, TensorProto.FLOAT) == 0
