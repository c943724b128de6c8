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
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.apart import leave
from onnxfuse.measure.timing.binding import bind, opened, ort_values, outputs_of
from onnxfuse.measure.timing.settings import DEFAULT
from onnxfuse.support.errors import DeviceError

CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]

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
    from torch.profiler import ProfilerActivity, profile

    session, inputs = opened(path, DEFAULT, CUDA, fused=fused), ort_values(feeds)
    bound = bind(session, inputs, outputs_of(session, inputs, path.stem))
    bound.run()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        bound.run()
    return {e.key: (e.count, e.self_device_time_total) for e in profiler.key_averages() if e.self_device_time_total > 0}


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
