"""Where types are lost: the first value of each kind, what depends on it, and what would restore it."""

import pytest

from onnxfuse.graph.graph import Graph
from onnxfuse.graph.lost_types import Lost, lost
from onnxfuse.model.schema import opset_of
from onnxfuse.shapes.inference import infer
from tests.support.small import parse

HEAD = '<ir_version: 8, opset_import: ["" : 17, "my.ops" : 1, "com.microsoft" : 1]>'


def losses(text: str) -> list[Lost]:
    model = parse(HEAD + text)
    return lost(Graph(model.graph, infer(model).graph, opset_of(model)))


def test_known_types_are_not_lost() -> None:
    """Also of any size."""
    assert losses("g (float[N,M] x) => (float[A,B] y) { a = Neg (x) y = Relu (a) }") == []


def test_the_first_value_is_named_with_all_behind_it() -> None:
    """Not those that depend on it, nor the nodes beside them."""
    (loss,) = losses("""g (float[4] x) => (float[4] y) {
      [special] a = my.ops.Special (x) [n1] b = Neg (a) [n2] c = Exp (b) [n3] d = Abs (x) [n4] y = Add (c, d) }""")
    assert (loss.value, loss.missing, loss.own) == ("a", "element type", True)
    assert loss.after == {"n1", "n2", "n4"}
    assert loss.fact == (
        "the element type of 'a', made by Special special, an operator of my.ops that ONNX's inference does not know, "
        "is not known; 3 nodes depend on it"
    )
    assert loss.mend == (
        "name the library that has the operator (--custom-ops LIB.so), declare 'a' in the export, or add it to the "
        "model: model.graph.value_info.append(onnx.helper.make_tensor_value_info('a', TYPE, SHAPE))"
    )


def test_each_loss_of_its_own_is_named() -> None:
    """In the order of the graph; one node depends, several depend."""
    found = losses("""g (float[4] x) => (float[4] y) {
      a = my.ops.One (x) b = Neg (a) c = my.ops.Two (x) y = Add (b, c) }""")
    assert [loss.value for loss in found] == ["a", "c"]
    assert [loss.fact.rsplit("; ")[-1] for loss in found] == ["2 nodes depend on it", "1 node depends on it"]


def test_a_value_that_nothing_reads_is_no_loss() -> None:
    assert losses("g (float[4] x) => (float[4] y) { y, a = my.ops.Special (x) }") == []


def test_a_declared_value_is_known() -> None:
    text = "g (float[4] x) => (float[4] y) <float[4] a> { a = my.ops.Special (x) y = Relu (a) }"
    assert losses(text) == []


def test_an_input_without_a_shape_is_named_as_one() -> None:
    """Its operator is none that a library could bring."""
    (loss,) = losses("g (float[] x) => (float[A] y) { [n] a = Neg (x) y = Relu (a) }")
    assert (loss.value, loss.missing, loss.maker, loss.own) == ("x", "shape", "an input of the graph", False)
    assert loss.mend.startswith("declare 'x' in the export")
    assert losses("g (float[] x, float[4] z) => (float[4] y) { y = Relu (z) }") == []


@pytest.mark.parametrize(
    ("kind", "nodes"),
    [
        ("seq(float[4])", "z = SequenceConstruct (x, x) y = ConcatFromSequence <axis = 0> (Z)"),
        ("optional(float[4])", "z = Optional (x) y = OptionalGetElement (Z)"),
    ],
)
def test_what_has_no_element_type_loses_none(kind: str, nodes: str) -> None:
    """Sequences and optionals, on the way and as inputs."""
    head = f"g (float[4] x, {kind} given) => (float[8] y) <{kind} z>"
    for read in ("z", "given"):
        assert losses(f"{head} {{ {nodes.replace('Z', read)} }}") == []
