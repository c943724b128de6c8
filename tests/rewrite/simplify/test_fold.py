"""Folding of nodes that are not defined on their constants."""

import onnx

import onnxfuse

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
WEIGHTS = "<float[3] w = {1, 2, 3}, int64[2] i = {1, 9}>"


def test_a_node_that_fails_on_its_constants_stays() -> None:
    """ONNX Runtime opens the model, so it comes out: what runs is its affair."""
    model = onnx.parser.parse_model(
        f"{HEAD} g (float[2] x) => (float[2] y) {WEIGHTS} {{ h = Gather(w, i) y = Add(h, x) }}"
    )
    assert "Gather" in {n.op_type for n in onnxfuse.optimize(model).graph.node}


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


def test_an_activation_of_weights_alone_is_a_weight() -> None:
    """Torch's newer exporter computes what stands before it, as in tables of positions that an MLP makes (MaxViT)."""
    model = onnx.parser.parse_model(
        f"{HEAD} g (float[3] x) => (float[3] y) <float[3] w = {{-1, 2, 3}}> {{ h = Relu(w) y = Add(h, x) }}"
    )
    made = onnxfuse.optimize(model)
    assert [n.op_type for n in made.graph.node] == ["Add"]
    assert [onnx.numpy_helper.to_array(t).tolist() for t in made.graph.initializer] == [[0, 2, 3]]
