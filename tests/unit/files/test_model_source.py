"""What callers may give as a model."""

from collections import namedtuple
from pathlib import Path

import numpy as np
import onnx
import onnx_graphsurgeon
import pytest
from onnx import numpy_helper

from onnxfuse.files.external import is_external
from onnxfuse.files.model_source import copied, is_model, loaded, path_or_proto
from onnxfuse.support.errors import UsageError
from tests.support.small import parse

TEXT = "g (float[N,4] x) => (float[N,4] y) { y = Relu (x) }"


def test_a_path_and_a_proto_are_taken_as_they_are() -> None:
    """Without a copy."""
    for given in ("m.onnx", Path("m.onnx"), parse(TEXT)):
        assert is_model(given)
        assert path_or_proto(given) is given


def test_a_graph_of_graphsurgeon_is_exported() -> None:
    """As it is, also where its types are not what their operators give, which only ONNX Runtime may judge."""
    graph = onnx_graphsurgeon.import_onnx(parse(TEXT))
    graph.outputs[0].dtype = None
    assert is_model(graph)
    made = path_or_proto(graph)
    assert isinstance(made, onnx.ModelProto)
    assert [node.op_type for node in made.graph.node] == ["Relu"]


def test_a_model_is_loaded_with_its_weights(tmp_path: Path) -> None:
    """Unless it is asked for without; one in memory is the one that was given."""
    model = parse("g (float[N,300] x) => (float[N,300] y) { y = Add (x, w) }")
    model.graph.initializer.append(numpy_helper.from_array(np.ones(300, np.float32), "w"))
    assert loaded(model) is model
    onnx.save(copied(model), tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    assert not is_external(loaded(tmp_path / "m.onnx").graph.initializer[0])
    assert is_external(loaded(tmp_path / "m.onnx", weights=False).graph.initializer[0])
    copy = copied(model)
    assert copy == model
    copy.graph.initializer[0].name = "other"
    assert model.graph.initializer[0].name == "w"


@pytest.mark.parametrize("given", [None, 3, b"m.onnx", parse(TEXT).graph, namedtuple("Graph", "nodes")([])])
def test_what_is_no_model_is_told_by_its_type(given: object) -> None:
    assert not is_model(given)
    with pytest.raises(UsageError, match=f"of the type {type(given).__name__}; expected a ModelProto, a path, or an"):
        path_or_proto(given)
