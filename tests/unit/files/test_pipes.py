"""Pipes are read and written while somebody is at the other end."""

import contextlib
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

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


def test_the_other_end_is_waited_for(pipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it is told, in both directions; a reader may take its time with more than a pipe holds."""
    data, got = bytes(range(256)) * 1000, list[bytes]()

    def read() -> None:
        time.sleep(0.05)
        with pipe.open("rb") as file:
            time.sleep(0.05)
            got.append(file.read())

    reader = beside(read)
    with pipes.writing(pipe) as file:
        file.write(data)
    reader.join(10)
    assert got == [data]
    waited = list[float]()
    polled = SimpleNamespace(register=lambda *_: None, poll=waited.append)
    monkeypatch.setattr(select, "poll", lambda: polled)
    with pytest.raises(ModelError):
        pipes.read(pipe, 100)
    assert waited == [300]  # milliseconds


def test_what_is_no_pipe_is_told_by_the_system(tmp_path: Path) -> None:
    """Nobody is waited for at a socket, which cannot be opened at all."""
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as made:
        made.bind(str(tmp_path / "s"))
        with pytest.raises(OSError, match="No such device or address"):
            pipes.writing(tmp_path / "s")


@pytest.mark.parametrize(("length", "fits"), [(99, True), (100, False)])
def test_as_much_as_the_limit_is_too_much(pipe: Path, length: int, fits: bool) -> None:
    """As with files: a message is shorter than what protobuf does not read any more."""

    def write() -> None:
        with pipe.open("wb", buffering=0) as file:
            file.write(bytes(1))
            time.sleep(0.02)
            file.write(bytes(length - 1))

    writer = beside(write)
    if fits:
        assert len(pipes.read(pipe, 100)) == length
    else:
        with pytest.raises(ModelError, match="more than"):
            pipes.read(pipe, 100)
    writer.join(10)


def test_a_pipe_that_does_not_end_is_told(pipe: Path) -> None:
    """Before it takes the memory."""

    def write() -> None:
        with contextlib.suppress(BrokenPipeError), pipe.open("wb", buffering=0) as file:
            for _ in range(4):
                file.write(bytes(1 << 20))

    beside(write)
    with pytest.raises(ModelError, match="more than"):
        pipes.read(pipe, 1 << 21)
