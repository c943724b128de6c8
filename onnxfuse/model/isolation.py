"""Work in a child process: what kills the child, or its GPU, leaves the parent to tell about it.

ONNX Runtime and CUDA run code that was not written here. A wrong kernel reads memory that is not there, and every later
call of the process fails; a wrong optimizer ends the process by a signal; too large a model is killed by the system.
A child is a fork, so models are not copied and it starts in milliseconds; for that the parent itself may never have
opened a session or touched the GPU. The command line keeps to that; in any other process the work runs where it is.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from onnxfuse.model.errors import DeviceLostError

T = TypeVar("T")
Progress = Callable[[str, int, int], None]

PATIENCE = 600.0
"""Seconds without a word after which a child is taken for one that hangs. One step is at most the opening of a session:
a first run compiles a model's kernels in seconds, and what a truth in float64 takes is bounded (`truth.py`)."""


@dataclass(frozen=True)
class Crash:
    """The end of a child that gave no result."""

    how: str
    """The signal, CUDA's error, or that it hangs; in words."""
    step: str
    """The last step that it told of."""
    doing: Mapping[str, Any]
    """What it said last with `doing`."""
    hangs: bool = False
    """Whether it was ended for having been silent too long."""


class _State:
    """Whether this process may fork, and in a child the way to the parent."""

    may_fork = False
    parent: Connection | None = None


def allow() -> None:
    """Let `isolated` fork: for a process that opens no session and does nothing with a GPU but in children."""
    _State.may_fork = hasattr(os, "fork")


def doing(**facts: Any) -> None:
    """Tell the parent, where there is one, what comes next: facts that a `Crash` holds, each until it is told anew.

    They must be picklable.
    """
    if _State.parent is not None:
        _State.parent.send(("doing", facts))


def isolated(
    work: Callable[[Progress], T],
    progress: Progress = lambda step, done, total: None,
    patience: float | None = None,
) -> T | Crash:
    """Return what `work` returns, which must be picklable, or how its process ended; raises what it raises.

    Where no child can be made (`allow`), or CUDA was started here, the work runs in this process.
    `work` gets a function for its progress. A child that tells of none for `patience` seconds,
    PATIENCE where none are given, is ended.
    """
    if not _State.may_fork or _State.parent is not None or _gpu_started():
        return work(progress)
    receiver, sender = multiprocessing.Pipe(duplex=False)
    # What a child that crashes leaves in its temporary folders goes with this one.
    with tempfile.TemporaryDirectory(prefix="onnxfuse-") as scratch, receiver:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if child == 0:
            _work(work, sender, scratch)
        sender.close()
        try:
            found: T | Crash = _follow(child, receiver, progress, PATIENCE if patience is None else patience)
            return found
        finally:
            _end(child)


def _gpu_started() -> bool:
    """Return whether CUDA was started in this process: a fork of it could not use the GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False
    return int(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int()))) != NOT_INITIALIZED


NOT_INITIALIZED = 3
"""What CUDA's driver answers before it was started."""


def _follow(child: int, receiver: Connection, progress: Progress, patience: float) -> Any:
    step, last, hangs = "", dict[str, Any](), False
    while True:
        if not receiver.poll(patience):
            os.kill(child, signal.SIGKILL)
            hangs = True
        try:
            kind, value = receiver.recv()
        except EOFError:
            return Crash(_how(child, patience if hangs else None), step, last, hangs)
        if kind == "step":
            step = value[0]
            progress(*value)
        elif kind == "doing":
            last |= value
        elif kind == "lost":
            return Crash(value, step, last)
        elif kind == "raised":
            raise value
        else:
            return value


def _work(work: Callable[[Progress], Any], parent: Connection, scratch: str) -> None:
    """Do the work and leave the process at once: what CUDA does at a normal exit after an error can crash it."""
    _State.parent, tempfile.tempdir, code = parent, scratch, 0
    try:
        parent.send(("done", work(lambda *step: parent.send(("step", step)))))
    except (KeyboardInterrupt, SystemExit) as error:
        code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 130
    except DeviceLostError as error:
        parent.send(("lost", str(error)))
    except BaseException as error:  # whatever it is, the parent raises it
        error.add_note("".join(traceback.format_exception(error)))
        parent.send(("raised", error))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _how(child: int, silent: float | None) -> str:
    """Return how a child ended that sent no result; `silent` are the seconds after which it was ended for that."""
    _, status = os.waitpid(child, 0)
    if silent is not None:
        return f"hangs: no word for {silent:.0f} s"
    if not os.WIFSIGNALED(status):
        return f"ends the process with exit code {os.waitstatus_to_exitcode(status)}"
    number = os.WTERMSIG(status)
    if number == signal.SIGKILL:
        return "is killed by the system (SIGKILL), as it does when memory runs out"
    return f"ends the process by {signal.Signals(number).name} ({signal.strsignal(number)})"


def _end(child: int) -> None:
    """End the child where it still runs, and take note of it."""
    try:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    except (ProcessLookupError, ChildProcessError):
        return  # It has ended and was waited for.
