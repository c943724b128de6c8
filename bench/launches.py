"""What one run of a model puts on the device, by torch's profiler, in a process of its own.

`python -m bench.launches MODEL.onnx INPUTS.npz` prints kernel -> [launches, microseconds] as JSON; with `--fused` our
kernels run in it.

On its own, because CUPTI hands the profiler its last buffers when the CUDA runtime gives up the device, at the very end
of the process; where ONNX Runtime loaded that runtime before torch came, the profiler is gone by then, and frees what
is no memory any more ("free(): invalid pointer", from libcupti through libtorch_cpu; torch 2.11, 2026-11).
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.apart import leave
from onnxfuse.measure.timing.binding import ON_GPU, bind, opened, ort_values, outputs_of
from onnxfuse.measure.timing.settings import DEFAULT, Setting
from onnxfuse.measure.timing.stopwatch import warm
from onnxfuse.support.errors import DeviceError
from onnxfuse.verification.run.sessions import Model

Kernels = dict[str, tuple[int, float]]
"""Kernel -> launches and microseconds of one run."""


def kernels_of(path: Path, feeds: dict[str, Any], *, fused: bool) -> Kernels:
    """Return what one run of a model puts on the device; raises DeviceError where that cannot be seen."""
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "inputs.npz"
        np.savez(inputs, **feeds)
        command = [sys.executable, "-m", "bench.launches", str(path), str(inputs), *(["--fused"] if fused else [])]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        told = ran.stderr.strip().splitlines()
        raise DeviceError(
            f"the kernels of {path.name} cannot be seen: {told[-1] if told else f'it ended with {ran.returncode}'}",
            hint="Install torch with CUDA; its profiler sees them.",
        )
    found: dict[str, tuple[int, float]] = json.loads(ran.stdout.splitlines()[-1])
    return {kernel: (count, spent) for kernel, (count, spent) in found.items()}


def profiled(path: Path, feeds: dict[str, Any], *, fused: bool) -> Kernels:
    """Return the same from this process."""
    return launched(path, feeds, DEFAULT, fused=fused)


def launched(model: Model, feeds: Mapping[str, Any], setting: Setting, *, fused: bool, runs: int = 1) -> Kernels:
    """Return the kernels that one run of a model launches, the mean of some; by torch's profiler, in this process."""
    from torch.profiler import ProfilerActivity, profile

    session, inputs = opened(model, setting, ON_GPU, fused=fused), ort_values(feeds)
    bound = bind(session, inputs, outputs_of(session, inputs, "measured"))
    warm([bound.run], 2)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(runs):
            bound.run()
    seen = [e for e in profiler.key_averages() if e.self_device_time_total > 0]
    return {e.key: (e.count // runs, e.self_device_time_total / runs) for e in seen}


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("inputs", type=click.Path(path_type=Path))
@click.option("--fused", is_flag=True, help="Let our kernels run.")
def main(model: Path, inputs: Path, fused: bool) -> None:
    """Print the kernels of one run."""
    with np.load(inputs) as feeds:
        found = profiled(model, dict(feeds), fused=fused)
    leave(found)  # see above


if __name__ == "__main__":
    main()
