"""Times on the GPU: what the scripts beside this share. Needs CuPy and torch."""

import statistics
from collections.abc import Callable, Sequence
from functools import partial

import cupy
import torch

from bench.kernels.launching import Work, keeping, launcher
from onnxfuse.measure.timing.stopwatch import interleaved, warm

__all__ = ["ROTATED", "Work", "copy_bandwidth", "graph_of", "keeping", "launcher", "microseconds", "on_gpu"]

ROTATED = 600 * 2**20
"""Bytes that buffers rotate through: ten times the L2 cache of an H200."""
RUNS = 3
"""Replays of a side in its turn."""


def graph_of(works: Sequence[Work]) -> torch.cuda.CUDAGraph:
    """Return the works, one after the other, as a CUDA graph: no side pays for its host code."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), cupy.cuda.ExternalStream(stream.cuda_stream), torch.no_grad():
        for _ in range(2):
            for work in dict.fromkeys(works):
                work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for work in works:
                work()
    return graph


def on_gpu(run: Callable[[], object]) -> float:
    """Return the seconds that a run takes on the GPU, by its own clock."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000


def microseconds(sides: Sequence[Sequence[Work]], samples: int = 11) -> list[float]:
    """Return the median time of one work of each side; the sides run in turns, all works of one after the other."""
    replays = [graph_of(works).replay for works in sides]
    warm(replays, 2)
    times = interleaved(replays, -(-samples // RUNS), RUNS, timer=on_gpu)
    return [1e6 * statistics.median(taken) / len(works) for works, taken in zip(sides, times, strict=True)]


def copy_bandwidth(megabytes: int = 128) -> float:
    """Return bytes per second, read and written, of a copy on the GPU."""
    size = megabytes * 2**20
    turns = max(3, ROTATED // (2 * size))
    a, b = ([torch.empty(size, device="cuda", dtype=torch.uint8) for _ in range(turns)] for _ in range(2))
    (taken,) = microseconds([[partial(y.copy_, x) for x, y in zip(a, b, strict=True)]])
    return 2 * size / (taken / 1e6)
