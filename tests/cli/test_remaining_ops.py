"""`onnxfuse optimize` ends with what is left: operators before and after, what they cost by estimate, and why."""

import json
from pathlib import Path

import onnx
import pytest

from onnxfuse.cuda import launch_bytes
from onnxfuse.measure.profile.remaining_ops import operators, remaining_ops
from onnxfuse.passes import pipeline
from tests.cli.conftest import Command

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[batch,tokens,64] x, float[64,64] w) => (float[batch,64,tokens] y, float[batch,tokens,64] z)
<int64[3] flat = {0,-1,64}> {
  [product] m = MatMul (x, w)  [act] r = Relu (m)  [gain] s = Mul (r, r)
  [turn] y = Transpose <perm = [0,2,1]> (s)
  [view] v = Reshape (s, flat)  [other] z = Einsum <equation = "abc,cc->abc"> (v, w)
}"""


def test_the_end_tells_operators_and_what_costs_most(folder: Path, onnxfuse_command: Command) -> None:
    """Both tables on the one screen, the sizes that were assumed, and where more of it is told."""
    onnx.save(onnx.parser.parse_model(MODEL), folder / "left.onnx")
    done = onnxfuse_command("optimize", "left.onnx", "out.onnx")
    assert done.code == 0, done.err
    lines = [line.split() for line in done.out.splitlines()]
    assert ["fused", "ops", "0", "1"] in lines
    assert ["Relu", "1", "0"] in lines
    (row,) = [line for line in done.out.splitlines() if line.startswith("1 MatMul ")]
    assert "product: gemm: 'w' is not a constant" in row
    assert "estimated part of the run time at batch=1, tokens=128, from bytes and launches" in done.out
    assert len(lines) <= 30


def test_what_is_left_beyond_three_kinds_is_counted(folder: Path, onnxfuse_command: Command) -> None:
    """The command that shows the rest has the options of the call; the table of that one is whole."""
    lines = onnxfuse_command("optimize", "in.onnx", "out.onnx", "--only", "l2_norm").out.splitlines()
    (rest,) = [line for line in lines if line.startswith("...")]
    assert rest == "... and 1 more kind: onnxfuse explain in.onnx --only l2_norm"
    whole = onnxfuse_command(*rest.split()[6:]).out
    assert all(f"no rule fuses a {op} here" in whole for op in ("MatMul", "LayerNormalization", "Relu"))
    assert "more kind" not in whole


def test_facts_are_counted_from_shapes() -> None:
    """Bytes of inputs and outputs, launches where there are any, shares of the whole, the most expensive first."""
    model = onnx.parser.parse_model(MODEL)
    report = pipeline.run(model)
    found = remaining_ops(model, report)
    assert dict(found.sizes) == {"batch": 1, "tokens": 128}
    kinds = {"".join(k.operators): k for k in found.kinds}
    product = 4 * (128 * 64 + 64 * 64 + 128 * 64)
    for op in ("MatMul", "Einsum"):
        assert (kinds[op].nodes, kinds[op].launches, kinds[op].bytes) == (1, 1, product)
    assert "Reshape" not in kinds
    assert [k.share for k in found.kinds] == sorted((k.share for k in found.kinds), reverse=True)
    launch = launch_bytes()
    fused = 4 * 2 * 128 * 64 + launch
    turned = sum(k.bytes + launch for k in found.kinds if "Transpose" in k.operators)
    whole = 2 * (product + launch) + turned + fused
    assert kinds["MatMul"].share == pytest.approx((product + launch) / whole)
    assert sum(k.share for k in found.kinds) < 1
    assert operators(report)["fused ops"] == (0, 1)


def test_a_large_node_goes_before_a_small_one() -> None:
    """Bytes decide where they are more than a launch's worth."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[4096,4096] x, float[8,8] s) => (float[4096,4096] y,
      float[8,8] t) { [wide] y = MatMul (x, x)  [narrow] t = Einsum <equation = "ab,bb->ab"> (s, s) }"""
    model = onnx.parser.parse_model(text)
    found = remaining_ops(model, pipeline.run(model, []))
    assert [next(iter(k.operators)) for k in found.kinds] == ["MatMul", "Einsum"]
    assert found.kinds[0].share > 0.9
    assert found.kinds[0].at == "wide"


def test_json_has_all_of_it(folder: Path, onnxfuse_command: Command) -> None:
    """Every kind with its reason; nothing of it where the model is undone."""
    onnx.save(onnx.parser.parse_model(MODEL), folder / "left.onnx")
    facts = json.loads(onnxfuse_command("optimize", "left.onnx", "out.onnx", "--json").out)
    assert facts["operators"]["Relu"] == {"before": 1, "after": 0}
    assert {"operators", "nodes", "launches", "bytes", "share", "at", "why"} == set(facts["left"]["kinds"][0])
    undone = json.loads(onnxfuse_command("optimize", "out.onnx", "plain.onnx", "--undo", "--json").out)
    assert "left" not in undone
