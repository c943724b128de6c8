"""Work on all cores: each piece in one of several new processes, which Python's own lock does not hold up."""

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

from onnxfuse.model.isolation import die_with_parent

T = TypeVar("T")
S = TypeVar("S")


class EndedError(RuntimeError):
    """A process that ended without a result."""


def spread(
    work: Callable[[S], T],
    pieces: Sequence[S],
    done: Callable[[int], None] = lambda count: None,
    processes: int | None = None,
) -> list[T]:
    """Return what `work` returns for each piece, in order; raises what it raises first, and nothing goes on then.

    `work` must be a function that a new process can import; pieces and results are pickled. The pieces are begun in
    their order. `done` is told how many are. `processes`: by default as many as there are cores; where that comes to
    one, the work is done here: a process takes half a second to start.
    """
    count = min(len(pieces), len(os.sched_getaffinity(0)) if processes is None else processes)
    results: list[Any] = [None] * len(pieces)
    if count <= 1 or not sys.executable:
        for n, piece in enumerate(pieces):
            results[n] = work(piece)
            done(n + 1)
        return results
    waiting, lock, failed = iter(range(len(pieces))), threading.Lock(), list[BaseException]()
    finished = 0

    def feed(pipe: Connection) -> None:
        nonlocal finished
        while True:
            with lock:
                n = None if failed else next(waiting, None)
            if n is None:
                return
            try:
                pipe.send((work, pieces[n]))
                kind, value = pipe.recv()
            except (EOFError, OSError):
                kind, value = "raised", EndedError("a process that compiles was ended; memory may have run out")
            with lock:
                if kind == "raised":
                    failed.append(value)
                    return
                results[n] = value
                finished += 1
                done(finished)

    with ExitStack() as all_of_them:
        # From this thread: they end with the thread that started them.
        threads = [threading.Thread(target=feed, args=(_worker(all_of_them),), daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if failed:
        raise failed[0]
    return results


def _worker(until: ExitStack) -> Connection:
    """Return the way to a new process that works until the end of the block."""
    ours, theirs = Pipe()
    until.enter_context(ours)
    with theirs:
        code = f"import sys; sys.path[:] = {sys.path!r}; from onnxfuse.model.spread import serve; serve()"
        command = [sys.executable, "-c", code, str(theirs.fileno())]
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], process_group=0)
    until.callback(child.wait)
    until.callback(child.kill)
    return ours


def serve() -> None:
    """Do what the process that started this one sends, until it sends no more."""
    die_with_parent()
    parent = Connection(int(sys.argv[1]))
    while True:
        try:
            work, piece = parent.recv()
        except EOFError:
            return
        try:
            answer = ("done", work(piece))
        except BaseException as error:  # whatever it is, the parent raises it
            answer = ("raised", error)
        try:
            parent.send(answer)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            parent.send(("raised", EndedError(f"what came of it cannot be sent: {error}: {answer[1]!r}")))
