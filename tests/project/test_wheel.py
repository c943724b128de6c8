"""What setup.py says of the wheel that it builds."""

import os
import runpy
import subprocess
import tomllib
from pathlib import Path

import pytest

setuptools = pytest.importorskip("setuptools", reason="setup.py is run where setuptools is installed")
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("library", "platform"),
    [
        (b"..GLIBC_2.2.5..GLIBC_2.18..", "manylinux_2_28_x86_64"),
        (b"..GLIBC_2.36..GLIBC_2.2.5..", "manylinux_2_36_x86_64"),
        (b"", "manylinux_2_28_x86_64"),
    ],
)
def test_a_wheel_is_for_the_glibc_that_its_library_asks_for(
    library: bytes, platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the functions that it is linked against, and never older than what the dependencies need."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(setuptools, "setup", lambda **facts: None)
    assert runpy.run_path("setup.py")["with_glibc"]("linux_x86_64", library) == platform


def test_a_release_names_the_repository_that_builds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the variables of its workflow; a build elsewhere names none, which nobody could check."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(setuptools, "setup", lambda **facts: None)
    urls = runpy.run_path("setup.py")["urls"]
    assert urls({}) == {}
    found = urls({"GITHUB_SERVER_URL": "https://host", "GITHUB_REPOSITORY": "o/onnxfuse"})
    assert (found["Homepage"], found["Issues"]) == ("https://host/o/onnxfuse", "https://host/o/onnxfuse/issues")


def test_the_page_of_installing_has_the_extras_and_versions() -> None:
    """Each extra for users is in its table; its oldest versions are those that pyproject.toml allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (ROOT / "docs" / "INSTALL.md").read_text(encoding="utf-8")
    for extra in project["optional-dependencies"].keys() - {"dev", "survey", "serving"}:
        assert f"| `{extra}` |" in page, extra
    (runtime,) = (
        r.partition(";")[0].partition(">=")[2] for r in project["dependencies"] if r.startswith("onnxruntime-gpu")
    )
    (onnx,) = (r.partition(">=")[2] for r in project["dependencies"] if r.startswith("onnx>"))
    assert f"| ONNX Runtime, under the Python package | {runtime} |" in page
    assert f"| onnx | {onnx} |" in page
    assert f"| Python | {project['requires-python'].removeprefix('>=')} |" in page


def test_the_wheel_is_built_from_clean_and_its_tag_checked(tmp_path: Path) -> None:
    """What an earlier install compiled is gone before; a wheel for a newer glibc than promised fails the target."""
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text(encoding="utf-8"), encoding="utf-8")
    python = tmp_path / ".venv-wheel" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\ntest "$2" != pip || { ls build > listed; mkdir -p dist; touch "dist/$WHEEL"; }\n')
    python.chmod(0o755)
    (tmp_path / ".venv-wheel" / ".ready").touch()

    def make(platform: str, *settings: str) -> "subprocess.CompletedProcess[str]":
        for name in ("lib", "lib.linux-x86_64-cpython-311", "temp.linux-x86_64-cpython-311", "site"):
            (tmp_path / "build" / name).mkdir(parents=True, exist_ok=True)
        environment = os.environ | {"WHEEL": f"onnxfuse-0.1.0-py3-none-{platform}.whl"}
        command = ["make", "wheel", *settings]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    built = make("manylinux_2_28_x86_64")
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "listed").read_text().split() == ["site"]
    stale = make("manylinux_2_36_x86_64")
    assert stale.returncode != 0
    assert "the wheel is not for manylinux_2_28_x86_64" in stale.stdout
    arm64 = make("manylinux_2_28_aarch64", "MACHINE=aarch64")
    assert arm64.returncode == 0, arm64.stderr
    assert "_PYTHON_HOST_PLATFORM=linux-aarch64" in arm64.stdout
    assert "-target aarch64-linux-gnu.2.28" in arm64.stdout
    assert make("manylinux_2_28_x86_64", "MACHINE=aarch64").returncode != 0
