"""Sessions on the stand-in CUDA libraries, each in a process of its own."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import processor_times

ROOT = Path(__file__).parents[2]
Scenario = Callable[[], Any]


@pytest.fixture(scope="session")
def fake_cuda() -> Path:
    """The folder of the stand-in CUDA libraries, built once."""
    build = ROOT / "tests" / "support" / "fake_cuda" / "build.py"
    done = subprocess.run([sys.executable, build], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip())


class Scenarios:
    """A process that has CUDA, as far as ONNX Runtime can tell, and runs each scenario in a fork of its own."""

    SECONDS = 60
    """After which a scenario hangs."""

    def __init__(self, libraries: Path) -> None:
        self.libraries = libraries
        self._process: subprocess.Popen[str] | None = None

    def run(self, **request: Any) -> int:
        """Return how the scenario's process ended."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.run_scenario"], cwd=ROOT, text=True, start_new_session=True,
                env=os.environ | {"LD_LIBRARY_PATH": str(self.libraries)},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
            processor_times.RUNNING.add(self._process.pid)
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None
        assert answers is not None
        asked.write(json.dumps(request) + "\n")
        asked.flush()
        if not select.select([answers], [], [], self.SECONDS)[0]:
            os.killpg(self._process.pid, signal.SIGKILL)
            self.end()
            raise TimeoutError(f"{request['function']} took more than {self.SECONDS} seconds")
        return int(answers.readline())

    def end(self) -> None:
        """End the process."""
        if self._process is not None:
            processor_times.RUNNING.remove(self._process.pid)
            self._process.communicate()
            self._process = None


@pytest.fixture(scope="session")
def scenarios(fake_cuda: Path) -> Iterator[Scenarios]:
    """The process of this worker that runs scenarios, from the first one on."""
    made = Scenarios(fake_cuda)
    yield made
    made.end()


class FakeCuda:
    """Calls scenarios in new processes that have CUDA, as far as ONNX Runtime can tell."""

    def __init__(self, scenarios: Scenarios, folder: Path) -> None:
        self.scenarios = scenarios
        self.folder = folder
        self.stderr = ""

    def __call__(self, scenario: Scenario) -> Any:
        """Return what the scenario returned, through JSON; its traceback fails the test."""
        output, errors = self.folder / f"{scenario.__name__}.json", self.folder / "stderr.txt"
        environment = os.environ | {
            "LD_LIBRARY_PATH": str(self.scenarios.libraries), "FAKE_CUDA_TRACE": str(self._trace),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
        }  # fmt: skip
        code = self.scenarios.run(
            module=scenario.__module__, function=scenario.__name__, output=str(output), stderr=str(errors),
            environment=dict(environment),
        )  # fmt: skip
        self.stderr = errors.read_text()
        assert code == 0, self.stderr
        return json.loads(output.read_text())

    def trace(self, *calls: str) -> list[dict[str, Any]]:
        """Return the calls of these names that the libraries saw, in order."""
        lines = self._trace.read_text().splitlines() if self._trace.exists() else []
        return [entry for entry in map(json.loads, lines) if entry["call"] in calls]

    @property
    def _trace(self) -> Path:
        return self.folder / "trace.jsonl"


@pytest.fixture
def on_fake_cuda(scenarios: Scenarios, tmp_path: Path) -> FakeCuda:
    """Call it with a scenario: a function of the test's module, without arguments, that returns JSON values."""
    return FakeCuda(scenarios, tmp_path)
