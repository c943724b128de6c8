"""Normalizing changes the form of a model, never what it computes."""

import onnx
import onnx.checker
import onnx.parser

import onnxfuse


def test_the_long_name_of_the_default_domain_is_understood() -> None:
    """A model that writes `ai.onnx` where others write nothing fuses all the same, and comes out valid."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N,4] x) => (float[N,4] y) { a = Exp (x)  y = Neg (a) }'
    )
    model.opset_import[0].domain = "ai.onnx"
    for node in model.graph.node:
        node.domain = "ai.onnx"
    made = onnxfuse.optimize(model)
    onnx.checker.check_model(made, full_check=True)
    assert [n.domain for n in made.graph.node] == ["onnxfuse"]
    assert model.graph.node[0].domain == "ai.onnx", "the caller's model is left as it is"
