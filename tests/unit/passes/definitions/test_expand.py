"""Operators of ONNX Runtime's own fuse like the nodes of an export, and stay where nothing takes them."""

import numpy as np
import onnx
import pytest

from tests.support.files_of_tools import NAMES, file, inputs
from tests.support.small import NO_RULE, halved, numbers, ops, optimize, parse, run, signed_inputs

HEADER = '<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
ROW = f"float[16] s = {{{numbers(16, 5)}}}, float[16] b = {{{numbers(16, 3)}}}"
SKIP = f"""g (float[N,S,16] x, float[N,S,16] r) => (float[N,S,16] y, float[N,S,16] sum) <{ROW}> {{
  y, , , sum = com.microsoft.SkipLayerNormalization (x, r, s, b)
}}"""
SIMPLIFIED = f"""g (float[N,S,16] x, float[N,S,16] r) => (float[N,S,16] y, float[N,S,16] sum) <{ROW}> {{
  y, , , sum = com.microsoft.SkipSimplifiedLayerNormalization (x, r, s)
}}"""
HEADS = """g (float[N,S,32] q, float[N,T,32] k, float[N,T,32] v) => (float[N,S,32] y) {
  y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, v)
}"""
PACKED = f"""g (float[N,S,32] x, int32[N,S] mask) => (float[N,S,32] y)
<float[32,96] w = {{{numbers(32 * 96, 5)}}}, float[96] b = {{{numbers(96, 3)}}}> {{
  y = com.microsoft.Attention <num_heads = 2> (x, w, b, mask)
}}"""
TWICE = f"""g (float[N,S,16] x, float[N,S,16] r) => (float[N,S,16] z) <{ROW}> {{
  y, , , sum = com.microsoft.SkipLayerNormalization (x, r, s, b)
  z = com.microsoft.SkipLayerNormalization (y, sum, s, b)
}}"""


CAPPED = """g (float[N,2,S,16] q, float[N,2,S,16] k, float[N,2,S,16] v, float[N,2,P,16] pk, float[N,2,P,16] pv)
=> (float[N,2,S,16] y, float[N,2,T,16] nk, float[N,2,T,16] nv) {
  y, nk, nv = Attention <softcap = 5.0> (q, k, v, , pk, pv)
}"""


def model_of(text: str, opset: int = 17) -> onnx.ModelProto:
    """Return the model of a text."""
    return parse(HEADER.format(opset=opset) + text)


def test_a_residual_and_its_norm_are_one_kernel() -> None:
    """As in the export; from opset 23 on the simplified norm is an operator."""
    assert ops(optimize(model_of(SKIP))[0]) == ["{Add LayerNormalization}"]
    assert ops(optimize(model_of(SIMPLIFIED, 23))[0]) == ["{Add RMSNormalization}"]
    assert ops(optimize(halved(model_of(SIMPLIFIED)))[0]) == [
        "{Add Cast Pow ReduceMean Add Sqrt Div Cast Mul}"
    ]  # fmt: skip


def test_attention_is_one_kernel() -> None:
    """The projection is three products of one launch, the mask a bias."""
    assert ops(optimize(halved(model_of(HEADS)))[0]) == [
        "{Reshape Reshape Transpose Reshape Transpose Transpose MatMul Mul Softmax MatMul Transpose Reshape}"
    ]
    left = ops(optimize(halved(model_of(PACKED)))[0])
    assert len(left) == 3
    assert "{MatMul Add MatMul Add MatMul Add}" in left
    assert any("Softmax" in name for name in left)


@pytest.mark.parametrize(
    "text", [SKIP, SIMPLIFIED, HEADS, PACKED, TWICE], ids=["skip", "rms", "heads", "packed", "twice"]
)
def test_what_no_kernel_takes_stays(text: str) -> None:
    """Without a rule the file comes out as it was, to the byte."""
    model = model_of(text)
    made, report = optimize(model, NO_RULE)
    read = {name for node in model.graph.node for name in node.input}
    assert made.graph.node == model.graph.node
    assert {t.name: t for t in made.graph.initializer} == {t.name: t for t in model.graph.initializer if t.name in read}
    assert report.applied == []


