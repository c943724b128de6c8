"""Time a fused model against ONNX Runtime's best settings."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from models.survey.cards import clock, in_company, racing, undisturbed
from models.survey.checks import Broken, Examined
from onnxfuse.measure.benchmark import leaving_out
from onnxfuse.measure.benchmark.leaving_out import at, patient
from onnxfuse.measure.timing.binding import (
    ON_GPU,
    DeviceBinding,
    opened,
    ort_values,
    outputs_of,
    warmed,
)
from onnxfuse.measure.timing.contenders import Contender, absent, contenders_of, convolves, refusals
from onnxfuse.measure.timing.settings import CUDA_GRAPH, DEFAULT, RefusedRun, Setting
from onnxfuse.measure.timing.stopwatch import Timing, interleaved
from onnxfuse.options.functions import PATIENCE
from onnxfuse.support import isolation
from onnxfuse.support.isolation import Crash
from onnxfuse.support.progress import Progress
from onnxfuse.verification.run import sessions

PROVIDERS = list(ON_GPU)
ROUNDS, RUNS = 8, 10
ENOUGH = 0.98
"""Slower than this against ONNX Runtime's best is told: less is what a clock does."""

TRIES = 3
"""How often what looks slower, or as fast, is timed."""

CLOSE = 1.2
"""What comes out less than so many times as fast is timed again with nobody else at work on the card."""


def contenders(path: Path, fused: Path, *, convolutions: bool) -> list[Contender]:
    """Return who runs, the fused model before all but the original's default.

    All are open at once. Where a GPU has no room for them (MViTv2-S, batch 8: at the eighth cuBLAS did not start on
    139 GiB), it is a setting more of the original that is refused.
    """
    found = contenders_of(path, fused, DEFAULT, on_cuda=True, convolutions=convolutions)
    first, *others = (replace(one, setting=alone(one.setting)) for one in found)
    return [first, *sorted(others, key=lambda one: one.name != "fused")]


def alone(setting: Setting) -> Setting:
    """Return the setting with no threads beside the one that runs, and no more memory than it asks for.

    Nine sessions of each of 34 workers make 9,000 threads on 32 cores; where no more of them can be had ONNX Runtime
    hangs in a constructor that failed half-way (1.31.1, at a limit of 12 threads of a user), and a library that holds
    its threads in a vector aborts: "terminate called without an active exception".
    """
    return replace(setting.with_options({"arena_extend_strategy": "kSameAsRequested"}), threads=1)


def raced(one: Examined) -> None:
    """It is not slower than ONNX Runtime's best, and with a CUDA graph gives what it gives without."""
    convolutions = convolves(one.original())
    for number, (sizes, given) in enumerate(one.timed()):
        # This process has used the GPU: in a new one the race can be run in children.
        found = isolation.in_new_process(
            surviving, one.path, one.fused, given, convolutions=convolutions,
            progress=lambda step, done, total: one.tell(f"raced: {step}"),
        )  # fmt: skip
        if isinstance(found, Crash):
            raise Broken(_told(found))
        one.facts |= {"alone": found} if number else found | {"sizes": sizes}


def surviving(
    path: Path, fused: Path, given: Mapping[str, Any], *, convolutions: bool, progress: Progress
) -> dict[str, Any] | Crash:
    """Return the facts of the race without the settings of the original that crash or hang, or another crash."""
    runners = contenders(path, fused, convolutions=convolutions)
    with racing(progress):
        return leaving_out.raced(lambda tell, earlier: race(runners, given, earlier.left_out, tell), progress)


def _told(crash: Crash) -> str:
    who, setting = crash.doing.get("model") or "no model", crash.doing.get("setting") or DEFAULT.name
    return f"{who}, {setting}: it {crash.how}, at the step '{crash.step}'"


def race(
    runners: Sequence[Contender],
    given: Mapping[str, Any],
    left_out: Mapping[str, RefusedRun],
    tell: Progress,
) -> dict[str, Any]:
    """Return the times of all that run, and why the others do not."""
    providers = sessions.chosen_providers(PROVIDERS)
    values = ort_values(given)
    ready: list[tuple[Contender, DeviceBinding]] = []
    refused = [*left_out.values()]
    results: dict[str, list[bytes]] = {}
    with in_company():
        at("original", DEFAULT)
        first = opened(runners[0].model, alone(DEFAULT), providers, fused=False)
        # What these inputs give, for shapes: every session then writes to memory of its own.
        shapes = outputs_of(first, values, "original")
        for one in runners:
            if one.name == "original" and one.setting.name in left_out:
                continue
            tell(_named(one), 0, 0)
            at(one.name, one.setting)
            fused = one.name == "fused"
            with refusals(one, refused), patient(one.name, one.setting, PATIENCE):
                ready.append((one, warmed(opened(one.model, one.setting, providers, fused=fused), values, shapes)))
                if fused:
                    results[one.setting.name] = [_bits(v) for v in shapes.values()]
    why = {f"{one.model}, {one.setting}": one.reason[:300] for one in refused}
    if DEFAULT.name not in results:
        raise Broken(f"the fused model does not run bound: {why.get('fused, default')}")
    facts: dict[str, Any] = {"refused_settings": why}
    graph = results.get(CUDA_GRAPH.name)
    if graph is not None and graph != results[DEFAULT.name]:
        facts["graph_differs"] = True
    if "fused, CUDA graph" in why and "original, CUDA graph" not in why:
        raise Broken(f"with a CUDA graph the original runs, the fused model does not: {why['fused, CUDA graph']}")
    if absent(runners, [one for one, _ in ready], refused):
        raise Broken(f"the original does not run bound: {why.get('original, default')}")
    tell("waiting for the clock", 0, 0)
    with clock(), contextlib.ExitStack() as stack:
        for n in range(TRIES):
            tell(f"timed {n + 1} of {TRIES}", 0, 0)
            if n == 1:
                stack.enter_context(undisturbed())
            times = interleaved(
                [bound.run for _, bound in ready], ROUNDS, RUNS,
                on_round=lambda n: at(ready[n][0].name, ready[n][0].setting),
            )  # fmt: skip
            medians = [Timing.of(taken).p50 for taken in times]
            found = {(one.name, one.setting.name): us for (one, _), us in zip(ready, medians, strict=True)}
            theirs = {s: t for (who, s), t in found.items() if who == "original"}
            ours = min(t for (who, _), t in found.items() if who == "fused")
            best = min(theirs, key=lambda s: theirs[s])
            if theirs[best] >= (ENOUGH if n else CLOSE) * ours:
                break
    return facts | {
        "best": best, "best_us": round(theirs[best], 1), "fused_us": round(ours, 1),
        "default_us": round(theirs.get(DEFAULT.name, theirs[best]), 1), "over": round(theirs[best] / ours, 3),
    }  # fmt: skip


def _named(one: Contender) -> str:
    return f"{one.name}, {one.setting.name}"


def _bits(value: Any) -> bytes:
    """Return a value's bytes, wherever it is."""
    import cupy

    host = np.empty(value.tensor_size_in_bytes(), np.uint8)
    if host.size:
        cupy.cuda.runtime.memcpy(host.ctypes.data, value.data_ptr(), host.size, cupy.cuda.runtime.memcpyDefault)
    return host.tobytes()
