"""Measures kernels on the GPU at hand. Needs CuPy and torch."""

import math
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from typing import Any

import cupy
import torch

from bench.kernels import timing
from onnxfuse import cuda
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.support.errors import KernelError
from onnxfuse.symbolic import element_types
from tools.calibrate.problems import Problem, Shape

LAUNCHES, SAMPLES = 20, 7
"""Launches of a CUDA graph, and graphs of which the median counts."""


class GpuStopwatch:
    """Measures variants, each kernel and sizes once."""

    def __init__(self, arch: Arch) -> None:
        self.arch = arch
        self.times: dict[object, float | None] = {}
        properties = cupy.cuda.runtime.getDeviceProperties(0)
        self.name = properties["name"].decode()

    def clock(self) -> float:
        """Return the boost clock in GHz."""
        return round(float(cupy.cuda.Device(0).attributes["ClockRate"]) / 1e6, 3)

    def bandwidth(self) -> float:
        """Return the bandwidth of a copy in TB/s."""
        return float(round(timing.copy_bandwidth() / 1e12, 3))

    def compile(self, requests: Sequence[tuple[Problem, Variant | None]]) -> None:
        """Compile the kernels that will be measured, by all processors of the host."""
        kernels = dict.fromkeys(
            part.kernel
            for problem, variant in requests
            if (plan := self._plan(problem, variant)) is not None
            for part in (plan, *plan.then)
        )
        with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
            for job in [pool.submit(cuda.compile, kernel, self.arch) for kernel in kernels]:
                with suppress(KernelError):  # measuring it says why it has no time
                    job.result()

    def __call__(self, problem: Problem, variant: Variant | None) -> float | None:
        """Return the microseconds of a problem; None if the variant has no plan, or does not compile or run."""
        plan = self._plan(problem, variant)
        if plan is None:
            return None
        key = (plan.configuration, problem.shapes)
        if key not in self.times:
            self.times[key] = self._time(problem, plan)
        return self.times[key]

    def _plan(self, problem: Problem, variant: Variant | None) -> cuda.LaunchPlan | None:
        try:
            return cuda.plan(problem.op, problem.shapes, True, self.arch, variant)
        except KernelError:
            return None

    def _time(self, problem: Problem, plan: cuda.LaunchPlan) -> float | None:
        inputs = [_tensor(s, t) for s, t in zip(problem.shapes, problem.op.inputs, strict=True)]
        outputs = [_tensor(s, t) for s, t in zip(plan.output_shapes, problem.op.outputs, strict=True)]
        tensors = [*inputs, *outputs]
        try:
            work = timing.launcher(plan, [t.data_ptr() for t in tensors], early=True)
            (time,) = timing.microseconds([[work] * LAUNCHES], SAMPLES)
        except (KernelError, RuntimeError, cupy.cuda.driver.CUDADriverError) as failed:
            print(f"  {problem.name}: {str(failed).splitlines()[0][:100]}", flush=True)
            return None
        return float(time)


def _tensor(shape: Shape, dtype: int) -> Any:
    """Return drawn values, small enough that no sum overflows."""
    element = {1: torch.float32, 10: torch.float16, 16: torch.bfloat16}[dtype]
    assert element_types.TYPES[dtype].size == element.itemsize
    return torch.randn(shape, device="cuda").to(element) / math.sqrt(shape[-1] if shape else 1)
