"""A process for ONNX's shape inference that may be killed: started once, and again after each kill.

It is a new process, not a fork: this one may run threads, and Windows has no fork. It imports ONNX alone, which takes
0.3 s of processor time; a request then takes what inference takes. Where the system has no limits of memory and
processor time for a process, the time limit by the clock holds alone.
"""

import atexit
import contextlib
import os
import pickle
import subprocess
import sys
import threading
from dataclasses import dataclass
from typing import Any

import onnx

from onnxfuse.support import process_limits
from onnxfuse.support.errors import DeviceError

NOT_VALID = (onnx.shape_inference.InferenceError, onnx.checker.ValidationError, RuntimeError, ValueError)
"""Exceptions of ONNX's C++ for an invalid model, which are more than its own classes."""

STARTING = 60.0
"""Time limit in seconds for the start of the process: it imports ONNX."""


@dataclass(frozen=True)
class Request:
    """One inference, with its limits."""

    data: bytes
    """The model, serialized."""
    strict: bool
    following: bool
    """Whether integers are propagated."""
    seconds: float
    """Time limit by the clock."""
    busy: int
    """Limit of processor time in whole seconds."""
    memory: int
    """Limit in bytes beyond what the process maps before."""


class OutOfTimeError(Exception):
    """The process was killed after the time limit by the clock."""


class EndedError(Exception):
    """The process ended: at its limit of memory or processor time, or by a crash."""


class InvalidModelError(Exception):
    """ONNX's message for an invalid model."""


def infer(request: Request) -> bytes:
    """Return the serialized model with inferred types.

    Raises OutOfTimeError, EndedError, InvalidModelError; DeviceError if no process can be started.
    """
    with _Current.lock:
        if _Current.process is None or not _Current.process.usable:
            _Current.process = _Process()
        kind, value = _Current.process.call(request, request.seconds)
    if kind == "invalid":
        raise InvalidModelError(value)
    inferred: bytes = value
    return inferred


class _Process:
    """The process, and the connection to it: its standard input and output, which every system has."""

    def __init__(self) -> None:
        code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve()"
        # It multiplies no matrices: threads for that would only take time to start.
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        try:
            if not sys.executable:
                raise FileNotFoundError("sys.executable does not name this program's Python")
            self.child = subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
            )
            self.owner, self.in_step = os.getpid(), True
            self.call(None, STARTING)
        except (OSError, EndedError, OutOfTimeError) as error:
            raise DeviceError(
                f"no process for shape inference can be started: {error}",
                "This model's inference may not end, so that it runs in a process of its own.",
            ) from None

    @property
    def usable(self) -> bool:
        """Whether the process waits for a request of this process, and not of one that this was forked from."""
        return self.in_step and self.owner == os.getpid()

    def call(self, request: Request | None, seconds: float) -> Any:
        """Return the answer to a request; without one, wait for the start. Raises OutOfTimeError, EndedError."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        late = threading.Event()

        def end() -> None:
            late.set()
            self.child.kill()

        timer, self.in_step = threading.Timer(seconds, end), False
        timer.start()
        try:
            if request is not None:
                pickle.dump(request, self.child.stdin)
                self.child.stdin.flush()
            answer = pickle.load(self.child.stdout)
            self.in_step = True
        except (EOFError, OSError, pickle.UnpicklingError):
            raise (OutOfTimeError() if late.is_set() else EndedError()) from None
        finally:
            timer.cancel()
            timer.join()
            self.in_step &= not late.is_set()
            if not self.in_step:  # also on an interrupt: what it answers later would be taken for the next answer
                self.close()
        return answer

    def close(self) -> None:
        """End the process."""
        self.in_step = False
        self.child.kill()
        with contextlib.suppress(OSError):  # a request that it no longer reads
            self.child.communicate()


class _Current:
    """This process's inference process, and the lock of whoever uses it."""

    process: _Process | None = None
    lock = threading.Lock()


@atexit.register
def _close() -> None:
    if _Current.process is not None and _Current.process.usable:
        _Current.process.close()


if hasattr(os, "register_at_fork"):

    def _forget() -> None:
        """Replace the lock in a forked child: a thread that the child does not have may hold it."""
        _Current.lock = threading.Lock()

    os.register_at_fork(after_in_child=_forget)


def serve() -> None:
    """Answer requests from standard input until the process that asks ends."""
    requests = sys.stdin.buffer
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # what a library prints is no answer
        _write(answers, ("ready", b""))
        while True:
            try:
                request = pickle.load(requests)
            except EOFError:
                return
            _write(answers, _answer(request))


def _write(stream: Any, answer: tuple[str, bytes | str]) -> None:
    pickle.dump(answer, stream)
    stream.flush()


def _answer(request: Request) -> tuple[str, bytes | str]:
    """Return the inferred model or ONNX's message. Out of memory or processor time, the process ends."""
    try:
        with process_limits.memory(request.memory), process_limits.processor_time(request.busy):
            inferred = onnx.shape_inference.infer_shapes(
                request.data, strict_mode=request.strict, data_prop=request.following
            )
            return "inferred", inferred.SerializeToString()
    except NOT_VALID as error:
        return "invalid", f"{error}"
    except MemoryError:
        os._exit(1)
