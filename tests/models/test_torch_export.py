"""The torch.onnx path: the exported file computes what the torch module computes."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxfuse import UsageError
from tests.models import small

torch = pytest.importorskip("torch", reason="torch is not installed (extra `export`)")
pytest.importorskip("transformers", reason="transformers is not installed (extra `export`)")

from models.export import export, torch_model  # noqa: E402 - needs torch

needs_onnxscript = pytest.mark.skipif(
    importlib.util.find_spec("onnxscript") is None, reason="onnxscript is not installed (extra `export`)"
)


def export_and_compare(name: str, path: Path, **form: Any) -> onnx.ModelProto:
    """Export the small model `name` and compare it with torch on a batch and a length that the export did not see."""
    export(name, path, **form, **small.SIZES[name])
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    feeds = small.inputs(name, batch=3, sequence=9)
    with torch.no_grad():
        expected = torch_model(name, **small.SIZES[name])(*map(torch.from_numpy, feeds.values()))
    for output, same in zip(
        small.run(model, feeds), expected if isinstance(expected, tuple) else [expected], strict=True
    ):
        np.testing.assert_allclose(output, same.numpy(), atol=1e-5 * max(1.0, float(same.abs().max())))
    return model


@pytest.mark.parametrize("name", sorted(small.SIZES))
def test_tracing_exports_the_module(name: str, tmp_path: Path) -> None:
    """The exported file has the built one's names, open dimensions, and torch's numbers."""
    model, built = export_and_compare(name, tmp_path / "model.onnx"), small.build(name)
    assert [value.name for value in model.graph.input] == [value.name for value in built.graph.input]
    assert [value.name for value in model.graph.output] == [value.name for value in built.graph.output]


@needs_onnxscript
@pytest.mark.parametrize("name", ["mlp", "bert_base"])
def test_dynamo_exports_the_module(name: str, tmp_path: Path) -> None:
    """The exporter on top of torch.export gives torch's numbers too."""
    export_and_compare(name, tmp_path / "model.onnx", dynamo=True)


def test_float16_is_float16(tmp_path: Path) -> None:
    """The type asked for is the type of the weights."""
    export("mlp", tmp_path / "model.onnx", dtype="float16", hidden=8)
    types = {tensor.data_type for tensor in onnx.load(tmp_path / "model.onnx").graph.initializer}
    assert types == {onnx.TensorProto.FLOAT16}


@needs_onnxscript
def test_dynamo_needs_a_newer_opset(tmp_path: Path) -> None:
    """An opset that the exporter does not write is refused before any work."""
    with pytest.raises(UsageError, match="opset is 17, expected at least 18"):
        export("mlp", tmp_path / "model.onnx", dynamo=True, opset=17)
