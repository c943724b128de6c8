"""Run work in a forked child process: a crash of the child, or of its GPU context, leaves the parent to report it.

ONNX Runtime and CUDA run third-party code. A wrong kernel reads invalid memory, after which every later CUDA call of
the process fails; a faulty optimizer ends the process by a signal; the system kills a process whose model is too large.
The child is a fork, so models are not copied and it starts in milliseconds; in return the parent may never have opened
a session or touched the GPU, and runs no other thread. The command line guarantees that. A process that calls the
library may not: work that must be isolated there runs in a new process (`in_new_process`), which gives the same
guarantee as the command line.
"""

import ctypes
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol, TypeVar

from onnxfuse.support import child_process
from onnxfuse.support.errors import DeviceError, DeviceLostError, UsageError
from onnxfuse.support.progress import Progress, silent

T = TypeVar("T")

PATIENCE = 600.0
"""Timeout in seconds without a progress message after which a child counts as hung. One step is at most the creation of
a session: a first run compiles a model's kernels in seconds, and a float64 reference is bounded (`truth.py`).
"""


@dataclass(frozen=True)
class Crash:
    """Abnormal end of a child without a result."""

    how: str
    """The signal, CUDA's error, or a hang; as text."""
    step: str
    """The last reported step."""
    doing: Mapping[str, Any]
    """The facts last reported with `doing`."""
    hangs: bool = False
    """Whether it was killed after its timeout."""


class _State:
    """Whether this process may fork, and in a child the connection to the parent."""

    may_fork = False
    parent: Connection | None = None


def allow() -> None:
    """Allow `isolated` to fork: for a process that opens sessions and uses the GPU only in children."""
    _State.may_fork = hasattr(os, "fork")


def doing(**facts: Any) -> None:
    """Report the next step to the parent, if any: facts that a `Crash` includes, each until it is updated.

    They must be picklable.
    """
    if _State.parent is not None:
        _State.parent.send(("doing", facts))


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Ask the parent, if any, to treat this process as hung if the block exceeds that time."""
    if _State.parent is None:
        yield
        return
    _State.parent.send(("patience", seconds))
    try:
        yield
    finally:
        _State.parent.send(("patience", None))


def isolated(
    task: Callable[[Progress], T],
    progress: Progress = silent,
    patience: float | None = None,
) -> T | Crash:
    """Return what `task` returns, which must be picklable, or how its process crashed; raises what it raises.

    If no child can be forked (`allow`), or CUDA was started here, the work runs in this process. `task` is called
    with a function for reporting progress. A child without progress for `patience` seconds, by default PATIENCE, is
    killed.
    """
    if not _State.may_fork or _State.parent is not None or _gpu_started():
        return task(progress)
    receiver, sender = multiprocessing.Pipe(duplex=False)
    # Temporary files of a crashed child are deleted with this folder.
    with tempfile.TemporaryDirectory(prefix="onnxfuse-") as scratch, receiver:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):  # a full one buffers: reported on write, or at the end
                stream.flush()
        child = os.fork()
        if child == 0:
            die_with_parent()
            _State.parent, tempfile.tempdir = sender, scratch
            _answer(task, sender)
        sender.close()
        result: T | Crash = _follow(_Fork(child), receiver, progress, PATIENCE if patience is None else patience)
        return result


def in_new_process(
    task: Callable[..., T],
    *arguments: Any,
    progress: Progress = silent,
    **options: Any,
) -> T | Crash:
    """Return what `task(*arguments, progress=..., **options)` returns in a new process, or how that crashed.

    Raises what it raises. All of it must be picklable, `task` a function that the new process can import. It takes
    a second to start, and can fork children whatever this process has done; if this one can or is one, the work runs
    here. It has no timeout: its own children do.
    """
    if _State.may_fork or _State.parent is not None:
        return task(*arguments, progress=progress, **options)
    if not sys.executable:
        raise DeviceError(
            "no process can be started: sys.executable does not name this program's Python",
            "isolate=False keeps the work in this process.",
        )
    ours, theirs = multiprocessing.Pipe()
    with tempfile.TemporaryDirectory(prefix="onnxfuse-") as scratch, ours:
        try:
            request = ForkingPickler.dumps((scratch, task, arguments, options))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise UsageError(
                f"an argument cannot be sent to another process: {error}",
                "Give files, arrays and plain values; isolate=False keeps the work in this process.",
            ) from error
        with theirs:
            child = child_process.start(serve, theirs, kind=_Group)
        with suppress(BrokenPipeError, ConnectionResetError):  # it has ended already: reported below
            ours.send_bytes(request)
        result: T | Crash = _follow(child, ours, progress, None)
        return result


def serve() -> None:
    """Run the request in a process started by `in_new_process`."""
    die_with_parent()
    parent = child_process.connection()
    allow()
    tempfile.tempdir, task, arguments, options = parent.recv()
    _answer(lambda tell: task(*arguments, progress=tell, **options), parent)


def die_with_parent() -> None:
    """Have the system kill this process when its parent ends, however that happens: no process would wait for it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


