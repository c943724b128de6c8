"""A kernel that writes where no memory is: the verdict comes, and names the op."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command, folder, onnxfuse_command  # noqa: F401  # fixtures
from tests.cli.test_crashes import NORM, crashing

pytestmark = pytest.mark.gpu


def test_an_illegal_access_gets_a_verdict(folder: Path, onnxfuse_command: Command) -> None:  # noqa: F811
    """CUDA refuses every call after it in that process; the commands do their looking in others."""
    assert onnxfuse_command("optimize", "in.onnx", "out.onnx").code == 0
    done = crashing("illegal", "kernels", "LayerN", "verify", "in.onnx", "out.onnx", "--json", "--provider", "cuda")
    assert done.returncode == 1, done.stdout + done.stderr
    facts = json.loads(done.stdout)
    assert facts["summary"].startswith("the fused model breaks the GPU's context (an illegal memory access")
    assert facts["summary"].endswith(f"in {NORM}")
    done = crashing("illegal", "kernels", "LayerN", "bench", "in.onnx", "out.onnx", "--provider", "cuda")
    assert done.returncode == 1, done.stdout + done.stderr
    assert NORM in done.stderr
    done = crashing("illegal", "kernels", "LayerN", "optimize", "in.onnx", "kept.onnx", "--guard", "--json")
    assert done.returncode == 0, done.stderr
    assert [u["rule"] for u in json.loads(done.stdout)["guard"]["undone"]] == ["layer_norm"]
    assert onnxfuse_command("verify", "in.onnx", "kept.onnx").code == 0
