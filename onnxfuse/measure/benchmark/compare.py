"""Run both models at every setting, interleaved, on the same inputs."""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import onnx
import onnxruntime

from onnxfuse import runtime
from onnxfuse.files import io
from onnxfuse.measure.benchmark.ceilings import Ceilings, measured
from onnxfuse.measure.benchmark.leaving_out import SLOWER, Earlier, at, done, patient
from onnxfuse.measure.benchmark.report import BenchmarkReport, FusedOps, ReportBlock, TimingRow, WorkPerRun
from onnxfuse.measure.profile import cupti
from onnxfuse.measure.profile.traffic import ModelTraffic, count
from onnxfuse.measure.timing import device
from onnxfuse.measure.timing.binding import (
    DeviceBinding,
    Values,
    opened,
    ort_values,
    outputs_of,
    profiled,
    warmed,
)
from onnxfuse.measure.timing.contenders import Contender, absent, contenders_of, convolves, refusals
from onnxfuse.measure.timing.settings import (
    DEFAULT,
    ModelName,
    RefusedRun,
    Setting,
)
from onnxfuse.measure.timing.shapes import cases_per_shape, check_bindable, dynamic, unsaid
from onnxfuse.measure.timing.stopwatch import Timing, interleaved, rounds_within, seconds
from onnxfuse.model.fused import fused_ops
from onnxfuse.options.functions import PATIENCE
from onnxfuse.support.errors import ModelError, UsageError
from onnxfuse.support.isolation import doing
from onnxfuse.support.progress import Progress
from onnxfuse.verification.inputs.input_specs import input_specs
from onnxfuse.verification.inputs.inputs import Array, Case, InputSpec, Shapes, with_declared
from onnxfuse.verification.run import sessions
from onnxfuse.verification.run.interface import interface_problems
from onnxfuse.verification.run.sessions import CUDA, Model, Source

BEFORE_THE_RACE = 3
"""Progress steps before the first shape."""


@dataclass(frozen=True)
class Race:
    """State shared by all sets of shapes."""

    contenders: Sequence[Contender]
    providers: Sequence[str]
    first: onnxruntime.InferenceSession
    """The original at its default setting, which provides the output shapes."""
    ceilings: Ceilings
    runs: int
    rounds: int
    seconds: float
    """Time limit for the timed runs of one set of shapes."""
    counted: bool
    """Whether launches can be counted."""
    patience: float
    """Time limit in seconds for each of the original's settings."""
    left_out: Mapping[str, RefusedRun]
    """Settings of the original that crashed before."""


