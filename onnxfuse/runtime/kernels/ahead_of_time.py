"""Ahead-of-time compilation: plan and compile a session's kernels on all cores before runs need them.

If the model's shapes are static this starts with the session. Otherwise the first run starts it: the shapes of its
first op bind the named dimensions, and the ops behind it are compiled while the run proceeds.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial

import onnx

from onnxfuse import cuda
from onnxfuse.cuda.dispatch.measurements import key, variant_name
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.graph.concrete_shapes import every_type, fused_nodes, input_shapes, with_sizes
from onnxfuse.model.fused import FusedOp
from onnxfuse.runtime.engine.launch import Shape
from onnxfuse.runtime.kernels.packs import LoadedPack
from onnxfuse.runtime.kernels.variants import Variants
from onnxfuse.shapes.extent_values import at_sizes
from onnxfuse.shapes.inference import infer, shell
from onnxfuse.shapes.onnx_inference import may_multiply
from onnxfuse.shapes.types import Dim
from onnxfuse.support.errors import OnnxfuseError
from onnxfuse.symbolic.integer import Int

MOST_THREADS = 16
MOST_INFERRED = 8
"""Sets of dimensions for which shapes are inferred that do not follow from the input dimensions: 0.1 s each for
BERT-base."""
MOST_JOBS = 128
"""Largest number of speculative plans; launch programs cover most shapes anyway."""

Asked = tuple[str, tuple[Shape, ...], bool, int, Variant | None]
"""Plan request: op, input shapes, all pointers aligned?, device, variant."""
Places = Mapping[str, list[tuple[tuple[Dim, ...] | None, ...]]]
"""Known input shapes of each op, one entry per node."""


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
        self.waiting: deque[tuple[Future[LaunchPlan | None], Callable[[], LaunchPlan | None]]] = deque()
        self.threads = 0
        self.jobs: dict[Asked, Future[LaunchPlan | None]] = {}
        self.started: set[int] = set()
        self.names: frozenset[str] = frozenset()
        """Named dynamic dimensions of the model's inputs."""
        self.places: Places = {}
        self.sizes: dict[int, tuple[tuple[str, int], ...]] = {}
        """Most recent binding of the dimensions, by device."""
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
            for future, _ in self.waiting:
                future.cancel()
            self.waiting.clear()
            self.jobs.clear()

    def plan(
        self, op: FusedOp, shapes: tuple[Shape, ...], aligned: bool, device: int, tuning: Variant | None
    ) -> LaunchPlan:
        """Return the plan of `op`, possibly with its kernels already compiled; raises what the planner raises."""
        self.start(device)
        request = (op.name, shapes, aligned, device, tuning)
        with self.lock:
            job = self.jobs.get(request)
            if job is not None and (job.done() or job.cancel()):
                del self.jobs[request]
        if job is not None and job.done() and not job.cancelled() and (ready := job.result()) is not None:
            return ready
        self._bind(op.name, shapes, device)
        return cuda.plan(op, shapes, aligned, cuda.arch_of(device), tuning)

    def compiled(
        self, op: FusedOp, shapes: tuple[Shape, ...], aligned: bool, device: int, tuning: Variant | None
    ) -> Future[LaunchPlan | None]:
        """Return the plan of `op`, planned and compiled on another thread."""
        request = (op.name, shapes, aligned, device, tuning)
        with self.lock:
            job = self.jobs.get(request)
            if job is not None:
                return job
            job = self.jobs[request] = Future[LaunchPlan | None]()
        self._later(partial(_compiled, op, request), job)
        return job

    # ---- shapes

    def _prepare(self, device: int) -> None:
        if self.packed is not None and self.packed.has(self.ops, device):
            return  # shapes outside its ranges are planned on demand
        if may_multiply(self.model):  # ONNX's inference would need a child process
            return
        light, assumed = with_sizes(self.model, {})
        self.names = frozenset(assumed)
        if not assumed:
            self._submit(_known(infer(light)), device)
            return
        graph = infer(self.model).graph
        types, nodes = every_type(graph), fused_nodes(graph)
        self.places = {
            name: [tuple(types[v].shape if v in types else None for v in n.input) for n in nodes.get(name, ())]
            for name in self.ops
        }

    def _bind(self, name: str, shapes: tuple[Shape, ...], device: int) -> None:
        """Start compiling everything for the run in which op `name` has these input shapes."""
        input_dims = self.places.get(name, ())
        bindings = {tuple(sorted(b.items())) for p in input_dims if (b := _bound(p, shapes, self.names)) is not None}
        if len(bindings) != 1:
            return
        (sizes,) = bindings
        with self.lock:
            if {n for n, _ in sizes} != self.names or self.sizes.get(device) == sizes:
                return
            self.sizes[device] = sizes  # a run requests its ops one after the other
        self._later(lambda: self._of_sizes(dict(sizes), device))

    def _of_sizes(self, sizes: Mapping[str, int], device: int) -> None:
        shapes_by_op = {n: [s for p in ps if (s := _at(p, sizes)) is not None] for n, ps in self.places.items()}
        self._submit(shapes_by_op, device)
        if any(len(shapes_by_op[n]) < len(ps) for n, ps in self.places.items()) and self.inferred < MOST_INFERRED:
            self.inferred += 1
            self._submit(_known(infer(with_sizes(self.model, sizes)[0])), device)

    def _submit(self, shapes_by_op: Mapping[str, Sequence[tuple[Shape, ...]]], device: int) -> None:
        """Start compiling the ops whose input shapes are known."""
        variants = self.variants(device)
        for name, op in self.ops.items():
            for shapes in dict.fromkeys(shapes_by_op.get(name, ())):
                tuning = variants.get(key(name, shapes))
                request = (name, shapes, True, device, tuning)
                if self.packed is not None and self.packed.answers(name, shapes, True, device, variant_name(tuning)):
                    continue
                with self.lock:
                    if request in self.jobs:
                        continue
                    future = self.jobs[request] = Future[LaunchPlan | None]()
                    if len(self.jobs) > MOST_JOBS:
                        self.jobs.pop(next(iter(self.jobs))).cancel()
                self._later(partial(_compiled, op, request), future)

    # ---- threads

    def _later(self, task: Callable[[], LaunchPlan | None], future: Future[LaunchPlan | None] | None = None) -> None:
        if future is None:
            future = Future()
            future.add_done_callback(_tell)
        with self.lock:
            self.waiting.append((future, task))
            begin = self.threads < min(MOST_THREADS, os.cpu_count() or 1)
            self.threads += begin
        if begin:
            threading.Thread(target=self._work, name="onnxfuse compiles").start()

    def _work(self) -> None:
        for future, task in self._next():
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(task())
                except BaseException as error:  # raised again when the plan is requested; no thread fails silently
                    future.set_exception(error)

    def _next(self) -> Iterator[tuple[Future[LaunchPlan | None], Callable[[], LaunchPlan | None]]]:
        while True:
            with self.lock:
                # At exit the process waits for its threads: drop queued jobs, so that only running ones are waited for.
                if not self.waiting or not threading.main_thread().is_alive():
                    self.threads -= 1
                    return
                now = self.waiting.popleft()
            yield now


