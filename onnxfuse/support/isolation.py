"""Run work in a forked child process, so that a crash of the child, or of its GPU context, leaves the parent to report
it.

ONNX Runtime and CUDA run third-party code. A wrong kernel reads invalid memory, after which every later CUDA call of
the process fails; a faulty optimizer ends the process by a signal; the system kills a process whose model is too large.
The child is a fork, so models are not copied and it starts in milliseconds; in return the parent may never have opened
a session or touched the GPU. The command line guarantees that. A process that calls the library may not: work that must
be isolated there runs in a new process (`apart`), which gives the same guarantee as the command line.
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

from onnxfuse.support.errors import DeviceError, DeviceLostError, UsageError

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


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Let the parent, where there is one, take this process for one that hangs if the block lasts longer than that."""
    if _State.parent is None:
        yield
        return
    _State.parent.send(("patience", seconds))
    try:
        yield
    finally:
        _State.parent.send(("patience", None))


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
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):  # what a full one does not take it keeps: told where it is written, or at the end
                stream.flush()
        child = os.fork()
        if child == 0:
            die_with_parent()
            _State.parent, tempfile.tempdir = sender, scratch
            _answer(work, sender)
        sender.close()
        found: T | Crash = _follow(_Fork(child), receiver, progress, PATIENCE if patience is None else patience)
        return found


def apart(
    work: Callable[..., T],
    *arguments: Any,
    progress: Progress = lambda step, done, total: None,
    **options: Any,
) -> T | Crash:
    """Return what `work(*arguments, progress=..., **options)` returns in a new process, or how that ended.

    Raises what it raises. All of it must be picklable, `work` a function that the new process can import. It takes a
    second to start, and can make children whatever this one has done; where this one can or is one, the work runs here.
    It may be silent for as long as it likes: its children are looked after there.
    """
    if _State.may_fork or _State.parent is not None:
        return work(*arguments, progress=progress, **options)
    if not sys.executable:
        raise DeviceError(
            "no process can be started: this program does not say where its Python is (sys.executable)",
            "isolate=False keeps the work in this process.",
        )
    ours, theirs = multiprocessing.Pipe()
    with tempfile.TemporaryDirectory(prefix="onnxfuse-") as scratch, ours:
        try:
            asked = ForkingPickler.dumps((scratch, work, arguments, options))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise UsageError(
                f"something of what is given cannot be sent to another process: {error}",
                "Give files, arrays and plain values; isolate=False keeps the work in this process.",
            ) from error
        with theirs:
            # Not by `multiprocessing`, which would run the caller's script once more.
            code = f"import sys; sys.path[:] = {sys.path!r}; from onnxfuse.support.isolation import serve; serve()"
            child = _Group(
                [sys.executable, "-c", code, str(theirs.fileno())],
                stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], process_group=0,
            )  # fmt: skip
        with suppress(BrokenPipeError, ConnectionResetError):  # it has ended already: how is told below
            ours.send_bytes(asked)
        found: T | Crash = _follow(child, ours, progress, None)
        return found


def serve() -> None:
    """Do in a process that `apart` started what it asks for."""
    die_with_parent()
    parent = Connection(int(sys.argv[1]))
    allow()
    tempfile.tempdir, work, arguments, options = parent.recv()
    _answer(lambda tell: work(*arguments, progress=tell, **options), parent)


def die_with_parent() -> None:
    """Let the system end this process when its parent ends, however that does: nobody would wait for it any more."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


PR_SET_PDEATHSIG = 1


class _Child(Protocol):
    def kill(self) -> None: ...

    def wait(self) -> int:
        """Return the exit code, negative for a signal."""


@dataclass
class _Fork:
    """A child that was forked, to be handled as `subprocess.Popen` is."""

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
    """A process with its children: they are ended with it."""

    def kill(self) -> None:
        if self.returncode is None:
            os.killpg(self.pid, signal.SIGKILL)


def _gpu_started() -> bool:
    """Return whether CUDA was started in this process: a fork of it could not use the GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False
    return int(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int()))) != NOT_INITIALIZED


NOT_INITIALIZED = 3
"""What CUDA's driver answers before it was started."""


def _follow(child: _Child, receiver: Connection, progress: Progress, patience: float | None) -> Any:
    """Return what a child says in the end, or its crash; nothing is left of it."""
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


def _answer(work: Callable[[Progress], Any], parent: Connection) -> None:
    """Do the work and leave the process at once: what CUDA does at a normal exit after an error can crash it."""
    code = 0
    try:
        parent.send(("done", work(lambda *step: parent.send(("step", step)))))
    except (KeyboardInterrupt, SystemExit) as error:
        code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 130
    except DeviceLostError as error:
        parent.send(("lost", f"{error}"))
    except BaseException as error:  # whatever it is, the parent raises it
        error.add_note("".join(traceback.format_exception(error)))
        parent.send(("raised", error))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _how(code: int, silent: float | None) -> str:
    """Return how a child ended that sent no result; `silent` are the seconds after which it was ended for that."""
    if silent is not None:
        return f"hangs: no word for {silent:.0f} s"
    if code >= 0:
        return f"ends the process with exit code {code}"
    if code == -signal.SIGKILL:
        return "is killed by the system (SIGKILL), as it does when memory runs out"
    return f"ends the process by {signal.Signals(-code).name} ({signal.strsignal(-code)})"
