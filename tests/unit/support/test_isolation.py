"""Work in a process of its own, started from any program: what it gives, raises and how it ends comes back."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onnxfuse.support import isolation
from onnxfuse.support.errors import DeviceLostError, ModelError, UsageError
from onnxfuse.support.isolation import Crash, doing, in_new_process, isolated, within
from onnxfuse.support.progress import Progress

ROOT = Path(__file__).parents[3]


def told(number: int, *, progress: Progress, more: int = 0) -> tuple[int, int, bool]:
    """Return the sum, the process, and whether it can make children."""
    progress("adding", 1, 2)
    return number + more, os.getpid(), isinstance(isolated(lambda _: os.kill(os.getpid(), signal.SIGSEGV)), Crash)


def raises(error: Exception, *, progress: Progress) -> None:
    """Raise it."""
    raise error


def dies(how: int, *, progress: Progress) -> None:
    """End the process by a signal, after a word."""
    progress("dying", 0, 1)
    doing(model="fused")
    os.kill(os.getpid(), how)


def waits(seconds: float, file: str, *, progress: Progress) -> Any:
    """Wait in a child of the process, whose number goes to a file; it may take a tenth of a second."""

    def wait(_: Progress) -> None:
        Path(file).write_text(str(os.getpid()))
        with within(0.1 if seconds < 60 else 600):
            time.sleep(seconds)

    return isolated(wait)


def test_a_new_process_does_the_work() -> None:
    """It gets what is given, tells how far it is, and may fork, whatever the caller has done."""
    steps: list[Any] = []
    answer = in_new_process(told, 2, more=3, progress=lambda *step: steps.append(step))
    assert not isinstance(answer, Crash)
    number, process, forks = answer
    assert (number, forks, steps) == (5, True, [("adding", 1, 2)])
    assert process != os.getpid()


def test_what_it_raises_is_raised_here() -> None:
    """With its hint."""
    with pytest.raises(ModelError, match="wrong") as raised:
        in_new_process(raises, ModelError("wrong", "mend it"))
    assert raised.value.hint == "mend it"


@pytest.mark.parametrize(
    ("work", "given", "how"),
    [
        (dies, signal.SIGABRT, "ends the process by SIGABRT (Aborted)"),
        (raises, DeviceLostError("breaks the GPU's context"), "breaks the GPU's context"),
    ],
)
def test_how_it_ends_is_a_value(work: Callable[..., None], given: Any, how: str) -> None:
    """The caller lives, and its own GPU is another context."""
    found = in_new_process(work, given)
    assert isinstance(found, Crash)
    assert found.how == how


def test_a_block_that_takes_longer_than_it_said_hangs(tmp_path: Path) -> None:
    """Though the child as a whole may be silent for minutes."""
    found = in_new_process(waits, 30.0, str(tmp_path / "child"))
    assert isinstance(found, Crash)
    assert (found.how, found.hangs) == ("hangs: no sign of life for 0 s", True)
    assert isolation.PATIENCE > 60


def test_what_cannot_be_sent_is_told_before_anything_is_started() -> None:
    """And what to do about it."""
    with pytest.raises(UsageError, match="cannot be sent to another process") as raised:
        in_new_process(told, lambda: 0)
    assert "isolate=False" in raised.value.hint


def test_a_caller_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    """Neither the new one nor its child goes on using the GPU; a script needs no `if __name__ == "__main__"`."""
    script, child = tmp_path / "script.py", tmp_path / "child"
    script.write_text(
        "from onnxfuse.support.isolation import in_new_process\nfrom tests.unit.support.test_isolation import waits\n"
        f"in_new_process(waits, 600.0, {str(child)!r})\n"
    )
    with subprocess.Popen([sys.executable, str(script)], env=os.environ | {"PYTHONPATH": str(ROOT)}) as caller:
        until(lambda: child.exists() and child.read_text() != "")
        caller.kill()
    until(lambda: not Path(f"/proc/{child.read_text()}").exists())


def until(true: Callable[[], bool]) -> None:
    """Wait for what happens within 30 seconds."""
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)
