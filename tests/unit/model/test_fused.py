"""Fused ops as a file holds them: what is written is read, and what another tool has damaged is told."""

import onnx
import pytest
from onnx import TensorProto, helper, parser

from onnxfuse.model import fused, provenance
from onnxfuse.model.fused import DOMAIN, FusedOp, fused_ops, replaced_nodes
from onnxfuse.model.tf32 import set_strict_fp32
from onnxfuse.support.errors import ModelError
from tests.support.small import optimize, parse

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16
BODY = '<opset_import: ["" : 20], domain: "onnxfuse"> Scaled (v0, v1) => (v3) { v2 = Mul (v0, v1) v3 = Relu (v2) }'
LIBRARY = '<opset_import: ["" : 20], domain: "onnxfuse"> library (v0, v1) => (v3) { v3 = Mul (v0, v1) }'


def op(library: bool = False) -> FusedOp:
    """Return an op of two nodes."""
    form = parser.parse_function(LIBRARY) if library else None
    return FusedOp("Scaled", "pointwise", "pointwise", (FLOAT, HALF), (FLOAT,), parser.parse_function(BODY), form)


def holding(function: onnx.FunctionProto, nodes: str = "y = onnxfuse.Scaled (x, w)") -> onnx.ModelProto:
    """Return a model of such nodes, with two weights."""
    model = parse(
        '<ir_version: 8, opset_import: ["" : 20, "onnxfuse" : 1]> g (float[2] x, float16[2] given) => (float[2] y) '
        f"<float16[2] w = {{1, 2}}, float16[2] v = {{3, 4}}> {{ {nodes} }}"
    )
    model.functions.append(function)
    return model


@pytest.mark.parametrize("library", [False, True])
def test_what_is_written_is_read(library: bool) -> None:
    """Its name, rule, template, element types, body and the library's form."""
    (read,) = fused_ops(holding(fused.write(op(library)))).values()
    assert op().tf32
    assert (read.name, read.rule, read.template) == ("Scaled", "pointwise", "pointwise")
    assert (read.inputs, read.outputs, read.opset) == ((FLOAT, HALF), (FLOAT,), 20)
    assert [n.op_type for n in read.body.node] == ["Mul", "Relu"]
    assert (read.library is not None) is library
    if read.library is not None:
        assert [n.op_type for n in read.library.node] == ["Mul"]
    again = fused.write(read)
    assert again == fused.write(op(library))


def test_a_meaning_has_no_name() -> None:
    """Equal for ops that differ in rule and template alone; it gives the op back."""
    other = FusedOp("Scaled", "another", "row", (FLOAT, HALF), (FLOAT,), parser.parse_function(BODY))
    assert op().meaning == other.meaning
    assert op().meaning != FusedOp("Scaled", "", "", (FLOAT, FLOAT), (FLOAT,), parser.parse_function(BODY)).meaning
    back = op().meaning.op("row")
    assert (back.name, back.template, back.inputs, back.body) == ("", "row", (FLOAT, HALF), op().body)


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ("y = onnxfuse.Scaled (x, w)", {1}),
        ("a = onnxfuse.Scaled (x, w) y = onnxfuse.Scaled (a, v)", {1}),
        # at one of its nodes it is none
        ("a = onnxfuse.Scaled (x, w) y = onnxfuse.Scaled (a, given)", set()),
        ("y = onnxfuse.Scaled (x, given)", set()),
    ],
)
def test_an_input_that_is_a_weight_at_every_node_is_constant(nodes: str, constants: set[int]) -> None:
    assert fused_ops(holding(fused.write(op()), nodes))["Scaled"].constants == constants


def test_a_weight_that_a_caller_may_override_is_not_constant() -> None:
    model = holding(fused.write(op()))
    model.graph.input.append(helper.make_tensor_value_info("w", HALF, [2]))
    assert fused_ops(model)["Scaled"].constants == set()


@pytest.mark.parametrize("strictly", [True, False])
def test_a_strict_file_rounds_no_product(strictly: bool) -> None:
    model = holding(fused.write(op()))
    set_strict_fp32(model, strict=strictly)
    assert fused_ops(model)["Scaled"].tf32 is not strictly


@pytest.mark.parametrize("key", ["rule", "template", "inputs", "outputs"])
def test_metadata_that_a_tool_dropped_are_missed(key: str) -> None:
    function = fused.write(op())
    kept = [p for p in function.metadata_props if p.key != f"{DOMAIN}.{key}"]
    del function.metadata_props[:]
    function.metadata_props.extend(kept)
    with pytest.raises(ModelError, match=rf"onnxfuse.Scaled lacks its metadata \({key}\)"):
        fused_ops(holding(function))


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("inputs", "FLOAT", "names the types 'FLOAT' for 2 inputs"),
        ("inputs", "FLOAT,NUMBER", "names the types 'FLOAT,NUMBER' for 2 inputs"),
        ("outputs", "", "names the types '' for 1 output"),
        ("library", "no function", "holds a library form that cannot be read"),
        ("library", LIBRARY.replace("v3 = Mul (v0, v1)", "v3 = MaxPool <kernel_shape = [0]> (v0)"), "is not valid"),
    ],
)
def test_metadata_that_are_damaged_are_told(key: str, value: str, told: str) -> None:
    """By what is wrong; nothing is planned from them."""
    function = fused.write(op(library=True))
    for entry in function.metadata_props:
        entry.value = value if entry.key == f"{DOMAIN}.{key}" else entry.value
    with pytest.raises(ModelError, match=told.replace("(", r"\(")):
        fused_ops(holding(function))


def test_an_output_that_a_node_leaves_out_has_the_name_of_the_body() -> None:
    """As trailing outputs may."""
    two = parser.parse_function(BODY.replace("=> (v3)", "=> (v3, v2)"))
    node = helper.make_node("Scaled", ["x", "w"], ["y"], domain=DOMAIN)
    assert replaced_nodes(node, FusedOp("Scaled", "", "", (FLOAT, HALF), (FLOAT, FLOAT), two)) == ("Mul v2", "Relu y")


TEXT = "g (float[N,8] x) => (float[N,8] y) { a = Exp (x) [last] y = Neg (a) }"


def test_the_nodes_that_a_node_replaces_are_told() -> None:
    """By their names, else by what they compute; by the names of the body where a tool dropped the metadata."""
    made, _ = optimize(parse(TEXT), "pointwise")
    (node,), (one,) = made.graph.node, fused_ops(made).values()
    assert replaced_nodes(node, one) == ("Exp a", "Neg last")
    del node.metadata_props[:]
    assert provenance.names(node, "nodes") is None
    inner = [n for n in one.body.node if n.op_type == "Exp"]
    assert replaced_nodes(node, one) == (f"Exp {inner[0].output[0]}", "Neg y")
