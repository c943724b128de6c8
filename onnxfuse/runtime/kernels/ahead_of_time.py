"""Ahead-of-time compilation: plan and compile a session's kernels on all cores before runs need them.

If the model's shapes are static this starts with the session. Otherwise the first run starts it: the shapes of its
first op bind the named dimensions, and the ops behind it are compiled while the run proceeds.

Once the sizes have changed, half of the cores guess when they are idle: they compile for sizes around those met. What a
run waits for comes first.
"""

from __future__ import annotations

import heapq
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count

import onnx

from onnxfuse import cuda
from onnxfuse.cuda.dispatch.measurements import key, variant_name
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.graph.concrete_shapes import every_type, fused_nodes, input_shapes, with_sizes
from onnxfuse.model.fused import FusedOp
from onnxfuse.runtime.engine.launch import Shape
from onnxfuse.runtime.kernels.bindings import around, bound
from onnxfuse.runtime.kernels.packs import LoadedPack
from onnxfuse.runtime.kernels.total_lengths import of_grown_caches
from onnxfuse.runtime.kernels.variants import Variants
from onnxfuse.shapes.extent_values import at_sizes
from onnxfuse.shapes.inference import infer, shell
from onnxfuse.shapes.onnx_inference import may_multiply
from onnxfuse.shapes.types import Dim
from onnxfuse.support.errors import ModelError, OnnxfuseError

MOST_THREADS = 16
MOST_INFERRED = 8
"""Sets of dimensions for which shapes are inferred that do not follow from the input dimensions: 0.1 s each for
BERT-base."""
MOST_JOBS = 128
"""Largest number of speculative plans; launch programs cover most shapes anyway."""

PLAN, COMPILE, RECORD, GUESS = range(4)
"""Ranks of tasks, least first: plans before kernels, since the longest kernel is to begin first; guesses after all. One
task plans all ops one after the other, and one thread records: Python holds the GIL, for which a run would wait."""

Asked = tuple[str, tuple[Shape, ...], bool, int, Variant | None]
"""Plan request: op, input shapes, all pointers aligned?, device, variant."""
Places = Mapping[str, list[tuple[tuple[Dim, ...] | None, ...]]]
"""Known input shapes of each op, one entry per node."""


@dataclass
class Job:
    """One plan ahead of time, and its kernels."""

    planned: Future[LaunchPlan | None] = field(default_factory=Future)
    """None if there is no plan: the run that needs it reports why."""
    compiled: Future[None] = field(default_factory=Future)
    """Done when all kernels are compiled; their errors are reported by the run that needs them."""
    kernels_left: int = 0

    def cancel(self) -> None:
        """Neither plan nor compile, unless that is begun."""
        self.planned.cancel()
        self.compiled.cancel()


@dataclass(order=True)
class _Task:
    rank: int
    size: int
    """Of the least first: the negative length of a kernel's text, as long ones take long to compile."""
    number: int
    job: Job | None = field(compare=False)
    """None: a preparation, whose errors are warnings."""
    work: Callable[[], None] = field(compare=False)

    @property
    def is_guess(self) -> bool:
        return self.rank >= GUESS


