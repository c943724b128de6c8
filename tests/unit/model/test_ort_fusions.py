"""Models that ONNX Runtime has optimized before: fused like the export, and said where that cannot be."""

from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest

import models
import onnxfuse
from onnxfuse.explanation.explaining import explain

SMALL: dict[str, Any] = {"layers": 1, "hidden": 64, "heads": 2, "intermediate": 128, "vocabulary": 97, "positions": 40}


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT, as exported, and beside it as ONNX Runtime's levels write it."""
    folder = tmp_path_factory.mktemp("models")
    onnx.save(models.build("bert_base", **SMALL), folder / "export.onnx")
    for level in ("BASIC", "EXTENDED"):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
        options.optimized_model_filepath = str(folder / f"{level}.onnx")
        onnxruntime.InferenceSession(folder / "export.onnx", options, providers=["CPUExecutionProvider"])
    return folder / "export.onnx"


def test_a_file_of_the_extended_level_fuses_like_the_export(export: Path) -> None:
    """FusedMatMul, BiasGelu and FusedGemm are read as the nodes that they stand for."""
    file = export.with_name("EXTENDED.onnx")
    assert {"FusedMatMul", "BiasGelu", "FusedGemm"} <= {n.op_type for n in onnx.load(file).graph.node}
    found, plain = (explain(one) for one in (file, export))
    assert found.report.by_rule()["attention"] == 1
    kernels = [sorted(a.rule for a in one.report.applied if a.op) for one in (found, plain)]
    assert kernels[0] == kernels[1]


def test_a_layout_of_the_cpu_is_said(tmp_path: Path) -> None:
    """ALL of the CPU provider writes convolutions of blocks of channels, which nothing else runs."""
    onnx.save(models.build("resnet50", stages=(1,), width=16, image=32, classes=8), tmp_path / "export.onnx")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath, options.log_severity_level = str(tmp_path / "all.onnx"), 3
    onnxruntime.InferenceSession(tmp_path / "export.onnx", options, providers=["CPUExecutionProvider"])
    (note,) = [n for n in explain(tmp_path / "all.onnx").report.notes if "already optimized" in n]
    assert "left as they are: " in note
    assert " Conv" in note
    assert note.endswith("Optimize the original export instead")


@pytest.mark.parametrize("name", ["export.onnx", "BASIC.onnx", "EXTENDED.onnx"])
def test_what_fuses_gets_no_such_note(export: Path, name: str) -> None:
    """Nor do files of which nothing is left: attention is found."""
    report = explain(export.with_name(name)).report
    assert report.by_rule()["attention"] == 1
    assert not [n for n in report.notes if "already optimized" in n]


def test_what_our_fusions_contain_is_no_ort_fusion(export: Path, tmp_path: Path) -> None:
    """An optimized file, optimized again, has fused ops of ours alone."""
    onnx.save(onnxfuse.optimize(export), tmp_path / "fused.onnx")
    assert not [n for n in explain(tmp_path / "fused.onnx").report.notes if "already optimized" in n]
