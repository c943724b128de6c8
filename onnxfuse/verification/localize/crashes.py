"""Locate the op that crashes the process or breaks the GPU, with one child process per attempt.

Any prefix of a model's nodes is a model too. The culprit is the last node of the shortest prefix that crashes, found by
binary search with one child per step.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import onnx

from onnxfuse.graph.graph import captured
from onnxfuse.support.errors import CrashError, DeviceLostError, OnnxfuseError, UsageError
from onnxfuse.support.isolation import Crash, isolated
from onnxfuse.support.plurals import plural
from onnxfuse.support.progress import Progress, silent
from onnxfuse.verification.cases.planning import RealInputs, plan_of, shapes_text
from onnxfuse.verification.compare.compare import load
from onnxfuse.verification.inputs.input_specs import input_specs
from onnxfuse.verification.inputs.inputs import Array, Case, InputSpec, Shapes, with_declared
from onnxfuse.verification.localize.bisect import describe_suspect
from onnxfuse.verification.localize.partition import submodel
from onnxfuse.verification.report.localization import CrashSite
from onnxfuse.verification.report.report import VerifyReport
from onnxfuse.verification.report.rows import CaseRow
from onnxfuse.verification.run import sessions
from onnxfuse.verification.run.sessions import Source
from onnxfuse.verification.run.tensors import input_types, is_composite

T = TypeVar("T")

REFUSALS: tuple[type[Exception], ...] = (OnnxfuseError, *sessions.ORT_ERRORS)
"""Exceptions of a model prefix that cannot run by itself: not a crash."""

HANG_SECONDS = 60.0
"""Seconds without progress after which a prefix of a hanging model is considered to hang, too."""


@dataclass(frozen=True)
class ChildRun:
    """How the crashed models were run."""

    original: Source
    fused: Source | None
    inputs: Sequence[RealInputs] | None = None
    seeds: Sequence[int] = (0,)
    shapes: Shapes | None = None
    providers: Sequence[str] | None = None
    fused_providers: Sequence[str] | None = None
    use_tf32: bool | None = None
    rules: Sequence[str | Path] = ()


def sizes(run: ChildRun, specs: Sequence[InputSpec]) -> Shapes | None:
    """Return the sizes that the models were run with: those requested, and those that the fused file declares."""
    if run.fused is None or run.inputs is not None:
        return run.shapes
    return with_declared(specs, load(run.fused, "fused"), run.shapes)


def crash_report(crash: Crash, run: ChildRun, progress: Progress = silent) -> VerifyReport:
    """Return the report of a verification that crashed: one problem, which names the op."""
    site = locate_crash(crash, run, progress)
    case = _case(crash, run)
    cases = () if case is None else (CaseRow(case.name, case.seed, dict(case.shapes), 0.0, site.text),)
    provider_lists = [chosen_providers(p) for p in (run.providers, run.fused_providers) if p is not None] or [
        chosen_providers(None)
    ]
    return VerifyReport(
        provider_lists[0][0],
        "",
        "",
        "",
        cases,
        (),
        (),
        (site.text,),
        0.0,
        provider_lists[1][0] if len(provider_lists) > 1 else "",
        crash=site,
    )


def run_naming_crashes(task: Callable[[Progress], T], run: ChildRun, progress: Progress = silent) -> T:
    """Run `task`, which runs the models of `run`, in a child and return its result. Raises CrashError that names the
    op."""
    return result_or_crash_error(isolated(task, progress), run, progress)


def result_or_crash_error(outcome: T | Crash, run: ChildRun, progress: Progress) -> T:
    """Return the result of a child that ran the models of `run`. Raises CrashError that names the op if it crashed."""
    if isinstance(outcome, Crash):
        raise CrashError(locate_crash(outcome, run, progress).text, "To have this in a report: onnxfuse verify.")
    return outcome


def locate_crash(crash: Crash, run: ChildRun, progress: Progress = silent) -> CrashSite:
    """Return where the crash happens, by reproducing it in the model that ran with fewer and fewer nodes."""
    case = _case(crash, run)
    doing = crash.doing.get("model", "")
    text = "" if case is None else f"{case.name} {shapes_text(case)}".strip()
    base = CrashSite(doing, crash.how, text, crash.step, None, crash.doing.get("setting", ""))
    if case is None:
        return base
    # The model that was run is tried first, and the generated one before the other.
    for name in dict.fromkeys(
        [doing, "fused", "original"] if doing in ("fused", "original") else ["fused", "original"]
    ):
        source = run.original if name == "original" else run.fused
        if source is None:
            continue
        model = load(source, name)
        culprit = _shortest_crashing_prefix(model, case.make(), _opener(name, run, model), crash, progress)
        if culprit is not None:
            position, last_crash = culprit
            return replace(base, model=name, how=last_crash.how, node=describe_suspect(model, position))
    return base


def _shortest_crashing_prefix(
    model: onnx.ModelProto,
    feeds: Mapping[str, Array],
    opened: Callable[[sessions.Model], Any],
    crash: Crash,
    progress: Progress,
) -> tuple[int, Crash] | None:
    """Return the last node of the shortest crashing prefix, and how it crashes; None if none crashes."""
    last = _crash_of_prefix(model, len(model.graph.node), feeds, opened, crash)
    if last is None:
        return None
    running, crashing, steps = 0, len(model.graph.node), 0
    while crashing - running > 1:
        middle = (running + crashing) // 2
        progress(
            f"which op crashes: the first {plural(middle, 'node')}", steps, steps + (crashing - running).bit_length()
        )
        outcome, steps = _crash_of_prefix(model, middle, feeds, opened, crash), steps + 1
        if outcome is None:
            running = middle
        else:
            crashing, last = middle, outcome
    return crashing - 1, last


def _crash_of_prefix(
    model: onnx.ModelProto,
    count: int,
    feeds: Mapping[str, Array],
    opened: Callable[[sessions.Model], Any],
    crash: Crash,
) -> Crash | None:
    """Return how the first `count` nodes crash; None if they do not. A refusal by ONNX Runtime is not a crash."""

    def attempt(_: Progress) -> None:
        try:
            prefix = prefix_model(model, count, feeds)
            sessions.run(opened(sessions.openable(prefix, prefix, tempfile.gettempdir())), feeds)
        except DeviceLostError:
            raise
        except REFUSALS:
            return

    outcome = isolated(attempt, patience=HANG_SECONDS if crash.hangs else None)
    return outcome if isinstance(outcome, Crash) else None


def prefix_model(model: onnx.ModelProto, count: int, feeds: Mapping[str, Array]) -> onnx.ModelProto:
    """Return the first nodes as a model whose outputs are all of their values that none of them reads."""
    nodes, types = model.graph.node[:count], input_types(model.graph)
    composite = [i for i in model.graph.input if is_composite(types.get(i.name, ""))]
    parts = {n for n in feeds if n not in types or is_composite(types[n])}
    prefix = submodel(model, range(count), {n: x for n, x in feeds.items() if n not in parts}, {})
    prefix.graph.input.extend(composite)
    computed = [o for n in nodes for o in n.output if o]
    read = {v for n in nodes for v in (*n.input, *captured(n))}
    prefix.graph.output.extend(onnx.ValueInfoProto(name=v) for v in computed if v not in read)
    return prefix


def _opener(name: str, run: ChildRun, model: onnx.ModelProto) -> Callable[[sessions.Model], Any]:
    """Return a function that opens a part of the model as the whole was opened; to be called in a child."""
    cuda = sessions.tf32_options(run.use_tf32, load(run.fused, "fused") if run.fused is not None else model)
    if name == "original":
        return lambda cut: sessions.ort_session(cut, sessions.chosen_providers(run.providers), cuda=cuda)
    where = run.providers if run.fused_providers is None else run.fused_providers
    return lambda cut: sessions.with_kernels(cut, sessions.chosen_providers(where), cuda, run.rules)


def chosen_providers(providers: Sequence[str] | None) -> list[str]:
    """Return the providers of a run, as `sessions` does, determined in a child because the check initializes CUDA."""
    outcome = isolated(lambda _: sessions.chosen_providers(providers))
    if isinstance(outcome, Crash):
        raise CrashError(f"CUDA cannot even be asked for: a process that does {outcome.how}", "Try onnxfuse doctor.")
    return outcome


def _case(crash: Crash, run: ChildRun) -> Case | None:
    """Return the inputs that were run; the first ones if a model was only opened."""
    case = crash.doing.get("case")
    if isinstance(case, Case):
        return case
    specs = input_specs(load(run.original, "original"))
    try:
        plan = plan_of(specs, run.inputs, run.seeds, sizes(run, specs))
    except UsageError:
        return None  # Without generated inputs the crash cannot be reproduced.
    return next((c for c in plan if c.name == case), plan[0] if plan else None)
