"""What holds for every graph, whatever stands around an anchor; the graphs are random, the same on every machine."""

import json

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import onnxfuse
from onnxfuse.model.fused import DOMAIN, fused_ops
from tests.support.random_graphs import ANCHORS, inside_a_branch, models
from tests.support.small import assert_same_numbers, halved, optimize, signed_inputs

every_anchor = pytest.mark.parametrize("anchor", ANCHORS)


@every_anchor
@given(data=st.data())
@settings(max_examples=25)
def test_a_fused_model_computes_the_same(anchor: str, data: st.DataObject) -> None:
    """In plain ONNX Runtime, on the CPU, within the error budget; and again after the fusion is undone."""
    model = data.draw(models(anchor))
    made, _ = optimize(model)
    onnx.checker.check_model(made, full_check=True)
    assert fused_ops(made)
    folded = anchor == "conv_batchnorm"
    assert_same_numbers(model, made, folded=folded)
    assert_same_numbers(model, onnxfuse.unfuse(made), folded=folded)


@every_anchor
@given(data=st.data())
@settings(max_examples=10)
def test_a_model_in_half_precision_computes_the_same(anchor: str, data: st.DataObject) -> None:
    """The same graphs in float16; what ONNX Runtime computes on the CPU is rounded there at every node."""
    model = halved(data.draw(models(anchor)))
    made, _ = optimize(model)
    assert fused_ops(made)
    assert_same_numbers(model, made, folded=anchor == "conv_batchnorm")


@every_anchor
@given(data=st.data())
@settings(max_examples=10)
def test_a_graph_inside_a_branch_computes_the_same(anchor: str, data: st.DataObject) -> None:
    """In an If, where inputs and weights are values of the outer graph; also after the fusion is undone."""
    model = inside_a_branch(data.draw(models(anchor)))
    made, _ = optimize(model)
    onnx.checker.check_model(made, full_check=True)
    assert fused_ops(made)
    plain = onnxfuse.unfuse(made)
    onnx.checker.check_model(plain, full_check=True)
    seed = next(s for s in range(100) if signed_inputs(model, s)["c"])
    assert_same_numbers(model, made, seed, folded=anchor == "conv_batchnorm")
    assert_same_numbers(model, plain, seed, folded=anchor == "conv_batchnorm")
    again, report = optimize(made)
    assert again.SerializeToString(deterministic=True) == made.SerializeToString(deterministic=True)
    assert report.applied == []


@every_anchor
@given(data=st.data())
@settings(max_examples=25)
def test_what_has_a_name_keeps_it(anchor: str, data: st.DataObject) -> None:
    """Inputs, outputs, values between plain nodes; each fused node tells the nodes it replaced, each once."""
    model = data.draw(models(anchor))
    made, _ = optimize(model)
    assert [i.name for i in made.graph.input] == [i.name for i in model.graph.input]
    assert [o.name for o in made.graph.output] == [o.name for o in model.graph.output]
    assert [o.type for o in made.graph.output] == [o.type for o in model.graph.output]
    originals = {n.name: n.op_type for n in model.graph.node}
    plain = [n for n in made.graph.node if n.domain != DOMAIN]
    assert all(originals[n.name] == n.op_type for n in plain)
    replaced = [name for n in made.graph.node if n.domain == DOMAIN for name in _provenance(n) if name]
    assert set(replaced) <= set(originals)
    assert len(replaced) == len(set(replaced))


@every_anchor
@given(data=st.data())
@settings(max_examples=25)
def test_the_second_time_nothing_changes(anchor: str, data: st.DataObject) -> None:
    """An optimized model comes out as it went in, byte for byte; and two runs on one model give the same bytes."""
    model = data.draw(models(anchor))
    once, again = (optimize(model)[0].SerializeToString(deterministic=True) for _ in range(2))
    assert once == again
    twice, report = optimize(onnx.ModelProto.FromString(once))
    assert twice.SerializeToString(deterministic=True) == once
    assert report.applied == []


def test_products_that_are_left_of_many_are_joined_the_first_time() -> None:
    """Keys without a bias, values with one, of two layers: once the values are fused, the keys are two of one input."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 18]>
        layers (float16[2,32,64] y) => (float16[2,32,64] k0, float16[2,32,64] v0, float16[2,32,64] k1,
                                        float16[2,32,64] v1) {
            k0 = MatMul(y, a)
            p0 = MatMul(y, b)
            v0 = Add(p0, c)
            k1 = MatMul(y, d)
            p1 = MatMul(y, e)
            v1 = Add(p1, f)
        }""")
    rng = np.random.default_rng(0)
    for name in "abcdef":
        weight = (rng.standard_normal(64 if name in "cf" else (64, 64)) / 8).astype(np.float16)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    made, report = optimize(model)
    assert sorted(len(a.nodes) for a in report.applied) == [2, 2, 2]
    assert not [near for near in report.near if near.rule == "gemm"]
    once = made.SerializeToString(deterministic=True)
    assert optimize(onnx.ModelProto.FromString(once))[0].SerializeToString(deterministic=True) == once
    assert_same_numbers(model, made)


@given(data=st.data())
@settings(max_examples=20)
def test_a_node_that_did_not_fuse_says_why(data: st.DataObject) -> None:
    """Every elementwise node that is left has its line in the report."""
    model = data.draw(models("pointwise"))
    made, report = optimize(model)
    left = {f"{n.op_type} {n.name}" for n in made.graph.node if n.domain != DOMAIN}
    assert left <= {near.root for near in report.near}


def _provenance(node: onnx.NodeProto) -> list[str]:
    facts = {p.key: p.value for p in node.metadata_props}
    assert facts[f"{DOMAIN}.rule"]
    names: list[str] = json.loads(facts[f"{DOMAIN}.nodes"])
    assert names
    return names
