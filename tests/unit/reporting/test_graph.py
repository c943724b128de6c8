"""The graph of a model, as reports draw it."""

import onnx

from onnxfuse.reporting.graph import graph_of


def test_the_graph_of_a_model_has_its_ends_and_no_constants() -> None:
    """Inputs and outputs are nodes; weights and Constant nodes are not."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x) => (float[2,3] y) <float[3] w = {1,2,3}>
    { [c] k = Constant <value = float {2.0}> () [a] h = Add (x, w) [m] y = Mul (h, k) }"""
    graph = graph_of(onnx.parser.parse_model(text))
    assert [(n["op"], n["name"]) for n in graph["nodes"]] == [
        ("input", "x"), ("Add", "a"), ("Mul", "m"), ("output", "y"),
    ]  # fmt: skip
    assert graph["edges"] == [[0, 1], [1, 2], [2, 3]]
    assert graph["nodes"][1]["outputs"] == ["h: float[2,3]"]