def _tell(future: Future[LaunchPlan | None]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        warnings.warn(f"kernels are compiled when they are needed, not ahead: {error}", stacklevel=1)


def _bound(
    input_dims: tuple[tuple[Dim, ...] | None, ...], shapes: tuple[Shape, ...], names: frozenset[str]
) -> dict[str, int] | None:
    """Return the binding of a node's dimension names to its input shapes; None if they contradict each other."""
    binding: dict[str, int] = {}
    for dims, shape in zip(input_dims, shapes, strict=True):
        if dims is None:
            continue
        if len(dims) != len(shape):
            return None
        for dim, n in zip(dims, shape, strict=True):
            if isinstance(dim, int) and dim != n:
                return None
            if isinstance(dim, Int) and str(dim) in names and binding.setdefault(str(dim), n) != n:
                return None
    return binding


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


def _compiled(op: FusedOp, request: Asked) -> LaunchPlan | None:
    """Return the plan after compiling its kernels to disk; None if there is no plan (the run that needs it reports
    why)."""
    _, shapes, aligned, device, tuning = request
    arch = cuda.arch_of(device)
    try:
        plan = cuda.plan(op, shapes, aligned, arch, tuning)
        if plan.grid[0] or plan.then:
            for launch in (plan, *plan.then):
                cuda.compile(launch.kernel, arch)
    except OnnxfuseError:
        return None
    return plan
