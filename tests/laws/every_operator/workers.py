"""Seeds tried in processes that may die: ONNX Runtime ends the process on some graphs, and some take for ever.

Each worker has one seed at a time, so that the seed of a worker that dies or is too slow is known. Another worker then
grows that graph and runs the original alone: where this ends the process, too, there is nothing to hold onnxfuse to.
"""

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import NamedTuple

LIMIT = 120.0
"""Seconds for one graph, of which most take a tenth of one: a machine that is busy otherwise is no reason."""
GRAPHS_OF_A_WORKER = 2000
"""After so many a worker is replaced: what it holds in caches does not grow without an end."""


class Outcome(NamedTuple):
    """What became of one seed."""

    seed: int
    kind: str
    """One of HELD, or the law that is broken."""
    text: str = ""
    """What was seen of a broken law."""
    nodes: int = 0
    seconds: float = 0.0


EQUAL, REFUSED = "equal", "refused by ONNX Runtime"
ABORTS, STALLS = "ONNX Runtime aborts on the original", "ONNX Runtime does not end the original"
REFUSED_MADE = "refused by ONNX Runtime once optimized"
"""The plain nodes do not run there either, and onnx's reference computes from them what the original does."""
HELD = (EQUAL, REFUSED, ABORTS, STALLS, REFUSED_MADE)
"""The kinds that are no failure of onnxfuse."""
ENDS = "ends the process"
"""The kind of a graph that only onnxfuse, or what it made, ends the process on."""


class _Death(NamedTuple):
    """How a worker ended over a seed."""

    kind: str
    """What it is if the worker did no more than run the original; ENDS for a mistake of the tests."""
    how: str


@dataclass
class _Worker:
    """A process, and what it is about."""

    process: BaseProcess
    connection: Connection
    seed: int | None = None
    original_only: bool = False
    since: float = 0.0
    graphs: int = 0

    def give(self, seed: int, *, original_only: bool) -> None:
        self.seed, self.original_only, self.since = seed, original_only, time.monotonic()
        self.graphs += 1
        with contextlib.suppress(OSError):  # it has died meanwhile: seen where it is waited for
            self.connection.send((seed, original_only))

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


Work = Callable[[int, bool], Outcome]
"""What a worker does of a seed; True: grow its graph and run the original alone."""


def _laws(seed: int, original_only: bool) -> Outcome:
    from tests.laws.every_operator import laws  # in a worker, so that the parent need not load ONNX Runtime

    return laws.original(seed) if original_only else laws.tried(seed)


def outcomes(
    seeds: range, jobs: int, seconds: float | None = None, limit: float = LIMIT, work: Work = _laws
) -> Iterator[Outcome]:
    """Yield what becomes of each seed, as they end; after `seconds` no other seed is begun."""
    began, left = time.monotonic(), iter(seeds)
    suspects: list[tuple[int, _Death]] = []
    """Seeds that ended a worker, and how: the original alone is run next."""
    deaths: dict[int, _Death] = {}
    workers = [_started(work) for _ in range(jobs)]
    try:
        while True:
            for i, worker in enumerate(workers):
                if worker.seed is not None:
                    continue
                workers[i] = worker = _renewed(worker, work)
                if suspects:
                    seed, deaths[seed] = suspects.pop()
                    worker.give(seed, original_only=True)
                elif seconds is None or time.monotonic() - began < seconds:
                    fresh = next(left, None)
                    if fresh is not None:
                        worker.give(fresh, original_only=False)
            busy = [w for w in workers if w.seed is not None]
            if not busy:
                return
            wait([w.connection for w in busy], timeout=1.0)
            for i, worker in enumerate(workers):
                if worker.seed is None:
                    continue
                seed, took_nodes = worker.seed, time.monotonic() - worker.since
                ended = _ended(worker, took_nodes, limit)
                if ended is None:
                    continue
                worker.seed = None
                if isinstance(ended, _Death):
                    worker.end()
                    workers[i] = _started(work)
                    if worker.original_only:
                        yield Outcome(seed, ended.kind, f"the original alone {ended.how}", seconds=took_nodes)
                    else:
                        suspects.append((seed, ended))
                elif worker.original_only:
                    yield ended._replace(kind=ENDS, text=f"it {deaths[seed].how}; the original alone runs")
                else:
                    yield ended
    finally:
        for worker in workers:
            worker.end()


def _renewed(worker: _Worker, work: Work) -> _Worker:
    """Return a worker, or a new one in its place after GRAPHS_OF_A_WORKER graphs."""
    if worker.graphs < GRAPHS_OF_A_WORKER:
        return worker
    worker.end()
    return _started(work)


def _ended(worker: _Worker, took_nodes: float, limit: float) -> Outcome | _Death | None:
    """Return the outcome of a worker's seed or how the worker died of it; None while it runs within the limit."""
    if worker.connection.poll():
        try:
            outcome: Outcome = worker.connection.recv()
        except (EOFError, OSError):
            worker.process.join()
            return _death(worker.process.exitcode)
        return outcome
    return _Death(STALLS, f"does not end within {limit:g} s") if took_nodes > limit else None


def _started(work: Work) -> _Worker:
    # Spawned: a fork of a process that holds threads may hang. It starts in a second, which is seldom spent.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, work), daemon=True)
    process.start()
    theirs.close()
    try:
        ours.recv()
    except EOFError:
        raise RuntimeError("a worker does not even start: what it printed says why") from None
    return _Worker(process, ours)


def _serve(connection: Connection, work: Work) -> None:
    """Try the seeds that come, until none does."""
    for one in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # the parent's, even where the whole group gets one: it ends its children
        signal.signal(one, signal.SIG_IGN)
    with contextlib.suppress(EOFError, OSError):  # the parent is gone
        connection.send("ready")
        while True:
            seed, original_only = connection.recv()
            began = time.monotonic()
            found = work(seed, original_only)
            connection.send(found._replace(seconds=time.monotonic() - began))


def _death(code: int | None) -> _Death:
    if code is not None and code < 0:
        return _Death(ABORTS, f"ends the process by {signal.Signals(-code).name}")
    return _Death(ENDS, f"ends the process with {code}")
