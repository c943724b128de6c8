"""Packages that replace each other's files are named, with what mends it."""

import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import onnxruntime
import pytest

from onnxfuse.deploy import doctor, package_conflicts
from onnxfuse.support import process_limits

BOTH = ("CUDAExecutionProvider", "CPUExecutionProvider")
GPU = {"onnxruntime-gpu": "1.31.1", "cupy-cuda13x": "14.2.0", "nvidia-cudnn-cu13": "9.15"}


def found(
    monkeypatch: pytest.MonkeyPatch,
    packages: Mapping[str, str],
    providers: Sequence[str] = BOTH,
    cuda: str = "13.0",
    loaded: str = "1.31.1",
) -> dict[str, str]:
    """Return the conflicts of a machine with these packages, where `import onnxruntime` has these facts."""

    def version(name: str) -> str:
        if name not in packages:
            raise PackageNotFoundError(name)
        return packages[name]

    monkeypatch.setattr(package_conflicts, "version", version)
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: list(providers))
    monkeypatch.setattr(onnxruntime, "__version__", loaded)
    monkeypatch.setattr(onnxruntime, "cuda_version", cuda, raising=False)
    return {c.what: f"{c.fact} -> {c.mend}" for c in package_conflicts.conflicts()}


def test_what_belongs_together_is_no_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are both packages of ONNX Runtime, where the one with CUDA was installed last."""
    assert found(monkeypatch, GPU) == {}
    assert found(monkeypatch, {**GPU, "onnxruntime": "1.30.0"}) == {}


def test_the_package_without_cuda_is_recognized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have one folder: the one that was installed last is imported."""
    again = "-> pip uninstall onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu"
    cpu = ("CPUExecutionProvider",)
    assert found(monkeypatch, {"onnxruntime": "1.31.1"}, cpu) == {
        "onnxruntime": f"1.31.1: is the package without CUDA {again}"
    }
    assert found(monkeypatch, {**GPU, "onnxruntime": "1.31.1"}, cpu) == {
        "onnxruntime": f"1.31.1: hides the CUDA provider of onnxruntime-gpu {again}"
    }
    assert found(monkeypatch, {**GPU, "onnxruntime": "1.30.0"}, loaded="1.30.0") == {
        "onnxruntime": f"1.30.0 has replaced files of onnxruntime-gpu 1.31.1 {again}"
    }


def test_packages_for_cuda_12_are_recognized(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two cuDNNs install the same files, and so do the two of CuPy; a build for CUDA 12 is said."""
    old = found(monkeypatch, {**GPU, "nvidia-cudnn-cu12": "9.10", "cupy-cuda12x": "13.6"}, cuda="12.8")
    assert list(old) == ["onnxruntime-gpu", "nvidia-cudnn-cu12", "cupy-cuda12x"]
    assert old["onnxruntime-gpu"].startswith("1.31.1 is built for CUDA 12.8; fused kernels need CUDA 13")
    assert "installs nvidia/cudnn/lib/libcudnn.so.9, as nvidia-cudnn-cu13 9.15 does" in old["nvidia-cudnn-cu12"]
    assert "pip uninstall cupy-cuda12x cupy-cuda13x && pip install cupy-cuda13x" in old["cupy-cuda12x"]


@pytest.mark.parametrize(("built", "conflict"), [("'12.8'", True), ("'13.0'", False), ("None", False)])
def test_torch_for_cuda_12_is_recognized(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, built: str, conflict: bool
) -> None:
    """Its cuDNN has the name of ours, and who loads it first decides; torch itself is not imported for that."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "torch" / "version.py").write_text(f"__version__ = '2.9'\ncuda: Optional[str] = {built}\n")
    monkeypatch.syspath_prepend(f"{tmp_path}")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    conflicts = found(monkeypatch, {**GPU, "torch": "2.9"})
    assert ("torch" in conflicts) == conflict
    assert conflicts.get("torch", "2.9 is built for CUDA 12.8").startswith("2.9 is built for CUDA 12.8")


def test_doctor_says_a_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where CUDA is wanted it is to be fixed; elsewhere it is said."""
    assert found(monkeypatch, {**GPU, "onnxruntime": "1.30.0"}, loaded="1.30.0")
    for wanted, verdict in ((True, "broken"), (False, "absent")):
        (check,) = (f for f in doctor._packages(wanted) if f.what == "onnxruntime (conflict)")
        assert check.verdict == verdict


def test_a_driver_for_cuda_12_is_too_old() -> None:
    """It loads the libraries of CUDA 13, and refuses their kernels."""
    assert doctor._driver(13000).verdict == "ok"
    old = doctor._driver(12080)
    assert (old.verdict, old.fact) == ("broken", "CUDA 12.8; the libraries and kernels here are for CUDA 13")
    assert "580" in old.mend


def test_missing_memory_limits_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows has none."""
    assert doctor._limits().verdict == "ok"
    monkeypatch.setattr(process_limits, "resource", None)
    assert doctor._limits().fact == "not limited: this system has no memory limit for a process"
