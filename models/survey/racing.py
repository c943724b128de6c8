"""Time a fused model against ONNX Runtime's best settings."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from models.survey.checks import Broken, Examined
from onnxfuse.benchmark.timing import interleaved
from onnxfuse.profiling.bound import REFUSALS, bind, opened, ort_values, outputs_of, reason
from onnxfuse.profiling.settings import CUDA_GRAPH, DEFAULT, WARM_UP, Setting, cuda_settings
from onnxfuse.verification.sessions import CPU, CUDA

ROUNDS, RUNS = 8, 10
ENOUGH = 0.98
"""Slower than this against ONNX Runtime's best is told: less is what a clock does."""

TRIES = 3
"""How often what looks slower is timed."""

LOCK = "ONNXFUSE_SURVEY_LOCK"
"""Environment: a file that the workers of one card share: one of them times, the others may compute meanwhile."""


@contextlib.contextmanager
def clock() -> Iterator[None]:
    """Be the only one of the card's workers that times. Runs of the others are short, and medians pass over them."""
    path = os.environ.get(LOCK)
    if path is None:
        yield
        return
    with Path(path).open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def contenders(one: Examined, *, convolutions: bool) -> list[tuple[str, Path, Setting]]:
    """Return who runs: what it is, its file, its setting."""
    theirs = [("original", one.path, alone(s)) for s in cuda_settings(convolutions=convolutions)]
    return theirs + [("fused", one.fused, alone(s)) for s in (DEFAULT, CUDA_GRAPH)]


def alone(setting: Setting) -> Setting:
    """Return the setting with no threads beside the one that runs.

    Nine sessions of each of 34 workers make 9,000 threads on 32 cores; where no more of them can be had ONNX Runtime
    hangs in a constructor that failed half-way (1.31.1, at a limit of 12 threads of a user), and libraries abort.
    """
    return replace(setting, threads=1)


def raced(one: Examined) -> None:
    """It is not slower than ONNX Runtime's best, and with a CUDA graph gives what it gives without."""
    providers = [CUDA, CPU]
    model = one.original()
    convolutions = any(n.op_type == "Conv" for n in model.graph.node)
    given = one.timed()
    values = ort_values(given)
    first = opened(one.path, alone(DEFAULT), providers, fused=False)
    # What these inputs give, for shapes: every session then writes to memory of its own.
    shapes = outputs_of(first, values, "original")
    calls, names, refused = [], [], {}
    results: dict[str, list[bytes]] = {}
    for who, path, setting in contenders(one, convolutions=convolutions):
        try:
            session = opened(path, setting, providers, fused=who == "fused")
            bound = bind(session, values, shapes)
            for _ in range(WARM_UP):
                bound.run()
        except REFUSALS as error:
            refused[f"{who}, {setting.name}"] = reason(error)[:120]
            continue
        calls.append(bound.run)
        names.append((who, setting.name))
        if who == "fused":
            results[setting.name] = [_bits(v) for v in shapes.values()]
    if "default" not in results:
        raise Broken(f"the fused model does not run bound: {refused.get('fused, default')}")
    graph = results.get(CUDA_GRAPH.name)
    if graph is not None and graph != results["default"]:
        one.facts["graph_differs"] = True
    if "fused, CUDA graph" in refused and "original, CUDA graph" not in refused:
        raise Broken(f"with a CUDA graph the original runs, the fused model does not: {refused['fused, CUDA graph']}")
    with clock():
        for _ in range(TRIES):
            times = interleaved(calls, ROUNDS, RUNS)
            found = {name: 1e6 * median(t) for name, t in zip(names, times, strict=True)}
            theirs = {s: t for (who, s), t in found.items() if who == "original"}
            ours = min(t for (who, _), t in found.items() if who == "fused")
            best = min(theirs, key=lambda s: theirs[s])
            if theirs[best] >= ENOUGH * ours:
                break
    one.facts |= {
        "best": best, "best_us": round(theirs[best], 1), "fused_us": round(ours, 1),
        "default_us": round(theirs.get("default", theirs[best]), 1), "over": round(theirs[best] / ours, 3),
        "refused_settings": refused,
    }  # fmt: skip


def _bits(value: Any) -> bytes:
    """Return a value's bytes, wherever it is."""
    import cupy

    host = np.empty(value.tensor_size_in_bytes(), np.uint8)
    if host.size:
        cupy.cuda.runtime.memcpy(host.ctypes.data, value.data_ptr(), host.size, cupy.cuda.runtime.memcpyDefault)
    return host.tobytes()
