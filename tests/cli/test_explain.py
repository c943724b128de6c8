"""`onnxfuse explain`: what fuses, what does not, where the furthest attempt stopped and why."""

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.support.errors import ModelError
from tests.cli.conftest import Command


@pytest.mark.usefixtures("folder")
def test_what_fused_is_told_with_where_it_stopped(onnxfuse_command: Command) -> None:
    """The verdict first, then each fusion with its nodes."""
    result = onnxfuse_command("explain", "in.onnx")
    assert result.code == 0
    assert result.out.splitlines()[0].startswith("fuses: 6 nodes -> 4, including 2 fused ops")
    assert "linear" in result.out
    assert "MatMul" in result.out


def test_a_node_that_a_rule_took_is_not_listed_as_not_fused(folder: Path, onnxfuse_command: Command) -> None:
    """Each node that is left stands in one row, the most expensive first, whatever other rules tried on fused nodes."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[64,512] x, float[4,8,8] s) => (float[64,512] y, float[4] t)
    <float[512,512] w> { [product] h = MatMul (x, w) [act] y = Relu (h) [small] t = Det (s) }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((512, 512), np.float32), "w"))
    onnx.save(model, folder / "taken.onnx")
    lines = onnxfuse_command("explain", "taken.onnx").out.splitlines()
    assert lines[0] == "fuses: 3 nodes -> 2, including 1 fused op"
    rows = lines[lines.index("") + 1 : lines.index("", 2)]
    assert rows[0].split() == ["not", "fused", "launches", "MB", "share", "because"]
    assert [row.split()[:2] for row in rows[1:-1]] == [["1", "Det"]]
    assert "near misses" not in lines[0]
    facts = json.loads(onnxfuse_command("explain", "taken.onnx", "--json").out)
    assert [kind["at"] for kind in facts["left"]["kinds"]] == ["small"]


def test_without_an_estimate_what_is_left_is_counted(
    folder: Path, onnxfuse_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model whose shapes cannot be inferred: why, and the nodes with their reasons all the same."""

    def refuse(model: onnx.ModelProto) -> None:
        raise ModelError("no shapes")

    monkeypatch.setattr("onnxfuse.measure.profile.remaining_ops.costs", refuse)
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[4,8,8] x) => (float[4] y)
    { y = Det (x) }"""
    onnx.save(onnx.parser.parse_model(text), folder / "odd.onnx")
    out = onnxfuse_command("explain", "odd.onnx").out
    assert "costs cannot be estimated: no shapes" in out
    assert "1 Det" in {" ".join(line.split()[:2]) for line in out.splitlines()}
    assert "share: " not in out


@pytest.mark.usefixtures("folder")
def test_one_rule_alone_can_be_looked_at(onnxfuse_command: Command) -> None:
    """Its own near misses, and nobody else's."""
    facts = json.loads(onnxfuse_command("explain", "in.onnx", "--rule", "linear", "--json").out)
    assert {a["rule"] for a in facts["applied"]} == {"linear"}
    (applied,) = facts["applied"]
    assert applied["nodes"] == ["MatMul product", "Add bias", "Relu act", "Add residual"]
    assert {"node": "second", "reason": "MatMul is not pointwise"} in applied["stops"]


def test_what_did_not_fuse_is_told_with_node_and_reason(folder: Path, onnxfuse_command: Command) -> None:
    """The node at which the furthest attempt stopped, in words that say what the rule wanted."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[N,1,2,2] x) => (float[N,2,2,2] y, float[N,2,2,2] c)
    <float[2,1,1,1] w = {1,2}, float[2] s = {1,2}, float[2] b = {1,2}, float[2] m = {1,2}, float[2] v = {1,2}> {
      [conv] c = Conv (x, w) [bn] y = BatchNormalization (c, s, b, m, v)
    }"""
    onnx.save(onnx.parser.parse_model(text), folder / "near.onnx")
    result = onnxfuse_command("explain", "near.onnx", "--rule", "batchnorm")
    assert "conv" in result.out
    assert "value 'c' is a graph output" in result.out
    facts = json.loads(onnxfuse_command("explain", "near.onnx", "--rule", "batchnorm", "--json").out)
    assert [(n["root"], n["node"], n["reason"]) for n in facts["near"]] == [
        ("BatchNormalization bn", "conv", "value 'c' is a graph output")
    ]


