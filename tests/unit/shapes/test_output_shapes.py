"""Equal nodes of equal inputs are computed once."""

from collections.abc import Callable
from typing import Any

import onnx
import pytest

import models
from onnxfuse.shapes import inference, output_shapes
from onnxfuse.shapes.types import value_types


def test_equal_nodes_of_equal_inputs_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers of a BERT differ in the names of values alone: most nodes have the results of an earlier one."""
    computed = list[str]()

    def results(asked: output_shapes.KnownNode, shape_of: Callable[[output_shapes.KnownNode], Any]) -> Any:
        computed.append(asked.proto.op_type)
        return original(asked, shape_of)

    original = output_shapes._results
    monkeypatch.setattr(output_shapes, "_results", results)
    model = models.build("bert_base", layers=8, hidden=64, heads=4, intermediate=128, vocabulary=100)
    inference.infer(model)
    assert 0 < len(computed) < 0.5 * sum(n.op_type != "Constant" for n in model.graph.node), len(computed)


def test_fractions_that_give_a_shape_tell_nodes_apart() -> None:
    """Two Resizes whose scales alone differ have two shapes, two Adds whose biases do have one result."""
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]>
        g (float[1, 2, 8, 8] x) => (float[a, b, c, d] y, float[e, f, g, h] z)
        <float[4] s = {1.0, 1.0, 1.5, 1.5}, float[4] t = {1.0, 1.0, 2.5, 2.5}, float[1] p = {0.5}, float[1] q = {0.25}>
        { a = Add (x, p) b = Add (x, q) y = Resize (a, , s) z = Resize (b, , t) }""")
    found = {v: t.shape for v, t in value_types(inference.infer(model).graph).items()}
    assert (found["a"], found["b"]) == ((1, 2, 8, 8), (1, 2, 8, 8))
    assert (found["y"], found["z"]) == ((1, 2, 12, 12), (1, 2, 20, 20))
