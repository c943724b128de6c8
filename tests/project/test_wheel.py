"""What setup.py says of the wheel that it builds."""

import os
import runpy
import subprocess
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


def test_the_wheel_is_built_from_clean_and_its_tag_checked(tmp_path: Path) -> None:
    """What an earlier install compiled is gone before; a wheel for a newer glibc than promised fails the target."""
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text(encoding="utf-8"), encoding="utf-8")
    python = tmp_path / ".venv-wheel" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\ntest "$2" != pip || { ls build > listed; mkdir -p dist; touch "dist/$WHEEL"; }\n')
    python.chmod(0o755)
    (tmp_path / ".venv-wheel" / ".ready").touch()

    def make(platform: str) -> "subprocess.CompletedProcess[str]":
        for name in ("lib", "lib.linux-x86_64-cpython-311", "temp.linux-x86_64-cpython-311", "site"):
            (tmp_path / "build" / name).mkdir(parents=True, exist_ok=True)
        environment = os.environ | {"WHEEL": f"onnxfuse-0.1.0-py3-none-{platform}.whl"}
        return subprocess.run(["make", "wheel"], cwd=tmp_path, env=environment, capture_output=True, text=True)

    built = make("manylinux_2_28_x86_64")
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "listed").read_text().split() == ["site"]
    stale = make("manylinux_2_36_x86_64")
    assert stale.returncode != 0
    assert "the wheel is not for manylinux_2_28_x86_64" in stale.stdout
