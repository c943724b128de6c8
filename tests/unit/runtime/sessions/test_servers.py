"""Sessions as servers have them: in tasks of asyncio, and in children that were forked."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxfuse import runtime
from tests.support import fused_models as models
from tests.support import stand_in_kernels
from tests.support.scenarios import FakeCuda

ROOT = Path(__file__).parents[4]
TASKS = 24


def chain_error(session: runtime.Session, rows: int) -> float:
    rng = np.random.default_rng(rows)
    x, b = rng.standard_normal((rows, 8), np.float32), rng.standard_normal(8, np.float32)
    (y,) = session.run(None, {"x": x, "b": b})
    return float(np.abs(y + np.tanh(2 * np.maximum(x + b, 0))).max())


def answered(providers: list[str]) -> list[float]:
    """Return the error of each request to a server that answers many at once, each of another shape."""
    session = runtime.session(models.chain(), providers)

    async def served() -> list[float]:
        return await asyncio.gather(*(asyncio.to_thread(chain_error, session, rows) for rows in range(1, TASKS + 1)))

    return asyncio.run(served())


def test_tasks_of_asyncio_share_a_session_on_the_cpu() -> None:
    """Each gets the answer to its own request."""
    errors = answered(["CPUExecutionProvider"])
    assert len(errors) == TASKS
    assert max(errors) < 1e-6


def answered_by_kernels() -> dict[str, Any]:
    stand_in_kernels.install()
    errors = answered(["CUDAExecutionProvider", "CPUExecutionProvider"])
    return {"errors": errors, "launches": runtime.launches()}


def test_tasks_of_asyncio_share_a_session_with_kernels(on_fake_cuda: FakeCuda) -> None:
    """Every request launches each kernel once, whichever thread plans it."""
    facts = on_fake_cuda(answered_by_kernels)
    assert facts["errors"] == [0] * TASKS
    assert facts["launches"] == dict.fromkeys(["BiasRelu_1", "TwiceTanh_2", "Negate_3"], TASKS)


COMMON = """
import os, sys
import numpy as np
import onnxfuse

def served(session, rows=5):
    x = np.arange(rows * 8, dtype=np.float32).reshape(rows, 8) / 8 - 2
    (y,) = session.run(None, {"x": x, "b": np.ones(8, np.float32)})
    return bool(np.allclose(y, -np.tanh(2 * np.maximum(x + 1, 0)), atol=1e-6))

def opened():
    return onnxfuse.session(sys.argv[1], ["CPUExecutionProvider"])
"""

FORKED = (
    COMMON
    + """
session = opened() if sys.argv[2] == "after a session" else None
if session is not None:
    assert served(session)
children = []
for _ in range(2):
    child = os.fork()
    if child == 0:
        os._exit(0 if served(opened()) else 3)
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children], served(session or opened()))
"""
)


def ran(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a script of its own; one that hangs fails."""
    return subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script, *arguments],
        env=os.environ | {"PYTHONPATH": f"{ROOT}"}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.fixture
def fused(tmp_path: Path) -> Path:
    """A file of three fused ops."""
    onnx.save(models.chain(), tmp_path / "fused.onnx")
    return tmp_path / "fused.onnx"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("when", ["after the import", "after a session"])
def test_a_forked_child_opens_sessions_of_its_own(when: str, fused: Path) -> None:
    """As servers with a preloaded application do; the parent's session goes on."""
    done = ran(FORKED, fused, when)
    assert (done.returncode, done.stdout) == (0, "[0, 0] True\n"), done.stderr