PR_SET_PDEATHSIG = 1


class _Child(Protocol):
    def kill(self) -> None: ...

    def wait(self) -> int:
        """Return the exit code, negative for a signal."""


@dataclass
class _Fork:
    """A forked child, with the interface of `subprocess.Popen`."""

    pid: int
    code: int | None = None

    def kill(self) -> None:
        if self.code is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code


class _Group(subprocess.Popen[bytes]):
    """A process group: children are killed with their process, where the system has groups."""

    def kill(self) -> None:
        if not hasattr(os, "killpg"):  # Windows
            super().kill()
        elif self.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)


def _gpu_started() -> bool:
    """Return whether CUDA was initialized in this process: a fork of it could not use the GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False
    return int(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int()))) != NOT_INITIALIZED


NOT_INITIALIZED = 3
"""Result code of the CUDA driver before initialization."""


def _follow(child: _Child, receiver: Connection, progress: Progress, patience: float | None) -> Any:
    """Return a child's result, or its crash, and clean up after it."""
    step, last, hangs, limit = "", dict[str, Any](), False, patience
    try:
        while True:
            if not receiver.poll(limit):
                child.kill()
                hangs = True
            try:
                kind, value = receiver.recv()
            except (EOFError, ConnectionResetError):
                return Crash(_how(child.wait(), limit if hangs else None), step, last, hangs)
            if kind == "step":
                step = value[0]
                progress(*value)
            elif kind == "doing":
                last |= value
            elif kind == "patience":
                limit = patience if value is None else value
            elif kind == "lost":
                return Crash(value, step, last)
            elif kind == "raised":
                raise value
            else:
                return value
    finally:
        child.kill()
        child.wait()


def _answer(task: Callable[[Progress], Any], parent: Connection) -> None:
    """Do the work and exit immediately: CUDA's cleanup at a normal exit can crash after an error."""
    code = 0
    try:
        parent.send(("done", task(lambda *step: parent.send(("step", step)))))
    except (KeyboardInterrupt, SystemExit) as error:
        code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 130
    except DeviceLostError as error:
        parent.send(("lost", f"{error}"))
    except BaseException as error:  # any exception: the parent raises it
        error.add_note("".join(traceback.format_exception(error)))
        parent.send(("raised", error))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _how(code: int, timeout: float | None) -> str:
    """Return how a child ended without a result; `timeout` is the timeout after which it was killed."""
    if timeout is not None:
        return f"hangs: no sign of life for {timeout:.0f} s"
    if code >= 0:
        return f"ends the process with exit code {code}"
    if code == -signal.SIGKILL:
        return "is killed by the system (SIGKILL), as it does when memory runs out"
    return f"ends the process by {signal.Signals(-code).name} ({signal.strsignal(-code)})"
