"""Verify, time and profile a model against its original, in a child process if possible.

A crash of the child, or of its GPU, is reproduced with fewer and fewer nodes until the responsible op is known.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from onnxfuse.api.optimize.optimizing import optimize
from onnxfuse.api.request.files import writable
from onnxfuse.api.request.model_source import Model, Origin, Source, path_or_proto
from onnxfuse.api.request.optimize_pipeline import OptimizePipeline
from onnxfuse.api.request.options import Options
from onnxfuse.files import io
from onnxfuse.measure import benchmark
from onnxfuse.measure import profile as profiling
from onnxfuse.measure.benchmark.leaving_out import raced
from onnxfuse.model.fused import fused_ops
from onnxfuse.rules.language import pack
from onnxfuse.support import isolation
from onnxfuse.support.errors import DeviceError
from onnxfuse.support.isolation import Crash, isolated
from onnxfuse.support.progress import Progress, silent

if TYPE_CHECKING:
    from onnxfuse.measure.benchmark import BenchmarkReport as BenchReport
    from onnxfuse.measure.profile import Profile
    from onnxfuse.verification import RealInputs, VerifyReport
    from onnxfuse.verification.localize.crashes import ChildRun

RUNS, ROUNDS, PROFILED = benchmark.RUNS, benchmark.ROUNDS, profiling.RUNS
"""Timed runs per round, and rounds; profiled runs."""
PATIENCE = benchmark.PATIENCE
"""Seconds within which a setting of the original must open and warm up."""

Shapes = Mapping[str, Sequence[int]]

CPU, CUDA = ["CPUExecutionProvider"], ["CUDAExecutionProvider", "CPUExecutionProvider"]
PROVIDERS = {"cpu": CPU, "cuda": CUDA, "auto": None}
"""Providers on which both models run."""


def verify(
    original: Model,
    fused: Model,
    *,
    inputs: "RealInputs | Sequence[RealInputs] | None" = None,
    seeds: Sequence[int] = (0,),
    shapes: Shapes | None = None,
    providers: Sequence[str] | None = None,
    fused_providers: Sequence[str] | None = None,
    use_tf32: bool | None = None,
    seconds: float | None = None,
    save_inputs: Path | None = None,
    bisect: Path | None = None,
    rules: Sequence[str | Path] = (),
    progress: Progress | None = None,
    **judged: Any,
) -> "VerifyReport":
    """Return whether `fused` computes what `original` computes; see `onnxfuse.verification.verify` for the other
    options.

    `save_inputs`: a folder or .npz file for the inputs, written before anything is run on them. `bisect`: a folder for
    the smallest failing model after a mismatch; the report then names the fused op or rule at fault. A crash is
    reported, too.
    """
    from onnxfuse.verification import verify as compare  # ONNX Runtime is imported only when something is run.
    from onnxfuse.verification.localize.crashes import ChildRun, crash_report

    chosen = _with_rules(rules)
    before, after, report_progress = path_or_proto(original), path_or_proto(fused), progress or silent
    several = None if inputs is None else [inputs] if isinstance(inputs, str | Path | Mapping) else list(inputs)
    run = ChildRun(before, after, several, seeds, shapes, providers, fused_providers, use_tf32, rules)
    planned = 0 if save_inputs is None else _save_inputs(save_inputs, before, run)
    outcome = isolated(
        lambda tell: compare(
            before, after, inputs=several, seeds=seeds, shapes=shapes, providers=providers,
            fused_providers=fused_providers, use_tf32=use_tf32, seconds=seconds, rules=rules,
            progress=tell, **judged,
        ),
        report_progress,
        patience=max(seconds or 0, isolation.PATIENCE),
    )  # fmt: skip
    report = crash_report(outcome, run, report_progress) if isinstance(outcome, Crash) else outcome
    if save_inputs is not None:
        _save_searched_inputs(save_inputs, before, report, planned)
    if bisect is None or report.crash is not None:
        return report
    return _with_localization(report, run, bisect, chosen, report_progress)


def _with_rules(folders: Sequence[str | Path]) -> Options:
    """Check the rule folders in the options, so that errors in them are reported before anything runs."""
    options = Options(rules=tuple(Path(folder) for folder in folders))
    if folders:  # shipped rules need no check, and reading them takes longer than a small model
        options.chosen()
    return options


def _save_inputs(path: Path, original: Source, run: "ChildRun") -> int:
    """Write the planned inputs before anything is run, because they matter most after a crash. Return their number."""
    from onnxfuse.verification.cases.planning import plan_of
    from onnxfuse.verification.inputs.input_files import save_cases
    from onnxfuse.verification.inputs.input_specs import input_specs
    from onnxfuse.verification.localize.crashes import sizes

    model = original if isinstance(original, onnx.ModelProto) else io.load(original)
    specs = input_specs(model)
    plan = plan_of(specs, run.inputs, run.seeds, sizes(run, specs))
    save_cases(path, plan, specs)
    return len(plan)


def _save_searched_inputs(path: Path, original: Source, report: "VerifyReport", planned: int) -> None:
    """Write the inputs that were run; searched ones follow the planned ones."""
    from onnxfuse.verification.inputs.input_files import save_cases
    from onnxfuse.verification.inputs.input_specs import input_specs

    searched = [case.made for case in report.cases if case.made is not None]
    if len(searched) > planned:
        save_cases(
            path, searched, input_specs(original if isinstance(original, onnx.ModelProto) else io.load(original))
        )


def _with_localization(
    report: "VerifyReport", run: "ChildRun", folder: Path, options: Options, progress: Progress
) -> "VerifyReport":
    """Return the report, with the op or rule at fault for a mismatch."""
    from onnxfuse.verification.localize.bisect import investigate

    assert run.fused is not None
    original, fused = path_or_proto(run.original), run.fused
    if report.contract is not None:
        from onnxfuse.verification.localize import first_loss

        outcome = isolated(lambda _: first_loss.investigate(original, fused, report, run.inputs, run.seeds), progress)
        return report if isinstance(outcome, Crash) else outcome
    made_by = {op.rule for op in fused_ops(_light(path_or_proto(fused))).values()}
    optional = tuple(r.name for r in pack.select(options.rules) if r.optional and r.name in made_by)
    rules = replace(options, also=optional).chosen()
    reoptimize = OptimizePipeline(Origin(original)).reoptimizer(rules, lambda _: None, [])
    localized = isolated(
        lambda tell: investigate(
            original, fused, report, inputs=run.inputs, seeds=run.seeds, shapes=run.shapes, reoptimize=reoptimize,
            folder=folder, progress=tell,
        ),
        progress,
    )  # fmt: skip
    if not isinstance(localized, Crash):
        return localized
    crashed = f"--bisect: a part of the models {localized.how}, at the step '{localized.step}'"
    return replace(report, problems=(*report.problems, crashed))


@dataclass(frozen=True)
class Benched:
    """Benchmark results, and the fused model that was timed."""

    report: "BenchReport"
    fused: Source


def bench(
    original: Model,
    fused: "Model | None" = None,
    *,
    shapes: Shapes | None = None,
    providers: Sequence[str] | None = None,
    use_tf32: bool | None = None,
    runs: int = RUNS,
    rounds: int = ROUNDS,
    seed: int = 0,
    rules: Sequence[str | Path] = (),
    patience: float = PATIENCE,
    plot: Path | None = None,
    progress: Progress | None = None,
) -> Benched:
    """Time `fused` (by default the optimized original); see `onnxfuse.measure.benchmark.bench`.

    A setting at which the original crashes, or does not respond for `patience` seconds, is skipped and reported; a
    crash of the fused model, or at the default setting, is a CrashError that names the op at fault. `plot`: a .png,
    .svg or .pdf for latency by shape and the roofline.
    """
    from onnxfuse.measure.benchmark import bench as compare
    from onnxfuse.verification.localize.crashes import ChildRun, result_or_crash_error

    if plot is not None:
        from onnxfuse.measure.benchmark.plot import check

        check(plot)
        writable(plot)
    chosen = _with_rules(rules)
    before = path_or_proto(original)
    after = optimize(before, chosen).model if fused is None else path_or_proto(fused)
    outcome = raced(
        lambda tell, earlier: compare(
            before, after, shapes=shapes, providers=providers, use_tf32=use_tf32, runs=runs, rounds=rounds, seed=seed,
            rules=rules, patience=patience, progress=tell, earlier=earlier,
        ),
        progress or silent,
    )  # fmt: skip
    run = ChildRun(before, after, None, (seed,), shapes, providers, use_tf32=use_tf32, rules=rules)
    report = result_or_crash_error(outcome, run, progress or silent)
    if plot is not None:
        from onnxfuse.measure.benchmark.plot import draw

        draw(report, plot)
    return Benched(report, after)


@dataclass(frozen=True)
class Profiled:
    """Bytes, operations and time of a run, and the fused model to which it was compared."""

    report: "Profile"
    fused: Source | None


def profile(
    model: Model,
    fused: "Model | None" = None,
    *,
    alone: bool = True,
    shapes: Shapes | None = None,
    providers: Sequence[str] | None = None,
    time: bool = True,
    cuda_graph: bool = False,
    use_tf32: bool | None = None,
    runs: int = PROFILED,
    seed: int = 0,
    trace: Path | None = None,
    progress: Progress | None = None,
) -> Profiled:
    """Return how bytes, operations and time of a run are distributed; see `onnxfuse.measure.profile.profile`.

    Unless `alone`, a model without fused ops is also optimized, and compared with the result. `trace`: a file for one
    run as a Chrome trace. Raises CrashError that names the op at fault.
    """
    from onnxfuse.measure.profile import profile as look
    from onnxfuse.verification.localize.crashes import ChildRun, run_naming_crashes

    if trace is not None:
        writable(trace)
    before, report_progress = path_or_proto(model), progress or silent
    after = None if fused is None else path_or_proto(fused)
    if after is None and not alone and not fused_ops(_light(before)):
        report_progress("optimize", 0, 0)
        after = optimize(before).model
    report = run_naming_crashes(
        lambda tell: look(
            before, after, shapes=shapes, providers=providers, time=time, cuda_graph=cuda_graph, use_tf32=use_tf32,
            runs=runs, seed=seed, progress=lambda step: tell(step, 0, 0),
        ),
        ChildRun(before, after, None, (seed,), shapes, providers, use_tf32=use_tf32),
        report_progress,
    )  # fmt: skip
    if trace is not None:
        _write_trace(report, trace)
    return Profiled(report, after)


def _light(source: Source) -> onnx.ModelProto:
    return source if isinstance(source, onnx.ModelProto) else io.load(source, weights=False)


def _write_trace(report: "Profile", trace: Path) -> None:
    from onnxfuse.measure.profile.cupti import HINT
    from onnxfuse.measure.profile.trace import chrome_trace

    if report.untimed:
        raise DeviceError(f"--trace: the kernels on the GPU cannot be seen: {report.untimed}", HINT)
    io.write_text(trace, json.dumps(chrome_trace(report)))