def compare(
    original: Source,
    fused: Source,
    shapes: Shapes,
    providers: Sequence[str] | None,
    use_tf32: bool | None,
    runs: int,
    rounds: int,
    seconds: float,
    seed: int,
    progress: Progress,
    rules: Sequence[str | Path] = (),
    patience: float = PATIENCE,
    earlier: Earlier | None = None,
) -> BenchmarkReport:
    """Return the report of `onnxfuse.measure.benchmark.bench`, which documents the arguments."""
    start = time.perf_counter()
    earlier = earlier or Earlier()
    original_model, fused_model = _load(original, "original"), _load(fused, "fused")
    _check(original_model, fused_model)
    providers = sessions.chosen_providers(providers)
    specs = input_specs(original_model)
    check_bindable(specs, "bench")
    shapes = with_declared(specs, fused_model, shapes)
    assumed = unsaid(specs, shapes)
    plan = cases_per_shape(specs, {**shapes, **dict.fromkeys(assumed, (1,))}, seed)
    with tempfile.TemporaryDirectory(prefix="onnxfuse-") as folder:
        before = sessions.openable(original, original_model, folder)
        after = sessions.openable(fused, fused_model, folder)
        tf32 = sessions.tf32_options(use_tf32, fused_model)
        default = replace(DEFAULT.with_options(tf32), rules=tuple(rules))
        contenders = contenders_of(
            before, after, default, on_cuda=CUDA in providers, convolutions=convolves(original_model)
        )
        total = BEFORE_THE_RACE + len(plan) * (1 + rounds)
        progress("counting bytes and operations", 0, total)
        traffic = [_work({"original": original_model, "fused": fused_model}, case) for case in plan]
        del original_model, fused_model  # From here on the sessions hold the weights that they need.
        progress("looking at what runs where", 1, total)
        arrays = plan[0].make()
        at("original", default, case=plan[0])
        first, original_nodes = profiled(before, default, providers, ort_values(arrays), "original")
        at("fused", default)
        fused_nodes, kernels = _look_at_fused(after, default, providers, arrays)
        doing(model="")
        progress("measuring what this machine can do", 2, total)
        types = {n.element for both in traffic for one in both.values() for n in one.nodes}
        ceilings = measured(types, providers, default)
        uncounted = cupti.missing() if CUDA in providers else "nothing is launched on a CPU"
        race = Race(
            contenders, providers, first, ceilings, runs, rounds, seconds / len(plan), uncounted is None, patience,
            earlier.left_out,
        )  # fmt: skip
        blocks: list[ReportBlock] = list(earlier.done)
        for index, case in list(enumerate(plan, start=1))[len(blocks) :]:
            first_step = BEFORE_THE_RACE + (index - 1) * (1 + rounds)
            report_step = partial(_tell, progress, f"shape {index} of {len(plan)}", first_step, total)
            blocks.append(_run(race, case, specs, traffic[index - 1], report_step))
            done(blocks)
    return BenchmarkReport(
        provider=providers[0],
        blocks=tuple(blocks),
        assumed=assumed,
        nodes={"original": original_nodes, "fused": fused_nodes},
        fused_ops=kernels,
        environment=device.environment(first),
        runs=runs,
        rounds=rounds,
        seconds=time.perf_counter() - start,
        ceilings=ceilings,
        peak=ceilings.peak(traffic[0]["original"]),
        uncounted=uncounted or "",
        limit=seconds,
    )


def _tell(progress: Progress, shape: str, first_step: int, total: int, step: str, amount: int) -> None:
    progress(f"{shape}: {step}", first_step + amount, total)


def _work(models: Mapping[ModelName, onnx.ModelProto], case: Case) -> dict[ModelName, ModelTraffic]:
    """Return the work of one run of each model on the shapes of `case`."""
    return {name: count(model, case.shapes) for name, model in models.items()}


def _load(source: Source, name: str) -> onnx.ModelProto:
    if isinstance(source, onnx.ModelProto):
        return source
    return io.parse(source, f"the {name} model") if isinstance(source, bytes) else io.load(source)


def _check(original: onnx.ModelProto, fused: onnx.ModelProto) -> None:
    if fused_ops(original):
        raise UsageError(
            "the original already contains fused ops, whose bodies are not a fair baseline",
            "Give the model as it was before onnxfuse optimize.",
        )
    problems = interface_problems(original, fused)
    if problems:
        raise ModelError(f"the two models do not belong together: {problems[0]}", "Optimize the original again.")


def _look_at_fused(
    model: Model, setting: Setting, providers: Sequence[str], arrays: Mapping[str, Array]
) -> tuple[Mapping[str, int], FusedOps]:
    """Return the nodes that one run of the fused model executes by provider, and how its fused ops ran."""
    on_cuda = CUDA in providers
    if on_cuda:
        runtime.reset_counts()
    session, nodes = profiled(model, setting, providers, ort_values(arrays), "fused")
    placements: Sequence[runtime.Placement] = session.fused
    kernels = FusedOps(
        nodes=sum(p.nodes for p in placements),
        kernels=sum(p.nodes for p in placements if p.runs_as == "kernel"),
        bodies=sum(p.nodes for p in placements if p.runs_as == "body"),
        launches=sum(runtime.launches().values()) if on_cuda else None,
        reasons=tuple(dict.fromkeys(p.reason for p in placements if p.reason)),
    )
    return nodes, kernels


