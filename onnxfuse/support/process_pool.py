"""Process pool: run tasks on all cores in new processes, free of Python's global interpreter lock."""

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from onnxfuse.support import child_process
from onnxfuse.support.isolation import die_with_parent

T = TypeVar("T")
S = TypeVar("S")


def cores() -> int:
    """Return the number of cores available to this process; outside Linux, those of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class EndedError(RuntimeError):
    """A worker process ended without a result."""


class Workers:
    """A process pool for a `with` block; each process starts on demand.

    `processes`: by default the number of cores; if that is one, the work runs in this process: a new one takes half a
    second to start.
    """

    def __init__(self, processes: int | None = None) -> None:
        self.most = (cores() if processes is None else processes) if sys.executable else 1
        self.pipes: list[Connection] = []
        self.stack = ExitStack()

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def spread(
        self, task: Callable[[S], T], pieces: Sequence[S], on_progress: Callable[[int], None] = lambda count: None
    ) -> list[T]:
        """Return the result of `task` for each piece, in order; raises the first exception: the block then ends.

        `task` must be a function that a new process can import; pieces and results are pickled. Pieces are started
        in order. `on_progress` is called with the number of finished ones.
        """
        if min(len(pieces), self.most) <= 1:
            results = []
            for piece in pieces:
                results.append(task(piece))
                on_progress(len(results))
            return results
        # Started from this thread: they end with the thread that started them.
        while len(self.pipes) < min(len(pieces), self.most):
            self.pipes.append(_worker(self.stack))
        return _Round(task, pieces, on_progress).by(self.pipes)


class _Round:
    """Pieces being processed; a thread feeds each worker process."""

    def __init__(self, task: Callable[[Any], Any], pieces: Sequence[Any], on_progress: Callable[[int], None]) -> None:
        self.work, self.pieces, self.done = task, pieces, on_progress
        self.waiting, self.lock = iter(range(len(pieces))), threading.Lock()
        self.results: dict[int, Any] = {}
        self.failed: list[BaseException] = []

    def by(self, pipes: Sequence[Connection]) -> list[Any]:
        threads = [threading.Thread(target=self._feed, args=(pipe,), daemon=True) for pipe in pipes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.failed:
            raise self.failed[0]
        return [self.results[n] for n in range(len(self.pieces))]

    def _feed(self, pipe: Connection) -> None:
        while True:
            with self.lock:
                n = None if self.failed else next(self.waiting, None)
            if n is None:
                return
            try:
                pipe.send((self.work, self.pieces[n]))
                kind, value = pipe.recv()
            except (EOFError, OSError):
                kind, value = "raised", EndedError("a process that compiles was ended; memory may have run out")
            with self.lock:
                if kind == "raised":
                    self.failed.append(value)
                    return
                self.results[n] = value
                self.done(len(self.results))


def _worker(until: ExitStack) -> Connection:
    """Start a worker process for the block, and return the connection to it."""
    ours, theirs = Pipe()
    until.enter_context(ours)
    with theirs:
        child = child_process.start(serve, theirs, kind=subprocess.Popen)
    until.callback(child.wait)
    until.callback(child.kill)
    return ours


def serve() -> None:
    """Run tasks from the parent process until it closes the connection."""
    die_with_parent()
    parent = child_process.connection()
    while True:
        try:
            task, piece = parent.recv()
        except EOFError:
            return
        try:
            answer = ("done", task(piece))
        except BaseException as error:  # any exception: the parent raises it
            answer = ("raised", error)
        try:
            parent.send(answer)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            parent.send(("raised", EndedError(f"what came of it cannot be sent: {error}: {answer[1]!r}")))
