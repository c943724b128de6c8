"""Measures kernels on the GPU at hand. Needs CuPy and torch."""

import gc
import math
import multiprocessing
import os
import statistics
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from typing import Any

import cupy
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.kernels import timing
from onnxfuse import cuda
from onnxfuse.cuda.costs import tables
from onnxfuse.cuda.costs.tables import Card
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.measure.timing.stopwatch import interleaved, warm
from onnxfuse.runtime.kernels.variants import driver_version
from onnxfuse.support.errors import KernelError
from onnxfuse.symbolic import element_types
from tools.calibrate.calibration import SWEEP, DeadGpuError, Request
from tools.calibrate.problems import Library, Problem, Shape
from tools.calibrate.times import LIBRARY, Log, Time, digest

LAUNCHES = 20
"""Maximum launches of a CUDA graph."""
LONGEST = 1000.0
"""Microseconds of a graph from which it has fewer launches."""
ROUNDS, RUNS = 4, 3
"""Rounds in which all variants of a problem are timed in turns, and runs of each in a round; the first half of the
rounds is the first measurement."""
ONCE = 5
"""Single launches, the fastest of which says how many one graph has."""
HOPELESS, HOST = 2.0, 20.0
"""Multiple of the least time, and microseconds of the host besides, from which one timing of a variant is enough where
nothing is fitted to it."""
SHOWN = 20
"""Problems after which a line shows the progress."""

CLOCK_RATE = 13
"""`cudaDevAttrClockRate`: the boost clock in kHz."""

Say = Callable[[str], None]
FAILURES = (KernelError, RuntimeError, MemoryError)
"""What a kernel that does not compile, load, fit or run raises: CuPy's and torch's errors are RuntimeErrors."""


def card(arch: Arch) -> Card:
    """Return the GPU at hand."""
    return replace(
        tables.card(arch.name), name=cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(),
        driver=driver_version(), date=date.today(), multiprocessors=arch.sm_count,
        clock=round(cupy.cuda.runtime.deviceGetAttribute(CLOCK_RATE, 0) / 1e6, 3),
        bandwidth=round(timing.copy_bandwidth() / 1e12, 3),
    )  # fmt: skip


def measure(requests: Iterable[Request], arch: Arch, log: Log, say: Say, seconds: float = math.inf) -> int:
    """Time what is requested and not yet in the log; return how many problems remain after so many seconds.

    What a problem raises is shown and recorded, and the next one goes on. Raises DeadGpuError if none can.
    """
    started = time.monotonic()
    wanted = [one for one in requests if one.name not in log.done]
    say(f"{len(wanted)} problems, {sum(len(one.variants) for one in wanted)} variants")
    with _compiling(wanted, arch, say) as wait:
        gc.collect()
        gc.freeze()  # each capture of a graph collects garbage: not what is here to stay
        for number, request in enumerate(wanted):
            if number % SHOWN == 0:
                say(f"{number} of {len(wanted)} problems after {time.monotonic() - started:.0f} s")
            if time.monotonic() - started > seconds:
                return len(wanted) - number
            wait(request)
            try:
                log.times(request.name, times_of(request, arch, say))
            except Exception as failed:  # one problem must not cost the times of the others; it is recorded
                say(f"{request.name} failed:\n{traceback.format_exc()}")
                log.failure(request.name, f"{type(failed).__name__}: {failed}")
                if _is_dead():
                    raise DeadGpuError(
                        f"{request.name} broke the GPU's context; run again, and it is left out"
                    ) from failed
    return 0


@contextmanager
def _compiling(requests: Sequence[Request], arch: Arch, say: Say) -> Iterator[Callable[[Request], None]]:
    """Compile the kernels of all requests into the cache, in their order, by all processors of the host but one.

    Yields what waits until those of a request are there. The times are the GPU's own, of CUDA graphs: the compilers at
    work beside them do not change them. Jobs that nobody waited for are dropped at the end.
    """
    pool = ProcessPoolExecutor(max(1, (os.cpu_count() or 2) - 1), multiprocessing.get_context("spawn"))
    jobs: dict[cuda.KernelSource, Future[bytes]] = {}
    kernels: dict[Request, list[cuda.KernelSource]] = {}
    started = time.monotonic()
    for request in requests:
        kernels[request] = _kernels(request, arch)
        for kernel in kernels[request]:
            if kernel not in jobs:
                jobs[kernel] = pool.submit(cuda.compile, kernel, arch)
    say(f"{len(jobs)} kernels planned after {time.monotonic() - started:.0f} s")

    def wait(request: Request) -> None:
        for kernel in kernels[request]:
            if (failed := jobs[kernel].exception()) is not None:
                say(f"  {kernel.entry} does not compile: {_line(failed)}")

    try:
        yield wait
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _kernels(request: Request, arch: Arch) -> list[cuda.KernelSource]:
    """Return the kernels that the variants of a request launch."""
    plans = (_plan(request.problem, arch, variant) for variant in request.variants)
    return [part.kernel for plan in plans if isinstance(plan, cuda.LaunchPlan) for part in (plan, *plan.then)]


