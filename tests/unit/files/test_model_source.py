"""What callers may give as a model."""

from collections import namedtuple
from pathlib import Path

import onnx
import onnx_graphsurgeon
import pytest

from onnxfuse.files.model_source import is_model, path_or_proto
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


@pytest.mark.parametrize("given", [None, 3, b"m.onnx", parse(TEXT).graph, namedtuple("Graph", "nodes")([])])
def test_what_is_no_model_is_told_by_its_type(given: object) -> None:
    assert not is_model(given)
    with pytest.raises(UsageError, match=f"of the type {type(given).__name__}; expected a ModelProto, a path, or an"):
        path_or_proto(given)
