"""Sessions on the stand-in CUDA libraries, each in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
Scenario = Callable[[], Any]


@pytest.fixture(scope="session")
def fake_cuda() -> Path:
    """The folder of the stand-in CUDA libraries, built once."""
    build = ROOT / "tests" / "support" / "fake_cuda" / "build.py"
    done = subprocess.run([sys.executable, build], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


class FakeCuda:
    """Calls scenarios in new processes that have CUDA, as far as ONNX Runtime can tell."""

    def __init__(self, libraries: Path, folder: Path) -> None:
        self.libraries = libraries
        self.folder = folder
        self.stderr = ""

    def __call__(self, scenario: Scenario) -> Any:
        """Return what the scenario returned, through JSON; its traceback fails the test."""
        output = self.folder / f"{scenario.__name__}.json"
        command = [sys.executable, "-m", "tests.support.run_scenario", scenario.__module__, scenario.__name__, output]
        environment = os.environ | {
            "LD_LIBRARY_PATH": str(self.libraries), "FAKE_CUDA_TRACE": str(self._trace),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
        }  # fmt: skip
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        self.stderr = done.stderr
        assert done.returncode == 0, done.stderr
        return json.loads(output.read_text())

    def trace(self, call: str) -> list[dict[str, Any]]:
        """Return the calls of that name that the libraries saw, in order."""
        lines = self._trace.read_text().splitlines() if self._trace.exists() else []
        return [entry for entry in map(json.loads, lines) if entry["call"] == call]

    @property
    def _trace(self) -> Path:
        return self.folder / "trace.jsonl"


@pytest.fixture
def on_fake_cuda(fake_cuda: Path, tmp_path: Path) -> FakeCuda:
    """Call it with a scenario: a function of the test's module, without arguments, that returns JSON values."""
    return FakeCuda(fake_cuda, tmp_path)
