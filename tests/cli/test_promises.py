"""Commands keep their word: what is written opens, a rule that fails is named, a mark holds everywhere."""

import json
from pathlib import Path

import onnx
import pytest

import onnxfuse
from onnxfuse.model.fused import DOMAIN, fused_ops
from onnxfuse.model.tf32 import set_strict_fp32
from onnxfuse.passes import pipeline
from onnxfuse.runtime.sessions.opening import refusal
from tests.cli.conftest import MODEL, Command
from tests.support.small import assert_same_numbers

WEIGHT = ",".join(str(i % 13 - 6) for i in range(64))

TWO_PRODUCTS = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,16,8] x, int64 n) => (float[N,16,8] y)
<float[8,8] v = {WEIGHT}, float[8,8] w = {WEIGHT}, bool c = {1}> {
  m = MatMul (x, v)
  a = Relu (m)
  p = MatMul (a, w)
  r = Relu (p)
  y = Loop (n, c, r) <body = b (int64 i, bool d, float[N,16,8] s) => (bool e, float[N,16,8] t) {
    e = Identity (d)
    u = MatMul (s, w)
    t = Relu (u)
  }>
}""".replace("WEIGHT", WEIGHT)
"""No node has a name, and two weights are turned for their kernels, one of them in the main graph and in a loop."""


LAYERS = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,3,16,16] x) => (float[N,32,16,16] y) <float[32,3,3,3] v = {FIRST}, float[32,32,3,3] w = {SECOND}> {
  c = Conv <pads = [1,1,1,1]> (x, v)
  a = Relu (c)
  d = Conv <pads = [1,1,1,1]> (a, w)
  y = Relu (d)
}"""
for name, size in (("FIRST", 864), ("SECOND", 9216)):
    LAYERS = LAYERS.replace(name, ",".join(str(i % 13 - 6) for i in range(size)))
"""The kernel of the second one rounds float32."""


@pytest.mark.parametrize("way", ["command", "Python"])
def test_what_undo_writes_opens(folder: Path, onnxfuse_command: Command, way: str) -> None:
    """It has no name twice, and each weight has its own axes again: as many nodes as there were."""
    onnx.save(onnx.parser.parse_model(TWO_PRODUCTS), folder / "two.onnx")
    assert onnxfuse_command("optimize", "two.onnx", "fused.onnx").code == 0
    fused = onnx.load(folder / "fused.onnx")
    assert sum(t.name.endswith(".terms_last") for t in fused.graph.initializer) == 2
    if way == "command":
        assert onnxfuse_command("optimize", "--undo", "fused.onnx", "plain.onnx").code == 0
        plain = onnx.load(folder / "plain.onnx")
    else:
        plain = onnxfuse.unfuse(fused)
    assert refusal(plain) is None
    assert pipeline.count_ops(plain) == pipeline.count_ops(onnx.load(folder / "two.onnx"))
    assert_same_numbers(onnx.load(folder / "two.onnx"), plain)


def test_files_are_read_whatever_their_ops_are_called(folder: Path, onnxfuse_command: Command) -> None:
    """A file of an older version, whose ops were called by their operators alone: it opens, is verified and undone."""
    assert onnxfuse_command("optimize", "in.onnx", "fused.onnx").code == 0
    model = onnx.load(folder / "fused.onnx")
    new = list(fused_ops(model))
    old = {name: f"MatMulAddOnce_{name.rpartition('_')[2]}" for name in new}
    for function in (f for f in model.functions if f.domain == DOMAIN):
        function.name = old[function.name]
    for node in (n for n in model.graph.node if n.domain == DOMAIN):
        node.op_type = old[node.op_type]
    onnx.save(model, folder / "old.onnx")
    assert {op.op for op in onnxfuse.session(folder / "old.onnx").fused} == set(old.values())
    assert onnxfuse_command("verify", "in.onnx", "old.onnx").code == 0
    assert onnxfuse_command("optimize", "old.onnx", "again.onnx").code == 0
    assert list(fused_ops(onnx.load(folder / "again.onnx"))) == list(old.values())
    assert onnxfuse_command("optimize", "--undo", "old.onnx", "plain.onnx").code == 0
    plain = onnx.load(folder / "plain.onnx")
    assert pipeline.count_ops(plain) == pipeline.count_ops(onnx.load(folder / "in.onnx"))
    assert_same_numbers(onnx.load(folder / "in.onnx"), plain)