class AheadOfTime:
    """Ahead-of-time compilation for one session, or for all sessions with the same options."""

    def __init__(
        self,
        model: onnx.ModelProto,
        ops: Mapping[str, FusedOp],
        variants: Variants,
        packed: LoadedPack | None = None,
    ) -> None:
        self.model, self.ops, self.variants, self.packed = shell(model), ops, variants, packed
        self.stopped = False
        self.lock = threading.Lock()
        self.waiting: list[_Task] = []
        """A heap."""
        self.numbers = count()
        self.threads = self.guessing = self.recording = 0
        self.jobs: dict[Asked, Job] = {}
        self.guesses: dict[Asked, Job] = {}
        self.started: set[int] = set()
        self.names: frozenset[str] = frozenset()
        """Named dynamic dimensions of the model's inputs."""
        self.places: Places = {}
        self.sizes: dict[int, tuple[tuple[str, int], ...]] = {}
        """Most recent binding of the dimensions, by device."""
        self.guessed: set[int] = set()
        """Devices on which the sizes changed, so that others around them were guessed."""
        self.inferred = 0

    def start(self, device: int) -> None:
        """Start compiling everything whose shapes are static."""
        with self.lock:
            if device in self.started:
                return
            self.started.add(device)
        packed = self.packed
        if packed is not None:  # ONNX Runtime takes longer to open a session than these take to load
            self._later(lambda: packed.load(device, self._goes_on))
        self._later(lambda: self._prepare(device))

    def _goes_on(self) -> bool:
        return not self.stopped and threading.main_thread().is_alive()

    def stop(self) -> None:
        """Start no further compilation."""
        self.stopped = True
        with self.lock:
            for task in self.waiting:
                if task.job is not None:
                    task.job.cancel()
            self.waiting.clear()
            self.jobs.clear()
            self.guesses.clear()

    def plan(
        self, op: FusedOp, shapes: tuple[Shape, ...], aligned: bool, device: int, tuning: Variant | None
    ) -> LaunchPlan:
        """Return the plan of `op`, possibly with its kernels already compiled; raises what the planner raises."""
        self.start(device)
        request = (op.name, shapes, aligned, device, tuning)
        with self.lock:
            job = self.jobs.get(request)
            if job is not None and (job.compiled.done() or job.planned.cancel()):
                del self.jobs[request]
        if job is not None and job.planned.done() and not job.planned.cancelled():
            ready = job.planned.result()
            if ready is not None:
                return ready
        self._bind(op.name, shapes, device)
        return cuda.plan(op, shapes, aligned, cuda.arch_of(device), tuning)

    def compiled(
        self, op: FusedOp, shapes: tuple[Shape, ...], aligned: bool, device: int, tuning: Variant | None
    ) -> Future[None]:
        """Return when the kernels of `op` are compiled, which another thread does."""
        request = (op.name, shapes, aligned, device, tuning)
        with self.lock:
            job = self.jobs.get(request)
            if job is not None:
                return job.compiled
            job = self.jobs[request] = Job()
        self._push(PLAN, 0, job, partial(self._plan, op, request, job, COMPILE))
        return job.compiled

    def record(self, work: Callable[[], None]) -> None:
        """Record a launch program on another thread, if there is one."""
        if _cores():
            self._push(RECORD, 0, None, work)
        else:
            work()

    # ---- shapes

    def _prepare(self, device: int) -> None:
        if self.packed is not None and self.packed.has(self.ops, device):
            return  # shapes outside its ranges are planned on demand
        if may_multiply(self.model):  # ONNX's inference would need a child process
            return
        light, assumed = with_sizes(self.model, {})
        if not assumed:
            self._submit(_known(infer(light)), device)
            return
        graph = infer(self.model).graph
        types, nodes = every_type(graph), fused_nodes(graph)
        self.places = {
            name: [tuple(types[v].shape if v in types else None for v in n.input) for n in nodes.get(name, ())]
            for name in self.ops
        }
        self.names = frozenset(assumed)

    def _bind(self, name: str, shapes: tuple[Shape, ...], device: int) -> None:
        """Start compiling everything for the run in which op `name` has these input shapes."""
        input_dims = self.places.get(name, ())
        bindings = {tuple(sorted(b.items())) for p in input_dims if (b := bound(p, shapes, self.names)) is not None}
        if len(bindings) != 1:
            return
        (sizes,) = bindings
        with self.lock:
            before = self.sizes.get(device)
            if {n for n, _ in sizes} != self.names or before == sizes:
                return
            self.sizes[device] = sizes  # a run requests its ops one after the other
            others = before is not None and device not in self.guessed
            if others:
                self.guessed.add(device)
        self._later(lambda: self._of_sizes(dict(sizes), device))
        if before is not None and others:
            self._later(lambda: self._guess(device, around(dict(before), dict(sizes))), GUESS)

    def _of_sizes(self, sizes: Mapping[str, int], device: int) -> None:
        shapes_by_op, is_whole = self._shapes_at(sizes)
        self._submit(shapes_by_op, device)
        if not is_whole and self.inferred < MOST_INFERRED:
            self.inferred += 1
            self._submit(_known(infer(with_sizes(self.model, sizes)[0])), device)

    def _shapes_at(self, sizes: Mapping[str, int]) -> tuple[Mapping[str, Sequence[tuple[Shape, ...]]], bool]:
        """Return the input shapes of each op as far as these sizes tell them, and whether they tell all."""
        found = {n: [s for p in places if (s := _at(p, sizes)) is not None] for n, places in self.places.items()}
        return found, all(len(found[n]) == len(places) for n, places in self.places.items())

    def _submit(
        self, shapes_by_op: Mapping[str, Sequence[tuple[Shape, ...]]], device: int, rank: int = COMPILE
    ) -> None:
        """Plan the ops whose input shapes are known, and queue their kernels."""
        variants = self.variants(device)
        jobs = self.guesses if rank == GUESS else self.jobs
        new = list[tuple[FusedOp, Asked, Job]]()
        for name, op in self.ops.items():
            for shapes in dict.fromkeys(of_grown_caches(op, s) for s in shapes_by_op.get(name, ())):
                tuning = variants.get(key(name, shapes))
                request = (name, shapes, True, device, tuning)
                if self.packed is not None and self.packed.answers(name, shapes, True, device, variant_name(tuning)):
                    continue
                with self.lock:
                    if self.stopped or request in jobs:
                        continue
                    job = jobs[request] = Job()
                    if len(jobs) > MOST_JOBS:
                        jobs.pop(next(iter(jobs))).cancel()
                new.append((op, request, job))
        for op, request, job in new:
            self._plan(op, request, job, rank)

    # ---- guesses

    def _guess(self, device: int, bindings: Iterable[Mapping[str, int]]) -> None:
        """Compile for sizes that runs may have, on cores that have nothing else to do."""
        if _cores() < 2:
            return
        for sizes in bindings:
            shapes_by_op, is_whole = self._shapes_at(sizes)
            if not is_whole:
                try:
                    shapes_by_op = _known(infer(with_sizes(self.model, sizes)[0]))
                except ModelError:  # the model takes no such sizes
                    continue
            self._submit(shapes_by_op, device, GUESS)

    # ---- plans and kernels

    def _plan(self, op: FusedOp, request: Asked, job: Job, rank: int) -> None:
        """Plan one op, and queue its kernels."""
        if not job.planned.set_running_or_notify_cancel():
            return
        _, shapes, aligned, device, tuning = request
        try:
            plan = cuda.plan(op, shapes, aligned, cuda.arch_of(device), tuning)
        except OnnxfuseError:
            plan = None
        except BaseException as error:  # raised again when the plan is requested; no thread fails silently
            job.planned.set_exception(error)
            _finish(job.compiled)
            return
        launches = () if plan is None or not (plan.grid[0] or plan.then) else (plan, *plan.then)
        kernels = dict.fromkeys(launch.kernel for launch in launches)
        job.kernels_left = len(kernels)
        job.planned.set_result(plan)
        if not kernels:
            _finish(job.compiled)
        for kernel in kernels:
            self._push(rank, -len(kernel.text), job, partial(self._compile, kernel, device, job))

    def _compile(self, kernel: cuda.KernelSource, device: int, job: Job) -> None:
        """Compile one kernel to disk."""
        if job.compiled.cancelled():
            return
        try:
            with suppress(OnnxfuseError):  # the run that needs it reports why
                cuda.compile(kernel, cuda.arch_of(device))
        finally:
            with self.lock:
                job.kernels_left -= 1
                done = job.kernels_left == 0
            if done:
                _finish(job.compiled)

    # ---- threads

    def _later(self, task: Callable[[], None], rank: int = PLAN) -> None:
        """Run a preparation on another thread."""
        self._push(rank, 0, None, task)

    def _push(self, rank: int, size: int, job: Job | None, work: Callable[[], None]) -> None:
        with self.lock:
            if self.stopped:
                if job is not None:
                    job.cancel()
                return
            heapq.heappush(self.waiting, _Task(rank, size, next(self.numbers), job, work))
            begin = self.threads - (0 if rank >= GUESS else self.guessing) < _cores()  # a run waits for no guess
            self.threads += begin
        if begin:
            threading.Thread(target=self._work, name="onnxfuse compiles").start()

    def _work(self) -> None:
        while (task := self._next()) is not None:
            try:
                task.work()
            except BaseException as error:  # no thread fails silently
                warnings.warn(f"kernels are compiled when they are needed, not ahead: {error}", stacklevel=1)
            finally:
                with self.lock:
                    self.guessing -= task.is_guess
                    self.recording -= task.rank == RECORD

    def _next(self) -> _Task | None:
        """Return what this thread does next; None if it ends. Guesses leave half of the cores to runs."""
        with self.lock:
            # At exit the process waits for its threads: drop queued tasks, so that only running ones are waited for.
            idle = not self.waiting or not threading.main_thread().is_alive()
            rank = PLAN if idle else self.waiting[0].rank
            full = (rank == RECORD and self.recording) or (rank == GUESS and self.guessing >= _cores() // 2)
            if idle or full:
                self.threads -= 1
                return None
            task = heapq.heappop(self.waiting)
            self.guessing += task.is_guess
            self.recording += task.rank == RECORD
            return task


def _cores() -> int:
    return min(MOST_THREADS, os.cpu_count() or 1)


def _finish(compiled: Future[None]) -> None:
    if compiled.set_running_or_notify_cancel():
        compiled.set_result(None)


def _at(input_dims: tuple[tuple[Dim, ...] | None, ...], sizes: Mapping[str, int]) -> tuple[Shape, ...] | None:
    """Return a node's shapes under a binding of the dimension names; None if the binding does not determine them."""
    shapes = [None if dims is None else tuple(at_sizes(d, sizes) for d in dims) for dims in input_dims]
    fixed = [tuple(d for d in s if isinstance(d, int)) for s in shapes if s is not None]
    complete = len(fixed) == len(shapes) and all(len(k) == len(s or ()) for k, s in zip(fixed, shapes, strict=True))
    return tuple(fixed) if complete else None


def _known(model: onnx.ModelProto) -> dict[str, list[tuple[Shape, ...]]]:
    """Return the input shapes of every node of each op, where all are known; the model has its types inferred."""
    types, nodes = every_type(model.graph), fused_nodes(model.graph)
    return {name: [s for n in mine if (s := input_shapes(n, types)) is not None] for name, mine in nodes.items()}
