"""`onnxfuse explain`: what fuses, what does not, where the furthest attempt stopped and why."""

import json
from pathlib import Path

import onnx
import pytest

from tests.cli.conftest import Command


@pytest.mark.usefixtures("folder")
def test_what_fused_is_told_with_where_it_stopped(onnxfuse_command: Command) -> None:
    """The verdict first, then each fusion with its nodes."""
    result = onnxfuse_command("explain", "in.onnx")
    assert result.code == 0
    assert result.out.splitlines()[0].startswith("2 fusions: 6 nodes -> 4")
    assert "linear" in result.out
    assert "MatMul" in result.out


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
    assert "a value is a graph output" in result.out
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


def test_one_screen_unless_all_is_asked_for(folder: Path, onnxfuse_command: Command) -> None:
    """Long tables are cut with the number of what is left out; --all shows it."""
    chains = [[f"v{i}_{k} = Neg ({f'v{i}_{k - 1}' if k else f'x{i}'})" for k in range(i + 2)] for i in range(30)]
    inputs = ", ".join(f"float[{i + 1},4] x{i}" for i in range(30))
    outputs = ", ".join(f"float[{i + 1},4] v{i}_{i + 1}" for i in range(30))
    nodes = " ".join(node for chain in chains for node in chain)
    text = f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => ({outputs}) {{ {nodes} }}'
    onnx.save(onnx.parser.parse_model(text), folder / "long.onnx")
    short, everything = (onnxfuse_command("explain", "long.onnx", *more).out for more in ((), ("--all",)))
    assert "30 fusions" in short
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
