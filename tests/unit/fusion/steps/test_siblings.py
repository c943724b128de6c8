"""Products of one input in one launch, whatever their columns."""

import pytest

from onnxfuse.fusion.region.attempt import Attempt
from onnxfuse.fusion.steps import siblings
from onnxfuse.graph.graph import Node
from onnxfuse.model.fused import fused_ops
from onnxfuse.passes import pipeline
from onnxfuse.rules.language import rule_file
from tests.support.channels_last import weights
from tests.support.small import assert_same_numbers, ops, parse

GEMM = [one for one in rule_file.shipped() if one.name == "gemm"]


def net(nodes: str, *columns: int) -> str:
    """Return products of one input by weights of so many columns each, with `nodes` after them."""
    outputs = ", ".join(f"float[N,{n}] y{i}" for i, n in enumerate(columns))
    known = ", ".join(weights(f"w{i}", 16, n) for i, n in enumerate(columns))
    products = "\n  ".join(f"m{i} = MatMul (x, w{i})" for i in range(len(columns)))
    return f"""<ir_version: 8, opset_import: ["" : 20]>
g (float[N,16] x) => ({outputs}) <{known}> {{
  {products}
  {nodes}
}}"""


RELUS = "y0 = Relu (m0) y1 = Relu (m1) y2 = Relu (m2)"


@pytest.mark.parametrize(
    ("text", "fused"),
    [
        (net(RELUS, 32, 8, 8), ["{MatMul MatMul MatMul Relu Relu Relu}"]),
        (net(RELUS, 8, 24, 32), ["{MatMul MatMul MatMul Relu Relu Relu}"]),
        (net(RELUS, 32, 12, 32), ["MatMul", "Relu", "{MatMul MatMul Relu Relu}"]),
        (net(f"y0 = Sigmoid (m0) {RELUS[14:]}", 32, 8, 8), ["{MatMul MatMul Relu Relu}", "{MatMul Sigmoid}"]),
        (net(f"{RELUS[:29]} y2 = Sigmoid (m2)", 8, 8, 32), ["{MatMul MatMul Relu Relu}", "{MatMul Sigmoid}"]),
    ],
    ids=["keys and values beside queries", "all differ", "off the boundary", "the first of another body", "the last"],
)  # fmt: skip
def test_which_products_become_one_op(text: str, fused: list[str]) -> None:
    """Those of as many columns where not all have one body, or where a number of columns is no multiple of 8."""
    model = parse(text)
    pipeline.run(model, GEMM)
    # Of float32 the weights stand turned in the body.
    assert sorted(name.replace("Transpose ", "") for name in ops(model)) == sorted(fused)
    assert_same_numbers(parse(text), model)


def test_what_stays_apart_is_told_why() -> None:
    text = net(f"y0 = Sigmoid (m0) {RELUS[14:]}", 32, 8, 8)
    report = pipeline.run(parse(text), GEMM)
    told = [stop.reason for one in report.applied for stop in one.stops]
    assert any("products side by side with different bodies" in one for one in told)


def test_heads_of_queries_and_of_fewer_keys_are_written_apart() -> None:
    nodes = """s = Constant <value = int64[4] {1, -1, 4, 8}> () t = Constant <value = int64[4] {1, -1, 1, 8}> ()
  a = Reshape (m0, s) b = Reshape (m1, t) c = Reshape (m2, t)
  y0 = Transpose <perm = [0,2,1,3]> (a) y1 = Transpose <perm = [0,2,1,3]> (b) y2 = Transpose <perm = [0,2,3,1]> (c)"""
    outputs = "float[A,4,N,8] y0, float[A,1,N,8] y1, float[A,1,8,N] y2"
    text = net(nodes, 32, 8, 8).replace("float[N,32] y0, float[N,8] y1, float[N,8] y2", outputs)
    model = parse(text)
    pipeline.run(model, GEMM)
    (op,) = fused_ops(model).values()
    assert len(op.outputs) == 3
    assert_same_numbers(parse(text), model)


def test_anchors_are_matched_again_only_where_something_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty products in pairs, each pair summed: a product's next ones are matched once, and after what was fused."""
    asked, own = list[str](), siblings._matches

    def noted(attempt: Attempt, node: Node, shared: str) -> bool:
        asked.append(node.name)
        return own(attempt, node, shared)

    monkeypatch.setattr(siblings, "_matches", noted)
    sums = " ".join(f"y{i} = Add (m{2 * i}, m{2 * i + 1})" for i in range(15))
    products = " ".join(f"m{i} = MatMul (x, w{i})" for i in range(30))
    known = ", ".join(weights(f"w{i}", 16, 16) for i in range(30))
    outputs = ", ".join(f"float[N,16] y{i}" for i in range(15))
    model = parse(f"""<ir_version: 8, opset_import: ["" : 20]>
g (float[N,16] x) => ({outputs}) <{known}> {{ {products} {sums} }}""")
    pipeline.run(model, GEMM)
    assert 30 <= len(asked) < 2 * 30
