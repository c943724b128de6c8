"""Image models by name: what torchvision, timm and the U-Net become in a file, and how the speed command takes them."""

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfuse
from bench.speed import write
from models import vision
from onnxfuse.support.errors import UsageError
from tests.models import small

torch = pytest.importorskip("torch", reason="torch is not installed (extra `export`)")


def test_the_u_net_is_exported_and_fuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skips are joined in place by the resizing, a kernel as pooling is, or read beside it; the numbers stay."""
    monkeypatch.setitem(vision.SIDES, "unet", 32)
    feeds = write("unet", "float32", 2, 1, tmp_path / "a.onnx")
    model = onnx.load(tmp_path / "a.onnx")
    assert {k: v.shape for k, v in feeds.items()} == {"image": (2, 3, 32, 32)}
    assert sum(n.op_type == "Concat" for n in model.graph.node) == 4
    made = onnxfuse.optimize(model)
    fused = [n.op_type.rpartition("_")[0] for n in made.graph.node]
    assert (fused.count("Concat_ResizeConcat1"), fused.count("Resize"), fused.count("Pool_MaxPool")) == (3, 1, 4)
    assert not {n.op_type for n in made.graph.node} & {"Concat", "Resize", "Conv"}
    expected = small.run(model, feeds)[0]
    np.testing.assert_allclose(small.run(made, feeds)[0], expected, atol=1e-4 * np.abs(expected).max())


def test_torchvision_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are drawn from the seed, so that two exports are one model."""
    pytest.importorskip("torchvision", reason="torchvision is not installed")
    name = "torchvision:squeezenet1_1"
    monkeypatch.setitem(vision.SIDES, name, 64)
    for file in ("a", "b"):
        vision.export(name, tmp_path / file, dtype="float32", batch=1)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with pytest.raises(UsageError, match="torchvision:squeezenet9"):
        vision.torch_model("torchvision:squeezenet9")


def test_a_file_is_timed_as_it_is(tmp_path: Path) -> None:
    """Open dimensions take the batch."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N,4] x) => (float[N,4] y) { y = Relu (x) }'
    )
    onnx.save(model, tmp_path / "mine.onnx")
    feeds = write(str(tmp_path / "mine.onnx"), "float32", 5, 1, tmp_path / "copy.onnx")
    assert feeds["x"].shape == (5, 4)
    assert onnx.load(tmp_path / "copy.onnx").graph.node[0].op_type == "Relu"


def test_a_family_is_a_name_that_is_known() -> None:
    """Ten and more, each once."""
    assert len(set(vision.TEMPLATES)) == len(vision.TEMPLATES) >= 10
    assert all(vision.is_vision(name) for name in vision.TEMPLATES)
    assert not vision.is_vision("bert_base")
