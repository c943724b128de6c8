"""Equal nodes of equal inputs are computed once."""

from collections.abc import Callable
from typing import Any

import pytest

import models
from onnxfuse.shapes import inference, output_shapes


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