def test_caches_go_back_where_attention_stays() -> None:
    """Capped scores are ONNX Runtime's: it reads and writes the caches, too."""
    model = model_of(CAPPED, 23)
    made, _ = optimize(model)
    assert made.graph.node == model.graph.node


def test_a_part_that_fuses_does_not_restore_the_whole() -> None:
    """A norm that a rule takes, and attention that none does."""
    text = f"""g (float[N,S,18] q, float[N,S,18] r) => (float[N,S,18] y) <float[18] s = {{{numbers(18, 5)}}}> {{
      n = com.microsoft.SkipSimplifiedLayerNormalization (q, r, s)
      y = com.microsoft.MultiHeadAttention <num_heads = 2> (n, n, n)
    }}"""
    assert ops(optimize(model_of(text, 23), "rms_norm")[0]) == ["{Add RMSNormalization}", "MultiHeadAttention"]


@pytest.mark.parametrize(
    "text", [SKIP, SIMPLIFIED, HEADS, PACKED, TWICE], ids=["skip", "rms", "heads", "packed", "twice"]
)
def test_optimized_again_nothing_changes(text: str) -> None:
    """Neither what fused nor what was restored is written again."""
    for names in ((), (NO_RULE,)):
        made, _ = optimize(model_of(text), *names)
        assert optimize(made, *names)[0].SerializeToString() == made.SerializeToString()


def test_products_of_the_optimizer_fuse() -> None:
    """Transposes, factors and activations inside an operator are those of an export."""
    text = f"""g (float[N,S,16] x) => (float[N,S,32] y)
    <float[32,16] w = {{{numbers(512, 5)}}}, float[32] b = {{{numbers(32, 3)}}}> {{
      h = com.microsoft.FusedMatMul <transB = 1> (x, w)
      y = com.microsoft.BiasGelu (h, b)
    }}"""
    assert ops(optimize(halved(model_of(text)))[0]) == ["{MatMul Add Div Erf Add Mul Mul}"]


@pytest.mark.parametrize("text", [SKIP, HEADS, PACKED, TWICE], ids=["skip", "heads", "packed", "twice"])
def test_values_are_those_of_the_operators(text: str) -> None:
    """The bodies of what fused, on the CPU."""
    model = model_of(text)
    made, report = optimize(model)
    assert report.applied
    inputs = signed_inputs(model)
    for before, after in zip(run(model, inputs), run(made, inputs), strict=True):
        np.testing.assert_allclose(after, before, rtol=0, atol=3e-5 * np.abs(before).max())


def test_bodies_keep_their_own_originals() -> None:
    """Two branches may call values alike: what one had is not put into the other."""
    text = f"""g (float[N,S,16] x, float[N,S,16] r, bool c) => (float[N,S,16] z) <{ROW}> {{
      z = If (c) <
        then_branch = a () => (y) {{ y = com.microsoft.SkipLayerNormalization (x, r, s, b) }},
        else_branch = d () => (y) {{
          sum = Mul (x, r)
          y = LayerNormalization (sum, s, b)
        }}
      >
    }}"""
    model = model_of(text)
    made, _ = optimize(model, NO_RULE)
    assert made.graph.node == model.graph.node


@pytest.mark.parametrize("name", NAMES)
def test_files_of_tools_compute_the_same(name: str) -> None:
    """Those of the outlines, on the CPU in float32, where onnxruntime has the operators."""
    model = file(name)
    made, report = optimize(model)
    assert report.applied
    given = inputs(model)
    for before, after in zip(run(model, given), run(made, given), strict=True):
        np.testing.assert_allclose(after, before, rtol=0, atol=5e-5 * np.abs(before).max())