def _run(
    race: Race,
    case: Case,
    specs: Sequence[InputSpec],
    traffic: Mapping[ModelName, ModelTraffic],
    tell: Callable[[str, int], None],
) -> ReportBlock:
    """Return the times of all contenders on one set of shapes; `tell(step, done)` reports 1 + `race.rounds` steps."""
    tell("warming up", 0)
    arrays = case.make()
    at("original", DEFAULT, case=case)
    inputs = ort_values(arrays)
    outputs = outputs_of(race.first, inputs, "original")
    ready: list[tuple[Contender, DeviceBinding, int | None]] = []
    refused: list[RefusedRun] = []
    longest = 0.0
    for contender in sorted(race.contenders, key=_turn):
        name, setting = contender.name, contender.setting
        if name == "original" and setting.name in race.left_out:
            refused.append(race.left_out[setting.name])
            continue
        tell(f"warming up {name}: {setting.name}", 0)
        at(name, setting)
        start = time.perf_counter()
        with refusals(contender, refused), patient(name, setting, max(race.patience, SLOWER * longest)):
            ready.append((contender, *_warm(contender, race.providers, inputs, outputs)))
        if setting.name == DEFAULT.name:
            longest = time.perf_counter() - start
    if lost := absent(race.contenders, [c for c, _, _ in ready], refused):
        raise ModelError(
            f"the {lost.model} model runs with none of the settings: {lost.reason}", "Try onnxfuse verify."
        )
    indices = {(c.name, c.setting.name): n for n, c in enumerate(race.contenders)}
    ready.sort(key=lambda one: indices[one[0].name, one[0].setting.name])
    refused.sort(key=lambda one: indices[one.model, one.setting])
    calls = [bound.run for _, bound, _ in ready]
    rounds, runs = rounds_within(race.seconds, [seconds(run) for run in calls], race.rounds, race.runs)
    times = interleaved(
        calls, rounds, runs,
        at=lambda n: tell(f"round {n + 1} of {rounds}", 1 + n * race.rounds // rounds),
        on_round=lambda n: at(ready[n][0].name, ready[n][0].setting),
    )  # fmt: skip
    launches = [_launches(one, bound) if race.counted else None for one, bound, _ in ready]
    sessions_of_fused = (bound.session for c, bound, _ in ready if c.name == "fused")
    watched = next((s for s in sessions_of_fused if s.keeper is not None), None)
    return ReportBlock(
        dimensions={name: case.shapes[s.name][axis] for s in specs for name, axis in dynamic(s)},
        shapes=case.shapes,
        items=next((case.shapes[s.name][0] for s in specs if s.shape), 1),
        rows=tuple(
            TimingRow(c.name, c.setting.name, Timing.of(taken, rounds), memory, launched)
            for (c, _, memory), taken, launched in zip(ready, times, launches, strict=True)
        ),
        refused=tuple(refused),
        runs=runs,
        rounds=rounds,
        work={name: WorkPerRun(one.bytes, one.flops, race.ceilings.floor(one)) for name, one in traffic.items()},
        memory=None if watched is None else watched.memory(),
    )


def _turn(contender: Contender) -> int:
    """Return the order in which contenders are opened. All are open at once; if GPU memory does not suffice, a further
    setting of the original is refused, not the fused model."""
    if contender.setting.name == DEFAULT.name:
        return 0
    return 1 if contender.name == "fused" else 2


def _launches(contender: Contender, bound: DeviceBinding) -> int:
    """Return the number of kernels that one run launches, without copies and fills by the driver."""
    at(contender.name, contender.setting)
    (kernels,) = cupti.traced(bound.run, 1, 0)
    return sum(not k.copy for k in kernels)


def _warm(
    contender: Contender, providers: Sequence[str], inputs: Values, outputs: Values
) -> tuple[DeviceBinding, int | None]:
    """Return the session, bound and warmed up, and the increase of the card's memory in use.

    None on the CPU, and if another process freed more of it meanwhile.
    """
    on_cuda = CUDA in providers
    before = device.used_memory() if on_cuda else 0
    session = opened(contender.model, contender.setting, providers, fused=contender.name == "fused")
    bound = warmed(session, inputs, outputs)
    grown = device.used_memory() - before if on_cuda else -1
    return bound, grown if grown >= 0 else None
