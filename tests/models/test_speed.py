"""`python -m models.speed`: what it adds to `onnxfuse bench`, on the CPU."""

from io import StringIO
from pathlib import Path

import onnx
import pytest
import small
from rich.console import Console
from rich.table import Table

import models
from models import rivals
from models.speed import add_row, compare
from onnxfuse.benchmark import Report


def test_the_row_of_a_model() -> None:
    """One row: the settings of the original, the fused model's time; no launches without a GPU."""
    found = compare("mlp", "float32", 4, 1, providers=["CPUExecutionProvider"])
    assert found.kernels == (None, None)
    assert found.optimizer == "no type of model that it knows"
    table = Table(*"abcdefghi")
    best = min(found.medians.values())
    add_row(table, "mlp", found, {"compile": 3 * best})
    shown = StringIO()
    Console(width=200, file=shown).print(table)
    text = shown.getvalue()
    fused = found.report.blocks[0].best("fused").timing.p50
    assert f"default {found.medians['default']:.0f}" in text
    assert f"{best / fused:.2f}x" in text
    assert f"{3 * best / fused:.2f}x" in text
    assert "? -> ?" in text


def test_transformers_optimizer_is_a_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it knows the architecture, its model runs against the fused one, and its times are among ORT's."""
    for name in ("bert_base", "gpt2"):
        monkeypatch.setitem(models.ARCHITECTURES, name, models.architecture(name, **small.SIZES[name]))
    found = compare("bert_base", "float32", 2, 8, providers=["CPUExecutionProvider"])
    assert isinstance(found.optimizer, Report)
    assert "transformers.optimizer, default" in found.medians


def test_transformers_optimizer_keeps_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it writes has the model's inputs and outputs, and attention ops of its own."""
    monkeypatch.setitem(models.ARCHITECTURES, "bert_base", models.architecture("bert_base", **small.SIZES["bert_base"]))
    model = models.build("bert_base", batch=2, sequence=8)
    onnx.save(model, tmp_path / "a.onnx")
    assert rivals.optimized(tmp_path / "a.onnx", "bert_base", tmp_path / "b.onnx") is None
    made = onnx.load(tmp_path / "b.onnx")
    assert [v.name for v in made.graph.output] == [v.name for v in model.graph.output]
    assert any(n.domain == "com.microsoft" for n in made.graph.node)


def test_torch_compile_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The torch twin runs under torch.compile; images in both layouts."""
    pytest.importorskip("torch", reason="torch is not installed (extra `export`)")
    pytest.importorskip("transformers", reason="transformers is not installed (extra `export`)")
    for name, settings in (("gpt2", {"compile"}), ("vit_b_16", {"compile", "compile, channels_last"})):
        monkeypatch.setitem(models.ARCHITECTURES, name, models.architecture(name, **small.SIZES[name]))
        times = rivals.compiled(name, "float32", 2, 8, device="cpu", runs=1, rounds=2, backend="eager")
        assert set(times) == settings
        assert min(times.values()) > 0


def test_why_torch_compile_was_not_timed() -> None:
    """Without a GPU the reason is told, not a number."""
    torch = pytest.importorskip("torch", reason="torch is not installed (extra `export`)")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    found = rivals.compiled_apart("mlp", "float32", 4, 1)
    assert isinstance(found, str)
    assert found
