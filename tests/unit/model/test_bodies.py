"""A body from a file is looked at before anything is computed from it: what is wrong is told, not met."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

from onnxfuse.files import io
from onnxfuse.model import bodies, provenance
from onnxfuse.model.fused import FusedOp, fused_ops, write
from onnxfuse.support.errors import ModelError

HEAD = '<domain: "onnxfuse", opset_import: ["" : 20, "com.microsoft" : 1]>'


def function(text: str) -> onnx.FunctionProto:
    return parser.parse_function(f"{HEAD} Made_0123456789 {text}")


def complaint(body: onnx.FunctionProto) -> str:
    """The message, without the hint in the line below."""
    model = helper.make_model(helper.make_graph([], "g", [], []), functions=[body])
    with pytest.raises(ModelError) as raised:
        io.parse(model.SerializeToString(), "a file")
    assert "Made_0123456789 is not valid" in str(raised.value)
    assert "optimize the original model again" in raised.value.hint
    return f"{raised.value}"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("(x, w) => (y) { y = Conv <strides = [0, 1]> (x, w) }", "strides 0, expected 1"),
        ("(x, w) => (y) { y = Conv <dilations = [1, -1]> (x, w) }", "dilations -1, expected 1"),
        ("(x, w) => (y) { y = Conv <group = 0> (x, w) }", "group 0, expected 1"),
        ("(x, w) => (y) { y = Conv <pads = [0, -1, 0, 0]> (x, w) }", "pads [0, -1, 0, 0]"),
        ("(x, w) => (y) { y = Conv <kernel_shape = [3, 3], strides = [1]> (x, w) }", "1 number of strides"),
        ("(x) => (y) { y = MaxPool <kernel_shape = [3, 0]> (x) }", "kernel_shape 0, expected 1"),
        ("(x) => (y) { y = MaxPool (x) }", "kernel_shape"),
        ("(x) => (y, z) { y, z = Split <num_outputs = 2147483648> (x) }", "num_outputs 2147483648"),
        ("(x) => (y, z) { y, z = Split <num_outputs = 3> (x) }", "Split in 3 with 2 outputs"),
        ("(x) => (y) { y = Softmax <axis = 4611686018427387904> (x) }", "axis 4611686018427387904"),
        ("(x) => (y) { y = Softmax <axis = 0.5> (x) }", "axis"),
        ("(x) => (y) { y = Gelu <approximate = 1> (x) }", "approximate"),
        ("(x) => (y) { y = Gelu <speed = 1> (x) }", "speed"),
        ("(x) => (y) { y = Transpose <perm = [0, 0]> (x) }", "Transpose by [0, 0]"),
        ("(x) => (y) { y = DepthToSpace <blocksize = 0> (x) }", "blocksize 0"),
        ("(x) => (y) { y = Cast <to = 99> (x) }", "to 99"),
        ("(x) => (y) { y = Add (x) }", "Add"),
        ("(x) => (y) { y = Neg (z) }", "Neg reads 'z'"),
        ("(x) => (y) { x = Neg (x) y = Neg (x) }", "makes a value that is there"),
        ("(x) => (y) { z = Neg (x) }", "no node makes its output 'y'"),
        ("(x) => (y) { y = elsewhere.Neg (x) }", "domain 'elsewhere'"),
        ("(x) => (y) { c = Constant <value_int = 1, value_float = 1.0> () y = Add (x, c) }", "Constant"),
    ],
)
def test_what_no_operator_takes_is_told(text: str, says: str) -> None:
    """Op, attribute and number, for each kind that ended in a crash, a traceback or a minute of planning."""
    assert says in complaint(function(text))


def test_a_constant_holds_its_own_data() -> None:
    """No file elsewhere is read by way of it, and its shape is that of its data."""
    good = onnx.numpy_helper.from_array(np.ones(2, np.float32))
    for change, says in (
        ({"data_location": TensorProto.EXTERNAL}, "its data elsewhere"),
        ({"dims": [3]}, "a constant"),
        ({"dims": [2**40]}, f"shape [{2**40}]"),
        ({"dims": [-2]}, "a constant of shape [-2]"),
        ({"data_type": 99}, "a constant"),
    ):
        body = function("(x) => (y) { c = Constant <value = float {1}> () y = Add (x, c) }")
        tensor = body.node[0].attribute[0].t
        tensor.CopyFrom(good)
        for key, value in change.items():
            if key == "dims":
                tensor.dims[:] = value
            else:
                setattr(tensor, key, value)
        if "data_location" in change:
            tensor.external_data.add(key="location", value="/etc/passwd")
        assert says in complaint(body)


def test_a_name_in_a_message_is_printable_and_short() -> None:
    """What stands in a file does not steer the terminal."""
    body = function("(x) => (y) { y = Neg (x) }")
    body.node[0].op_type = "N\x1b[2Jeg\n::error" + "x" * 500
    body.node[0].input[0] = "nobody"
    text = complaint(body)
    assert text.isprintable()
    assert len(text) < 300


def test_a_text_is_text() -> None:
    body = function('(x) => (y) { y = Gelu <approximate = "tanh"> (x) }')
    body.node[0].attribute[0].s = b"\xff\xfe"
    assert "'approximate' that is no text: b'\\xff\\xfe'" in complaint(body)


def test_operators_that_are_newer_than_the_opset_pass() -> None:
    """ONNX Runtime knows LayerNormalization at every opset, and operators of its own."""
    bodies.check(parser.parse_function(
        '<domain: "onnxfuse", opset_import: ["" : 16, "com.microsoft" : 1]> old (x, g) => (y, z) '
        "{ y = LayerNormalization <axis = -1> (x, g) z = com.microsoft.FastGelu (x) }"
    ))  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("inputs", "FLOAT", "names the types 'FLOAT' for 2 inputs"),
        ("outputs", "FLOTA", "names the types 'FLOTA' for 1 output"),
        ("library", "garbage {", "library form that cannot be read"),
    ],
)
def test_metadata_that_is_not_what_it_should_be_is_told(key: str, value: str, says: str) -> None:
    made = write(
        FusedOp("Made_0123456789", "r", "pointwise", (1, 1), (1,), function("(a, b) => (y) { y = Add(a, b) }"))
    )
    for prop in [p for p in made.metadata_props if p.key == f"onnxfuse.{key}"]:
        made.metadata_props.remove(prop)
    made.metadata_props.add(key=f"onnxfuse.{key}", value=value)
    model = helper.make_model(helper.make_graph([], "g", [], []), functions=[made])
    with pytest.raises(ModelError) as raised:
        fused_ops(model)
    assert says in str(raised.value)


@pytest.mark.parametrize("value", ["[", "{}", "[1]", "[" * 100_000, ""])
def test_what_a_node_remembers_is_a_list_of_names(value: str) -> None:
    node = helper.make_node("Made_0123456789", ["a"], ["y"], domain="onnxfuse")
    assert provenance.names(node, "nodes") is None
    node.metadata_props.add(key="onnxfuse.nodes", value=value)
    with pytest.raises(ModelError, match="not as onnxfuse writes it"):
        provenance.names(node, "nodes")
