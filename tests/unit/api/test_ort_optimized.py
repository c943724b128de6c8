"""Models that ONNX Runtime has optimized before: recognized, and said so where rules no longer match."""

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


def test_lost_fusions_of_an_optimized_file_are_explained(export: Path) -> None:
    """At the extended level attention hides in FusedMatMul: a note names it and says what helps."""
    report = explain(export.with_name("EXTENDED.onnx")).report
    assert "attention" not in report.by_rule()
    (note,) = [n for n in report.notes if "already optimized" in n]
    assert "left as they are: 1 FusedGemm, 1 FusedMatMul. " in note
    assert note.endswith("Optimize the original export instead")


@pytest.mark.parametrize("name", ["export.onnx", "BASIC.onnx"])
def test_an_export_gets_no_such_note(export: Path, name: str) -> None:
    """Nor does the basic level, which writes the operators of exports: attention is found."""
    report = explain(export.with_name(name)).report
    assert report.by_rule()["attention"] == 1
    assert not [n for n in report.notes if "already optimized" in n]


def test_what_our_fusions_contain_is_no_ort_fusion(export: Path, tmp_path: Path) -> None:
    """An optimized file, optimized again, has fused ops of ours alone."""
    onnx.save(onnxfuse.optimize(export), tmp_path / "fused.onnx")
    assert not [n for n in explain(tmp_path / "fused.onnx").report.notes if "already optimized" in n]
