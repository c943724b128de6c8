"""Measures kernels on the GPU at hand. Needs CuPy and torch."""

import gc
import math
import multiprocessing
import statistics
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from datetime import date
from typing import Any

import cupy
import torch

from bench.kernels import timing
from onnxfuse import cuda
from onnxfuse.cuda.costs import tables
from onnxfuse.cuda.costs.tables import Card
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.measure.timing.stopwatch import interleaved, warm
from onnxfuse.runtime.kernels.variants import driver_version
from onnxfuse.support.errors import KernelError
from onnxfuse.symbolic import element_types
from tools.calibrate.calibration import DeadGpuError, Request
from tools.calibrate.problems import Problem, Shape
from tools.calibrate.times import Log, Time, digest

LAUNCHES = 20
"""Maximum launches of a CUDA graph."""
LONGEST = 1000.0
"""Microseconds of a graph from which it has fewer launches."""
ROUNDS, RUNS = 4, 3
"""Rounds in which all variants of a problem are timed in turns, and runs of each in a round; the first half of the
rounds is the first measurement."""
HOPELESS = 2.0
"""Multiple of the least time from which one timing of a variant is enough."""
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
    compile_all(wanted, arch, say)
    gc.collect()
    gc.freeze()  # each capture of a graph collects garbage: not what is here to stay
    for number, request in enumerate(wanted):
        if number % SHOWN == 0:
            say(f"{number} of {len(wanted)} problems after {time.monotonic() - started:.0f} s")
        if time.monotonic() - started > seconds:
            return len(wanted) - number
        try:
            log.times(request.name, times_of(request, arch, say))
        except Exception as failed:  # one problem must not cost the times of the others; it is recorded
            say(f"{request.name} failed:\n{traceback.format_exc()}")
            log.failure(request.name, f"{type(failed).__name__}: {failed}")
            if _is_dead():
                raise DeadGpuError(f"{request.name} broke the GPU's context; run again, and it is left out") from failed
    return 0


def compile_all(requests: Sequence[Request], arch: Arch, say: Say) -> None:
    """Compile all kernels into the cache, by all processors of the host."""
    kernels = dict.fromkeys(
        part.kernel
        for request in requests
        for variant in request.variants
        if isinstance(plan := _plan(request.problem, arch, variant), cuda.LaunchPlan)
        for part in (plan, *plan.then)
    )
    started = time.monotonic()
    say(f"compiling {len(kernels)} kernels")
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = {pool.submit(cuda.compile, kernel, arch): kernel for kernel in kernels}
        for job in as_completed(jobs):
            if (failed := job.exception()) is not None:
                say(f"  {jobs[job].entry} does not compile: {_line(failed)}")
    say(f"compiled after {time.monotonic() - started:.0f} s")


def times_of(request: Request, arch: Arch, say: Say) -> dict[str, Time]:
    """Return the times of a problem by its variants, timed in turns; those that do not run are said, and left out."""
    problem, works, launches = request.problem, dict[str, timing.Work](), dict[str, str]()
    tensors: list[Any] = []
    for variant in request.variants:
        plan = _plan(problem, arch, variant)
        try:
            if isinstance(plan, KernelError):
                raise plan
            if not tensors:
                shapes = (*problem.shapes, *plan.output_shapes)
                tensors = [
                    _tensor(s, t) for s, t in zip(shapes, (*problem.op.inputs, *problem.op.outputs), strict=True)
                ]
            work = timing.launcher(plan, [t.data_ptr() for t in tensors], early=True)
            work()
            torch.cuda.synchronize()
        except FAILURES as failed:
            say(f"  {request.name}, {variant}: {_line(failed)}")
            if _is_dead():
                raise
            continue
        works[str(variant)], launches[str(variant)] = work, digest(plan)
    once = {name: _once(work) for name, work in works.items()}
    near = [name for name, time in once.items() if time <= HOPELESS * min(once.values()) + LAUNCHES]
    counts = [max(1, min(LAUNCHES, int(LONGEST / once[name]))) for name in near]
    replays = [timing.graph_of([works[name]] * count).replay for name, count in zip(near, counts, strict=True)]
    warm(replays, 1)
    taken = interleaved(replays, ROUNDS, RUNS, timer=timing.on_gpu)
    found = {name: Time(launches[name], time, time) for name, time in once.items()}
    for name, count, samples in zip(near, counts, taken, strict=True):
        half = len(samples) // 2
        first, second = (1e6 * statistics.median(part) / count for part in (samples[:half], samples[half:]))
        found[name] = Time(launches[name], first, second)
    return found


def _once(work: timing.Work) -> float:
    """Return the microseconds of a launch, with its host's part."""
    return 1e6 * min(timing.on_gpu(work) for _ in range(2))


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
