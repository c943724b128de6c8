"""Pipes are read and written while somebody is at the other end."""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from onnxfuse.files import io, pipes
from onnxfuse.support.errors import ModelError
from tests.fuzz import kills


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a pipe at which nobody is, which is soon told."""
    monkeypatch.setattr(pipes, "PATIENCE", 0.3)
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def beside(work: Callable[[], object]) -> threading.Thread:
    """Do `work` in a thread that does not outlive the test's process."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("pause", [0.0, 0.1, 0.6])
def test_a_model_comes_through_a_pipe(pipe: Path, pause: float) -> None:
    """In pieces, from a writer that comes at once and thinks, also for longer than nobody is waited for."""
    data = kills.model(3).SerializeToString()

    def write() -> None:
        with pipe.open("wb", buffering=0) as file:
            time.sleep(pause)
            for part in (data[:100], data[100:]):
                file.write(part)

    writer = beside(write)
    assert io.load(pipe).SerializeToString() == data
    writer.join(10)


@pytest.mark.parametrize("what", ["read", "written", "left"])
def test_nobody_is_not_waited_for(pipe: Path, what: str) -> None:
    """Neither for one who writes, nor for one who reads; one who writes nothing and leaves is nobody."""
    told = "no process reads" if what == "written" else "no process writes to"
    if what == "left":
        beside(lambda: pipe.open("wb").close())
    raised = list[ModelError]()

    def call() -> None:
        try:
            if what == "written":
                io.save(kills.model(3), pipe)
            else:
                io.load(pipe)
        except ModelError as error:
            raised.append(error)

    beside(call).join(5)
    assert [told in str(error) for error in raised] == [True]


def test_a_pipe_that_does_not_end_is_told(pipe: Path) -> None:
    """Before it takes the memory."""

    def write() -> None:
        with contextlib.suppress(BrokenPipeError), pipe.open("wb", buffering=0) as file:
            for _ in range(4):
                file.write(bytes(1 << 20))

    beside(write)
    with pytest.raises(ModelError, match="more than"):
        pipes.read(pipe, 1 << 21)
