"""The rows of the pages' figures on a real GPU, of models that are small."""

import json

import pytest

from bench.figures import measuring
from bench.figures.parts import model_row, rules_row, strict_row
from onnxfuse.runtime import cuda_unusable

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(cuda_unusable() is not None, reason=f"needs a GPU: {cuda_unusable()}"),
]


def test_a_model_at_every_setting_and_without_each_rule() -> None:
    """Under CUDA graphs, all fused ops as kernels."""
    found = model_row("mlp", "float16", 64, launches=False)
    assert "CUDA graph" in found["settings"]
    assert found["bodies"] == []
    left_out = rules_row("mlp", 64)
    assert set(left_out["without"]) >= {"gemm"}
    assert all(0 < time < 1e4 for time in (left_out["fused"], *left_out["without"].values()))
    strict = strict_row("mlp", 64)
    assert min(strict.values()) > 0
    assert json.loads(json.dumps([found, left_out, strict])) == [found, left_out, strict]


def test_the_machine_is_told() -> None:
    """Card, driver and CUDA version, ONNX Runtime."""
    told = measuring.machine()
    assert "NVIDIA" in told["card"]
    assert "CUDA" in told["driver"]
    assert told["onnxruntime"]