def times_of(request: Request, arch: Arch, say: Say) -> dict[str, Time]:
    """Return the times of a problem by its variants, timed in turns; those that do not run are said, and left out."""
    problem, works, launches = request.problem, dict[str, timing.Work](), dict[str, str]()
    plans = {str(variant): _plan(problem, arch, variant) for variant in request.variants}
    shapes = next((plan.output_shapes for plan in plans.values() if isinstance(plan, cuda.LaunchPlan)), None)
    if shapes is None:
        raise KernelError(f"no variant of {request.name} has a plan")
    types = (*problem.op.inputs, *problem.op.outputs)
    tensors = [_tensor(s, t) for s, t in zip((*problem.shapes, *shapes), types, strict=True)]
    for name, plan in plans.items():
        with _said(f"{request.name}, {name}", say, FAILURES):
            if isinstance(plan, KernelError):
                raise plan
            work = timing.launcher(plan, [t.data_ptr() for t in tensors], early=True)
            work()
            torch.cuda.synchronize()
            works[name], launches[name] = work, digest(plan)
    if problem.library is not None:
        with _said(f"{request.name}, the library", say, (Exception,)):  # whatever torch raises, our times stay
            work = _library_work(problem.library, tensors)
            work()
            torch.cuda.synchronize()
            works[LIBRARY], launches[LIBRARY] = work, LIBRARY
    once = {name: _once(work) for name, work in works.items()}
    least = min((time for name, time in once.items() if name != LIBRARY), default=math.inf)
    own = launches.get(str(request.variants[0]))
    timed = [
        name for name, time in once.items()
        if request.kind == SWEEP or launches[name] in (own, LIBRARY) or time <= HOPELESS * least + HOST
    ]  # fmt: skip
    replays: dict[str, tuple[int, timing.Work]] = {}
    for name in timed:
        count = max(1, min(LAUNCHES, int(LONGEST / once[name])))
        with _said(f"{request.name}, {name}, as a graph", say, (Exception,) if name == LIBRARY else FAILURES):
            replays[name] = count, timing.graph_of([works[name]] * count).replay
    runs = [replay for _, replay in replays.values()]
    warm(runs, 1)
    taken = interleaved(runs, ROUNDS, RUNS, timer=timing.on_gpu)
    found = {name: Time(launches[name], time, time) for name, time in once.items()}
    for (name, (count, _)), samples in zip(replays.items(), taken, strict=True):
        half = len(samples) // 2
        first, second = (1e6 * statistics.median(part) / count for part in (samples[:half], samples[half:]))
        found[name] = Time(launches[name], first, second)
    return found


@contextmanager
def _said(what: str, say: Say, errors: tuple[type[Exception], ...]) -> Iterator[None]:
    """Say what fails within, and go on; unless it broke the context."""
    try:
        yield
    except errors as failed:
        say(f"  {what}: {_line(failed)}")
        if _is_dead():
            raise


def _library_work(library: Library, tensors: Sequence[Any]) -> timing.Work:
    """Return what launches the library's kernel on the problem's first inputs; its output is its own."""
    if library.function == "product":
        x, w = tensors[:2]
        y = torch.empty(x.shape[0], w.shape[0], device="cuda", dtype=x.dtype)

        def product() -> object:
            torch.backends.cuda.matmul.allow_tf32 = not library.exact
            return torch.mm(x, w.T, out=y)

        return product
    if library.function == "attention":
        q, k, v = (t.view(*t.shape[:2], library.heads, -1).transpose(1, 2) for t in tensors[:3])
        kinds = [SDPBackend.CUDNN_ATTENTION] if q.dtype != torch.float32 else [
            SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH
        ]  # fmt: skip

        def attention() -> object:
            torch.backends.cuda.matmul.allow_tf32 = True
            with sdpa_kernel(kinds):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=library.causal)

        return attention
    x, w = tensors[:2]  # images [N, H, W, C]; filters [F, H, W, C], or depthwise [H, W, C, 1]
    images = x.permute(0, 3, 1, 2)
    filters = w.permute(0, 3, 1, 2) if library.groups == 1 else w.permute(2, 3, 0, 1).contiguous()

    def convolution() -> object:
        torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = True
        return torch.nn.functional.conv2d(
            images, filters, None, library.stride, library.pad, groups=library.groups
        )  # fmt: skip

    return convolution


def _once(work: timing.Work) -> float:
    """Return the microseconds of a launch with its host's part, the least of several: the first ones wake the GPU."""
    return 1e6 * min(timing.on_gpu(work) for _ in range(ONCE))


def _plan(problem: Problem, arch: Arch, variant: Any) -> cuda.LaunchPlan | KernelError:
    try:
        return cuda.plan(problem.op, problem.shapes, True, arch, variant)
    except KernelError as reason:
        return reason


def _line(failed: BaseException) -> str:
    return f"{type(failed).__name__}: {failed}".splitlines()[0][:160]


def _is_dead() -> bool:
    """Return whether the context of the GPU no longer works."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def _tensor(shape: Shape, dtype: int) -> Any:
    """Return drawn values, small enough that no sum overflows."""
    element = {1: torch.float32, 10: torch.float16, 16: torch.bfloat16}[dtype]
    assert element_types.TYPES[dtype].size == element.itemsize
    return torch.randn(shape, device="cuda").to(element) / math.sqrt(shape[-1] if shape else 1)
