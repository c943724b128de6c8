"""`python -m bench.speed`: what it adds to `onnxfuse bench`, on the CPU."""

from io import StringIO
from pathlib import Path
from typing import Any

import onnx
import pytest
from rich.console import Console
from rich.table import Table

import models
from bench import rivals
from bench.launches import kernels_of
from bench.speed import add_row, compare
from models import vision
from onnxfuse.support.errors import DeviceError
from tests.models import small


def test_the_row_of_a_model() -> None:
    """One row: the settings of the original, the fused model's time; no launches without a GPU."""
    found = compare("mlp", "float32", 4, 1, providers=["CPUExecutionProvider"])
    assert found.kernels == (None, None)
    assert found.unoptimized == "no type of model that it knows"
    table = Table(*"abcdefghi")
    best = min(found.medians.values())
    add_row(table, "mlp", found, {"compile": 3 * best})
    shown = StringIO()
    Console(width=200, file=shown).print(table)
    text = shown.getvalue()
    fused = found.fused.p50
    assert f"default {found.medians['default']:.0f}" in text
    assert f"{best / fused:.2f}x" in text
    assert f"{3 * best / fused:.2f}x" in text
    assert "? -> ?" in text


def test_transformers_optimizer_is_a_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it knows the architecture, its model runs in the same race, and its times are among ORT's."""
    for name in ("bert_base", "gpt2"):
        monkeypatch.setitem(models.ARCHITECTURES, name, models.architecture(name, **small.SIZES[name]))
    found = compare("bert_base", "float32", 2, 8, providers=["CPUExecutionProvider"])
    assert found.unoptimized is None
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


def test_transformers_optimizer_knows_a_bert_in_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models.ARCHITECTURES, "minilm", models.architecture("minilm", layers=1))
    onnx.save(models.build("minilm", batch=2, sequence=8), tmp_path / "a.onnx")
    assert rivals.optimized(tmp_path / "a.onnx", "minilm", tmp_path / "b.onnx") is None
    assert any(n.op_type == "SkipLayerNormalization" for n in onnx.load(tmp_path / "b.onnx").graph.node)


def test_a_rival_that_cannot_run_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a part of it, say: a race without it would say too much."""

    def broken(*_: object, **__: Any) -> None:
        raise ImportError("no symbolic_shape_infer")

    monkeypatch.setattr("onnxruntime.transformers.optimizer.optimize_model", broken)
    with pytest.raises(ImportError):
        rivals.optimized(tmp_path / "a.onnx", "bert_base", tmp_path / "b.onnx")


def test_torch_compile_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The torch twins run under torch.compile, that of another package too; images in both layouts."""
    pytest.importorskip("torch", reason="torch is not installed (extra `export`)")
    pytest.importorskip("transformers", reason="transformers is not installed (extra `export`)")
    from models import export

    monkeypatch.setattr(rivals, "TWINS", {"vit_b_16": ("onnx", "not_installed")})  # any package that is there
    monkeypatch.setattr(vision, "SOURCES", ("onnx",))
    monkeypatch.setattr(vision, "side", lambda name: small.SIZES["vit_b_16"]["image"])
    monkeypatch.setattr(vision, "torch_model", lambda name: export.torch_model("vit_b_16"))
    of_images = {f"{who}compile{layout}" for who in ("", "onnx, ") for layout in ("", ", channels_last")}
    for name, settings in (("gpt2", {"compile"}), ("vit_b_16", of_images)):
        monkeypatch.setitem(models.ARCHITECTURES, name, models.architecture(name, **small.SIZES[name]))
        times = rivals.compiled(name, "float32", 2, 8, device="cpu", runs=1, rounds=2, backend="eager")
        assert set(times) == settings
        assert min(times.values()) > 0
    monkeypatch.setattr(rivals, "INSTEAD", {"vit_b_16"})
    happened: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        happened.append("compiled")
        return graph.forward

    times = rivals.compiled(
        "vit_b_16", "float32", 2, 8, device="cpu", runs=1, rounds=2, turn=lambda: happened.append("turn"),
        backend=backend,
    )  # fmt: skip
    assert set(times) == {name for name in of_images if name.startswith("onnx")}
    assert happened[-1] == "turn"  # all is compiled by then
    assert happened.count("turn") == 1


def test_sdpa_is_given_no_mask_that_the_model_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under torch.compile attention reads the mask among the model's inputs or none, and computes the same."""
    torch = pytest.importorskip("torch", reason="torch is not installed (extra `export`)")
    pytest.importorskip("transformers", reason="transformers is not installed (extra `export`)")
    from models import export

    given: list[bool] = []

    def look(graph: Any, _: Any) -> Any:
        calls = [n for n in graph.graph.nodes if "scaled_dot_product_attention" in str(n.target)]
        given.extend(n.kwargs["attn_mask"] is not None for n in calls)
        return graph.forward

    for name, layers, masked in (("vit_b_16", 1, False), ("gpt2", 1, False), ("bert_base", 1, True)):
        module = export.torch_model(name, **{**small.SIZES[name], "layers": layers})
        feeds = models.example_inputs(name, batch=2, sequence=8, dtype="float32", **small.SIZES[name])
        inputs = [torch.from_numpy(values) for values in feeds.values()]
        with torch.inference_mode():
            before = _first(module(*inputs))
            rivals.by_sdpa(module, masked="attention_mask" in feeds)
            after = _first(torch.compile(module, backend=look)(*inputs))
        assert given == [masked] * layers, name
        given.clear()
        torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)


def test_convolution_nets_have_no_attention_to_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of transformers that knows no SDPA is timed as it is."""
    pytest.importorskip("torch", reason="torch is not installed (extra `export`)")
    pytest.importorskip("transformers", reason="transformers is not installed (extra `export`)")
    monkeypatch.setitem(models.ARCHITECTURES, "resnet50", models.architecture("resnet50", **small.SIZES["resnet50"]))
    assert rivals.compiled("resnet50", "float32", 2, 8, device="cpu", runs=1, rounds=2, backend="eager")


def _first(outputs: Any) -> Any:
    return outputs[0] if isinstance(outputs, tuple) else outputs


def test_why_torch_compile_was_not_timed() -> None:
    """Without a GPU the reason is told, not a number."""
    torch = pytest.importorskip("torch", reason="torch is not installed (extra `export`)")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    found = rivals.compiled_apart("mlp", "float32", 4, 1)
    assert isinstance(found, str)
    assert found


def test_why_kernels_are_not_seen(tmp_path: Path) -> None:
    """The process of its own says what is missing, and the error where."""
    torch = pytest.importorskip("torch", reason="torch is not installed (extra `export`)")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    onnx.save(models.build("mlp", batch=2, hidden=4), tmp_path / "mlp.onnx")
    with pytest.raises(DeviceError, match=r"the kernels of mlp\.onnx cannot be seen: "):
        kernels_of(tmp_path / "mlp.onnx", models.example_inputs("mlp", batch=2, hidden=4), fused=False)