def test_nothing_is_written(folder: Path, onnxfuse_command: Command) -> None:
    """The model and its folder stay as they are."""
    before = (folder / "in.onnx").read_bytes()
    onnxfuse_command("explain", "in.onnx")
    assert (folder / "in.onnx").read_bytes() == before
    assert [p.name for p in folder.iterdir()] == ["in.onnx"]


def test_a_model_comes_through_standard_input(
    folder: Path, onnxfuse_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`-` is the model, as for optimize; the report is that of the file."""
    with (folder / "in.onnx").open() as model:
        monkeypatch.setattr(sys, "stdin", model)
        streamed = onnxfuse_command("explain", "-")
    assert (streamed.code, streamed.out) == (0, onnxfuse_command("explain", "in.onnx").out)


def test_a_fused_file_is_described_first(folder: Path, onnxfuse_command: Command) -> None:
    """What it holds, each fused op counted as in every other command, and the version that made it."""
    layers = " ".join(f"a{i} = Exp (x{i}) y{i} = Neg (a{i})" for i in range(3))
    inputs, outputs = (", ".join(f"float[4,4] {name}{i}" for i in range(3)) for name in "xy")
    text = f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => ({outputs}) {{ {layers} }}'
    onnx.save(onnx.parser.parse_model(text), folder / "equal.onnx")
    written = onnxfuse_command("optimize", "equal.onnx", "out.onnx").out.splitlines()[0]
    assert written == "fused: 6 nodes -> 3, including 3 fused ops (1 distinct)"
    assert onnxfuse_command("explain", "equal.onnx").out.splitlines()[0] == written.replace("fused:", "fuses:")
    verdict = onnxfuse_command("explain", "out.onnx").out.splitlines()[0]
    assert verdict == (
        f"already fused: 3 nodes, including 3 fused ops (1 distinct), made by onnxfuse {onnxfuse.__version__}; "
        "nothing more to fuse"
    )
    assert "3 nodes, including 3 fused ops (1 distinct);" in onnxfuse_command("inspect", "out.onnx").out
    assert "0 of 3 fused ops (1 distinct) ran as kernels" in onnxfuse_command("verify", "equal.onnx", "out.onnx").out
    session = onnxfuse.session(folder / "out.onnx", providers=["CPUExecutionProvider"])
    assert session.verdict == "session on CPU: 0 of 3 fused ops (1 distinct) run as kernels"


def test_one_screen_unless_all_is_asked_for(folder: Path, onnxfuse_command: Command) -> None:
    """Long tables are cut with the number of what is left out; --all shows it."""
    chains = [[f"v{i}_{k} = Neg ({f'v{i}_{k - 1}' if k else f'x{i}'})" for k in range(i + 2)] for i in range(30)]
    inputs = ", ".join(f"float[{i + 1},4] x{i}" for i in range(30))
    outputs = ", ".join(f"float[{i + 1},4] v{i}_{i + 1}" for i in range(30))
    nodes = " ".join(node for chain in chains for node in chain)
    text = f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => ({outputs}) {{ {nodes} }}'
    onnx.save(onnx.parser.parse_model(text), folder / "long.onnx")
    short, everything = (onnxfuse_command("explain", "long.onnx", *more).out for more in ((), ("--all",)))
    assert "fuses: 495 nodes -> 30, including 30 fused ops" in " ".join(short.split())
    assert "... and 18 more rows: --all" in short
    assert len(short.splitlines()) <= 40
    assert everything.count("Neg + Neg") >= 30


def test_equal_fusions_are_one_row(folder: Path, onnxfuse_command: Command) -> None:
    """Twelve layers read as one line with the number 12."""
    text = " ".join(f"a{i} = Exp (x{i}) y{i} = Neg (a{i})" for i in range(12))
    values = [", ".join(f"float[{i + 1},4] {name}{i}" for i in range(12)) for name in "xy"]
    text = f'<ir_version: 8, opset_import: ["" : 17]> g ({values[0]}) => ({values[1]}) {{ {text} }}'
    onnx.save(onnx.parser.parse_model(text), folder / "layers.onnx")
    rows = [line.split() for line in onnxfuse_command("explain", "layers.onnx").out.splitlines() if "Exp + Neg" in line]
    assert [row[:2] for row in rows] == [["12", "pointwise"]]


@pytest.mark.usefixtures("folder")
def test_a_name_that_is_no_rule_is_exit_2(onnxfuse_command: Command) -> None:
    """With the nearest one."""
    result = onnxfuse_command("explain", "in.onnx", "--rule", "liner")
    assert result.code == 2
    assert "Did you mean linear?" in result.err


SCALED = """<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x, float[2,3] r) => (float[2,3] y, float[2,3] z)
<float three = {3}, float zero = {0}, float five = {5}, float six = {6}> {
  [a] a = Add (x, three) [c] c = Clip (a, zero, five) [m] m = Mul (x, c) [d] y = Div (m, six)
  [a2] a2 = Add (r, three) [c2] c2 = Clip (a2, zero, five) [m2] m2 = Mul (r, c2) [d2] z = Div (m2, six)
}"""
"""Nearly HardSwish, twice: it clips at 5."""

HARD_SWISH = '''summary = "HardSwish."
[[rewrite]]
from = """(x) => (y) {
  three = Constant <value = float {3.0}> () a = Add (x, three)
  low = Constant <value = float {0.0}> () high = Constant <value = float {6.0}> () c = Clip (a, low, high)
  m = Mul (x, c) six = Constant <value = float {6.0}> () y = Div (m, six)
}"""
to = "(x) => (y) { y = HardSwish (x) }"
'''


@pytest.fixture
def nearly(folder: Path) -> Path:
    """A model that nearly holds HardSwish twice, and the rule for it in the folder `mine`."""
    onnx.save(onnx.parser.parse_model(SCALED), folder / "nearly.onnx")
    (folder / "mine").mkdir()
    (folder / "mine" / "hard_swish.toml").write_text(HARD_SWISH)
    return folder


@pytest.mark.usefixtures("nearly")
def test_a_near_miss_tells_kind_values_and_hint(onnxfuse_command: Command) -> None:
    """The furthest attempt per root: what stopped it, the value seen, the value wanted, what would help."""
    arguments = ("explain", "nearly.onnx", "--rules", "mine", "--rule", "hard_swish", "--json")
    near = json.loads(onnxfuse_command(*arguments).out)["near"]
    assert [(n["root"], n["node"], n["kind"], n["seen"], n["wanted"]) for n in near] == [
        ("Div d", "c", "constant", "5", "6"),
        ("Div d2", "c2", "constant", "5", "6"),
    ]
    # All four nodes stand there; only a value is another one.
    assert all((n["depth"], n["size"]) == (4, 4) and "any number" in n["hint"] for n in near)


@pytest.mark.usefixtures("nearly")
def test_near_ranks_equal_misses_as_one_row(onnxfuse_command: Command) -> None:
    """Two places, one row with the number 2 and the hint."""
    out = onnxfuse_command("explain", "nearly.onnx", "--rules", "mine", "--rule", "hard_swish", "--near").out
    assert out.splitlines()[0] == "2 near misses of 1 kind, nearest first"
    (row,) = [line for line in out.splitlines() if "has the constant 5, the rule wants 6" in line]
    assert row.split()[:2] == ["2", "hard_swish"]


def test_near_leaves_out_what_only_began(folder: Path, onnxfuse_command: Command) -> None:
    """Any Mul begins a gate, any Transpose a convolution: no near miss, and told with --all and --at alone."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2,3,4] x) => (float[4,3,2] y, float[4,3,2] z)
    { t = Transpose <perm = [2,1,0]> (x)  [soft] y = Softmax <axis = 0> (t)  [double] z = Mul (t, t) }"""
    onnx.save(onnx.parser.parse_model(text), folder / "began.onnx")
    rules = [part for name in ("gate", "nhwc_conv", "softmax") for part in ("--rule", name)]
    out = onnxfuse_command("explain", "began.onnx", *rules, "--near").out
    assert "gate" not in out
    assert "nhwc_conv" not in out
    assert "gate" in onnxfuse_command("explain", "began.onnx", *rules, "--near", "--all").out


def test_many_operators_are_counted(folder: Path, onnxfuse_command: Command) -> None:
    """A chain of twenty is told as how many there are of each."""
    chain = "".join(f"v{i + 1} = {('Exp', 'Neg')[i % 2]} (v{i}) " for i in range(20))
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] v0) => (float[2,3] v20) {{ {chain} }}"""
    onnx.save(onnx.parser.parse_model(text), folder / "chain.onnx")
    assert "10 Exp, 10 Neg" in onnxfuse_command("explain", "chain.onnx").out


