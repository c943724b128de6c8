"""Folding of nodes that are not defined on their constants."""

import onnx
import pytest

import onnxfuse
from onnxfuse.model.errors import ModelError

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
WEIGHTS = "<float[3] w = {1, 2, 3}, int64[2] i = {1, 9}>"


@pytest.mark.parametrize(
    ("node", "told"),
    [
        ("[pick] h = Gather(w, i)", r"Gather 'pick' cannot be computed from its constants: index 9 is out of bounds"),
        ("[make] h = Reshape(w, i)", r"Reshape 'make' cannot be computed from its constants: cannot reshape"),
        ("h = Gather(w, i)", r"Gather 'h' cannot be computed"),
    ],
)
def test_a_node_that_fails_on_its_constants_is_named(node: str, told: str) -> None:
    """It fails in every run: the error says where and why, before a file is written."""
    model = onnx.parser.parse_model(f"{HEAD} g (float[2] x) => (float[N] y) {WEIGHTS} {{ {node} y = Add(h, x) }}")
    with pytest.raises(ModelError, match=told) as raised:
        onnxfuse.optimize(model)
    assert raised.value.hint


def test_in_a_branch_it_stays_as_it_is() -> None:
    """The branch may never be taken: the model runs as before."""
    model = onnx.parser.parse_model(
        f"""{HEAD} g (float[2] x, bool c) => (float[2] y) {WEIGHTS} {{
          y = If(c) <then_branch = a () => (float[2] p) {{ p0 = Gather(w, i) p = Neg(p0) }},
                     else_branch = b () => (float[2] q) {{ q0 = Neg(x) q = Neg(q0) }}>
        }}"""
    )
    branches = [a.g for a in onnxfuse.optimize(model).graph.node[0].attribute]
    assert "Gather" in [n.op_type for body in branches for n in body.node]
