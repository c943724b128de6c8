"""`onnxfuse inspect`: what a model is, without running it."""

import json
from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper

from onnxfuse.files import external
from tests.cli.conftest import Command


def test_a_model_is_told_on_one_screen(folder: Path, onnxfuse_command: Command) -> None:
    """Sizes, interface, dynamic dimensions, weights by type, operators, and of a fused file what is fused."""
    plain = onnxfuse_command("inspect", "in.onnx")
    assert plain.code == 0
    lines = plain.out.splitlines()
    assert lines[0] == "in.onnx: 6 nodes, including 0 fused ops; 0.4 kB"
    assert lines[1] == "IR 8; opset 17"
    assert lines[2:] == [
        "input x: float32 [N, 2]",
        "input r: float32 [N, 3]",
        "output y: float32 [N, 3]",
        "dynamic dimensions: N",
        "weights float32: 4 tensors, 21 elements, 0.1 kB",
        "operators: 2 MatMul, 2 Add, 1 Relu, 1 LayerNormalization",
    ]
    onnxfuse_command("optimize", "in.onnx", "out.onnx", "--strict-fp32")
    told = onnxfuse_command("inspect", "out.onnx").out
    assert told.startswith("out.onnx: 4 nodes, including 2 fused ops;")
    assert "strict float32" in told
    assert "Add + Relu + Add" in told
    assert "operators: 2 MatMul\n" in told


def test_the_facts_are_there_for_scripts(
    folder: Path, onnxfuse_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights in other files are counted without being read; what is fused names its rule."""
    monkeypatch.setattr(external, "SMALL", 0)  # these weights are
    made = onnx.load(folder / "in.onnx")
    for tensor in made.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    onnx.save(made, folder / "apart.onnx", save_as_external_data=True, location="apart.weights", size_threshold=0)
    facts = json.loads(onnxfuse_command("inspect", "apart.onnx", "--json").out)
    assert (facts["external_bytes"], facts["fused"], facts["precision"]) == (21 * 4, [], "")
    assert facts["missing"] == []
    onnxfuse_command("optimize", "apart.onnx", "out.onnx")
    (folder / next(p.name for p in folder.glob("out.onnx.*.data"))).unlink()
    facts = json.loads(onnxfuse_command("inspect", "out.onnx", "--json").out)
    assert len(facts["missing"]) == 1
    assert f"missing: {facts['missing'][0]}, which holds its weights" in onnxfuse_command("inspect", "out.onnx").out
    assert [(one["rule"], one["nodes"], one["made_of"]) for one in facts["fused"]] == [
        ("layer_norm", 1, ["LayerNormalization"]),
        ("linear", 1, ["Add", "Relu", "Add"]),
    ]
    assert facts["weights"][0] | {"bytes": 0} == {"type": "float32", "count": 4, "elements": 21, "bytes": 0}
    assert onnxfuse_command("inspect", "nowhere.onnx").code == 3