@pytest.mark.usefixtures("nearly")
def test_at_tells_every_rules_attempt_at_one_node(onnxfuse_command: Command) -> None:
    """A node by its name or by a value that it computes; also what hardly got anywhere, and who took the node."""
    for name in ("d", "y"):
        out = onnxfuse_command("explain", "nearly.onnx", "--rules", "mine", "--at", name).out
        assert out.splitlines()[0].startswith(f"{name}: pointwise took it with Add + Clip + Mul + Div")
        assert "has the constant 5, the rule wants 6" in out
    result = onnxfuse_command("explain", "nearly.onnx", "--at", "nothing_there")
    assert result.code == 2
    assert "has no node and no value called 'nothing_there'" in result.err
    assert onnxfuse_command("explain", "nearly.onnx", "--at", "d", "--near").code == 2


def test_an_attribute_is_told_with_its_values(folder: Path, onnxfuse_command: Command) -> None:
    """The root's own attribute counts as a near miss: the value seen, the value wanted."""
    (folder / "mine").mkdir()
    body = 'from = "(a, b) => (y) { y = Gemm (a, b) }"\nto = "(a, b) => (y) { y = MatMul (a, b) }"\n'
    rule = f'summary = "x."\n[[rewrite]]\n{body}'
    (folder / "mine" / "plain_gemm.toml").write_text(rule)
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x) => (float[2,3] y)
    <float[3,3] w = {1,2,3,4,5,6,7,8,9}> { [fc] y = Gemm <alpha = 0.5> (x, w) }"""
    onnx.save(onnx.parser.parse_model(text), folder / "half.onnx")
    out = onnxfuse_command("explain", "half.onnx", "--rules", "mine", "--rule", "plain_gemm", "--json").out
    (near,) = json.loads(out)["near"]
    assert near["reason"] == "Gemm has alpha = 0.5, the rule wants 1"
    assert (near["kind"], near["subject"], near["seen"], near["wanted"]) == ("attribute", "alpha", "0.5", "1")


def test_a_bad_model_is_exit_3(folder: Path, onnxfuse_command: Command) -> None:
    """With the file's name, also where the mistake shows only in the pipeline."""
    (folder / "bad.onnx").write_bytes(b"no model")
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x) => (float[2,3] y) { y = MatMul (x, x) }'
    onnx.save(onnx.parser.parse_model(text), folder / "shapes.onnx")
    for name in ("bad.onnx", "shapes.onnx", "missing.onnx"):
        result = onnxfuse_command("explain", name)
        assert result.code == 3
        assert name in result.err
