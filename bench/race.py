"""Models at several settings of ONNX Runtime, timed in turns as `onnxfuse bench` does.

What takes no measurement is done before the race: weights are on the device, and our kernels compiled. What ONNX
Runtime itself times to choose from, cuDNN's algorithms in a first run, it does in the race, where nothing disturbs it.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import onnx
import onnxruntime

from bench.apart import Turn, at_once
from onnxfuse.files import io
from onnxfuse.measure.benchmark import RefusedRun, ReportBlock, Timing, TimingRow
from onnxfuse.measure.timing.binding import REFUSALS, DeviceBinding, bind, opened, ort_values, outputs_of, warmed
from onnxfuse.measure.timing.contenders import Contender, absent, contenders_of, convolves, refusals
from onnxfuse.measure.timing.settings import CUDA_GRAPH, DEFAULT, GRAPH, Setting
from onnxfuse.measure.timing.stopwatch import interleaved
from onnxfuse.options.functions import ROUNDS, RUNS
from onnxfuse.support import isolation
from onnxfuse.support.errors import DeviceError
from onnxfuse.support.isolation import Crash
from onnxfuse.support.progress import Progress
from onnxfuse.verification.run.sessions import CUDA

FIRST_ROUNDS, LOST = 2, 1.1
ENDING = "prefer_nhwc"
"""The option at which ONNX Runtime 1.31.1 ends the process: in the first run of LeViT, in std::terminate."""


@dataclass(frozen=True)
class Raced:
    """What a race found."""

    block: ReportBlock
    bodies: tuple[str, ...]
    """Why fused ops ran as their bodies."""


def against(
    original: Path,
    fused: Path,
    providers: Sequence[str],
    default: Setting = DEFAULT,
    others: Mapping[str, Path] | None = None,
) -> list[Contender]:
    """Return the original at all settings that `onnxfuse bench` tries, the fused model at its own.

    `others` are more forms of the original by their names, which their settings begin with.
    """
    convolutions = convolves(io.load(original, weights=False))
    found = contenders_of(original, fused, default, on_cuda=CUDA in providers, convolutions=convolutions)
    theirs = [c for c in found if c.name == "original"]
    return found + [
        replace(c, model=path, setting=replace(c.setting, name=f"{name}, {c.setting.name}"))
        for name, path in (others or {}).items()
        for c in theirs
    ]


def race(
    contenders: Sequence[Contender], feeds: Mapping[str, Any], providers: Sequence[str], turn: Turn = at_once
) -> Raced:
    """Return the times of all contenders that ONNX Runtime runs, and which it refuses. Raises DeviceError if all."""
    inputs = ort_values(feeds)
    bodies: dict[str, None] = {}
    for model, setting in {c.model: c.setting for c in contenders if c.name == "fused"}.items():
        # A session of its own: cuDNN must not have searched beside others in one that is timed.
        first = opened(model, _without_graph(setting), providers, fused=True)
        outputs = outputs_of(first, inputs, "fused")
        bodies |= dict.fromkeys(p.reason for p in first.fused if p.reason)
    sessions: list[tuple[Contender, onnxruntime.InferenceSession]] = []
    refused: list[RefusedRun] = []
    ended = _ended(contenders, feeds, providers)
    for one in contenders:
        if ENDING in one.setting.options and one.model in ended:
            refused.append(RefusedRun(one.name, one.setting.name, ended[one.model], "crashed"))
            continue
        with refusals(one, refused):
            sessions.append((one, opened(one.model, one.setting, providers, fused=one.name == "fused")))
    turn()
    ready: list[tuple[Contender, DeviceBinding]] = []
    for one, session in sessions:
        with refusals(one, refused):
            ready.append((one, warmed(session, inputs, outputs)))
    if lost := absent(contenders, [c for c, _ in ready], refused):
        raise DeviceError(f"the {lost.model} model runs with none of the settings: {lost.reason}")
    rows = _rows(ready)
    shapes = {name: tuple(values.shape) for name, values in feeds.items()}
    return Raced(ReportBlock({}, shapes, next(iter(shapes.values()), (1,))[0], rows, tuple(refused)), tuple(bodies))


def _rows(ready: Sequence[tuple[Contender, DeviceBinding]]) -> tuple[TimingRow, ...]:
    """Return the times; settings of the original that have lost are left out of the later rounds.

    One has whose fastest run of the first rounds is slower than the best setting's median by LOST: its own median
    would have to fall below that to be the best. "CUDA graph" runs in all rounds, as a number by itself.
    """
    times = interleaved([bound.run for _, bound in ready], FIRST_ROUNDS, RUNS)
    best = min(
        (median(seconds) for (c, _), seconds in zip(ready, times, strict=True) if c.name == "original"), default=0
    )
    stays = [
        c.name == "fused" or c.setting.name == CUDA_GRAPH.name or min(seconds) <= LOST * best
        for (c, _), seconds in zip(ready, times, strict=True)
    ]
    later = interleaved([b.run for (_, b), s in zip(ready, stays, strict=True) if s], ROUNDS - FIRST_ROUNDS, RUNS)
    more = iter(later)
    rows = []
    for (c, _), seconds, stayed in zip(ready, times, stays, strict=True):
        timing = Timing.of(seconds + next(more), ROUNDS) if stayed else Timing.of(seconds, FIRST_ROUNDS)
        rows.append(TimingRow(c.name, c.setting.name, timing, None))
    return tuple(rows)


def _ended(
    contenders: Sequence[Contender], feeds: Mapping[str, Any], providers: Sequence[str]
) -> dict[str | Path | onnx.ModelProto, str]:
    """Return how the process ends in which an original runs at the first setting that may end it, where it does."""
    tried = {c.model: c for c in reversed(contenders) if c.name == "original" and ENDING in c.setting.options}
    ran = {
        model: isolation.in_new_process(_run_once, one, dict(feeds), list(providers)) for model, one in tried.items()
    }
    return {model: found.how for model, found in ran.items() if isinstance(found, Crash)}


def _run_once(one: Contender, feeds: Mapping[str, Any], providers: Sequence[str], progress: Progress) -> None:
    """Open and run a contender; what is refused is told where it is timed."""
    inputs = ort_values(feeds)
    with suppress(*REFUSALS):
        session = opened(one.model, one.setting, providers, fused=False)
        bind(session, inputs, outputs_of(session, inputs, one.name)).run()


def _without_graph(setting: Setting) -> Setting:
    return replace(setting, options={k: v for k, v in setting.options.items() if k not in GRAPH})