def test_what_onnx_runtime_does_not_open_is_not_written(
    folder: Path, onnxfuse_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Undoing that leaves nodes of one name is our fault: told as that, and no file is left."""
    onnxfuse_command("optimize", "in.onnx", "fused.onnx")

    def twice(model: onnx.ModelProto, only: object = None) -> int:
        model.graph.node.extend(onnx.helper.make_node("Abs", ["x"], [name], "same") for name in ("one", "two"))
        return 1

    monkeypatch.setattr("onnxfuse.api.optimize.optimizing.unfuse", twice)
    done = onnxfuse_command("optimize", "--undo", "fused.onnx", "plain.onnx")
    assert (done.code, done.out, (folder / "plain.onnx").exists()) == (3, "", False)
    assert "two nodes with same node name" in done.err
    assert "the fault is onnxfuse's" in done.err


def test_guard_takes_inputs_without_axes(folder: Path, onnxfuse_command: Command) -> None:
    """A scalar input has a shape without numbers."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[N,8] x, float s) => (float[N,8] y) {
      a = Mul (x, s) b = Exp (a) y = Relu (b) }"""
    onnx.save(onnx.parser.parse_model(text), folder / "scaled.onnx")
    done = onnxfuse_command("optimize", "scaled.onnx", "out.onnx", "--guard")
    assert done.code == 0, done.err
    assert "1 window with 1 fused op checked, 0 reverted" in done.out


def test_weights_among_the_inputs_are_told_and_frozen(folder: Path, onnxfuse_command: Command) -> None:
    """A caller may replace them, so no rule takes them for constants: one line says so, and the option changes it."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[N,8,8] x, float[8,8] w) => (float[N,8,8] y)
      <float[8,8] w = {WEIGHT}> { m = MatMul (x, w) y = Relu (m) }""".replace("WEIGHT", WEIGHT)
    onnx.save(onnx.parser.parse_model(text), folder / "w.onnx")
    note = "weights that are graph inputs, too (1, as 'w'), may be replaced by a caller"
    for call in (("optimize", "w.onnx", "out.onnx"), ("explain", "w.onnx")):
        assert note in onnxfuse_command(*call).out
    with pytest.warns(UserWarning, match="--freeze-initializers"):
        assert len(onnxfuse.optimize(folder / "w.onnx").graph.input) == 2
    done = onnxfuse_command("optimize", "w.onnx", "out.onnx", "--freeze-initializers")
    assert note not in done.out
    frozen = onnx.load(folder / "out.onnx")
    assert [i.name for i in frozen.graph.input] == ["x"]
    assert [n.domain for n in frozen.graph.node] == [DOMAIN]
    made = onnxfuse.optimize(folder / "w.onnx", freeze_initializers=True)
    assert made.SerializeToString(deterministic=True) == frozen.SerializeToString(deterministic=True)
    config = "[[model]]\npath = 'w.onnx'\nfreeze_initializers = true\nrequire.gemm = 1\nprovider = 'cpu'\n"
    (folder / "onnxfuse.toml").write_text(config)
    assert onnxfuse_command("ci").code == 0


HALVES = """summary = "A type that does not fit."
[[rewrite]]
from = '''(x) => (y) { y = Sinh (x) }'''
to = '''(x) => (y) { h = Cast <to = 10> (x) y = Cosh (h) }'''
"""


@pytest.mark.parametrize("call", [("optimize", "in.onnx", "out.onnx"), ("explain", "in.onnx")])
def test_a_rule_of_the_users_that_makes_an_invalid_model_is_named(
    folder: Path, onnxfuse_command: Command, call: tuple[str, ...]
) -> None:
    """Exit 2: the file with the rule, and what is wrong with what it made; never the model's fault."""
    onnx.save(onnx.parser.parse_model(MODEL.replace("Relu", "Sinh")), folder / "in.onnx")
    (folder / "mine").mkdir()
    (folder / "mine" / "halves.toml").write_text(HALVES)
    done = onnxfuse_command(*call, "--rules", "mine")
    assert (done.code, done.out, (folder / "out.onnx").exists()) == (2, "", False)
    assert "mine/halves.toml: the rule 'halves' changes the type of 'a'" in done.err


def test_a_strict_file_is_strict_for_every_command(folder: Path, onnxfuse_command: Command) -> None:
    """Its mark decides wherever rules are applied: no kernel that rounds, whoever asks."""
    strict = onnx.parser.parse_model(LAYERS)
    onnx.save(strict, folder / "plain.onnx")
    set_strict_fp32(strict)
    onnx.save(strict, folder / "strict.onnx")
    applied = {}
    for name in ("plain", "strict"):
        facts = json.loads(onnxfuse_command("explain", f"{name}.onnx", "--json").out)
        applied[name] = {a["rule"] for a in facts["applied"]}
        (folder / "onnxfuse.toml").write_text(f"[[model]]\npath = '{name}.onnx'\nverify = false\n")
        told = json.loads(onnxfuse_command("ci", "--json").out)["models"][0]["optimize"]
        assert set(told["rules"]) == applied[name]
        assert {op.rule for op in fused_ops(onnxfuse.optimize(folder / f"{name}.onnx")).values()} <= applied[name]
    assert "narrow" in applied["plain"]
    assert "narrow" not in applied["strict"]
