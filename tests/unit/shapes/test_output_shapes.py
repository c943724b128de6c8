"""Equal nodes of equal inputs are computed once."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

import models
from onnxfuse.shapes import inference, output_shapes
from onnxfuse.shapes.value_facts import ValueFacts


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
    facts = ValueFacts(18, {"x": (1, 2, 8, 8)})
    for name, values in {"s": [1, 1, 1.5, 1.5], "t": [1, 1, 2.5, 2.5], "p": [0.5], "q": [0.25]}.items():
        facts.remember(name, numpy_helper.from_array(np.array(values, np.float32), name))
    nodes = [helper.make_node("Resize", ["x", "", v], ["y"]) for v in "st"]
    nodes += [helper.make_node("Add", ["x", v], ["y"]) for v in "pq"]
    shapes = [output_shapes.results_of(facts, node)[0] for node in nodes]
    assert shapes == [[(1, 2, 12, 12)], [(1, 2, 20, 20)], [(1, 2, 8, 8)], [(1, 2, 8, 8)]]
    assert len(facts.results) == 3
