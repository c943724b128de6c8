"""Verify, time and profile a model against its original, in a child process if possible.

A crash of the child, or of its GPU, is reproduced with fewer and fewer nodes until the responsible op is known.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from onnxfuse.api.optimize.optimizing import optimize
from onnxfuse.api.request.optimize_pipeline import OptimizePipeline
from onnxfuse.api.request.options import Options
from onnxfuse.api.request.origin import Origin
from onnxfuse.files import io
from onnxfuse.files.atomic_write import writable
from onnxfuse.files.model_source import Model, Source, loaded, path_or_proto
from onnxfuse.measure.benchmark.leaving_out import raced
from onnxfuse.model.fused import fused_ops
from onnxfuse.options.functions import BenchRun, Compared, Profiled, ProfileRun, Timed, VerifyRun
from onnxfuse.options.kinds import extents
from onnxfuse.options.schema import filled, part
from onnxfuse.rules.language import pack
from onnxfuse.support import isolation
from onnxfuse.support.errors import DeviceError
from onnxfuse.support.isolation import Crash, isolated
from onnxfuse.support.progress import Progress, silent

if TYPE_CHECKING:
    from onnxfuse.measure.benchmark import BenchmarkReport as BenchReport
    from onnxfuse.measure.profile import Profile
    from onnxfuse.verification import VerifyReport
    from onnxfuse.verification.localize.crashes import ChildRun


def verify(
    original: Model,
    fused: Model,
    *,
    extra_cases: bool = True,
    progress: Progress | None = None,
    **given: Unpack[VerifyRun],
) -> "VerifyReport":
    """Return whether `fused` computes what `original` computes; see `onnxfuse.verify`.

    A crash is reported, too. Inputs to be saved are written before anything is run on them.
    """
    from onnxfuse.verification import verify as compare  # ONNX Runtime is imported only when something is run.
    from onnxfuse.verification.localize.crashes import ChildRun, crash_report

    options = filled(VerifyRun, given)
    chosen, shapes, inputs = _with_rules(options["rules"]), extents(options["shapes"]) or None, options["inputs"]
    before, after, report_progress = path_or_proto(original), path_or_proto(fused), progress or silent
    several = None if inputs is None else [inputs] if isinstance(inputs, str | Path | Mapping) else list(inputs)
    run = ChildRun(
        before, after, several, options["seeds"], shapes, options["providers"], options["fused_providers"],
        options["use_tf32"], options["rules"],
    )  # fmt: skip
    saved, bisect = options["save_inputs"], options["bisect"]
    planned = 0 if saved is None else _save_inputs(Path(saved), before, run)
    outcome = isolated(
        lambda tell: compare(
            before, after, inputs=several, shapes=shapes, extra_cases=extra_cases, progress=tell,
            **part(Compared, options),
        ),
        report_progress,
        patience=max(options["seconds"] or 0, isolation.PATIENCE),
    )  # fmt: skip
    report = crash_report(outcome, run, report_progress) if isinstance(outcome, Crash) else outcome
    if saved is not None:
        _save_searched_inputs(Path(saved), before, report, planned)
    if bisect is None or report.crash is not None:
        return report
    return _with_localization(report, run, Path(bisect), chosen, report_progress)


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

    specs = input_specs(loaded(original))
    plan = plan_of(specs, run.inputs, run.seeds, sizes(run, specs))
    save_cases(path, plan, specs)
    return len(plan)


def _save_searched_inputs(path: Path, original: Source, report: "VerifyReport", planned: int) -> None:
    """Write the inputs that were run; searched ones follow the planned ones."""
    from onnxfuse.verification.inputs.input_files import save_cases
    from onnxfuse.verification.inputs.input_specs import input_specs

    searched = [case.made for case in report.cases if case.made is not None]
    if len(searched) > planned:
        save_cases(path, searched, input_specs(loaded(original)))


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
    made_by = {op.rule for op in fused_ops(loaded(path_or_proto(fused), weights=False)).values()}
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
    original: Model, fused: "Model | None" = None, *, progress: Progress | None = None, **given: Unpack[BenchRun]
) -> Benched:
    """Time `fused` (by default the optimized original); see `onnxfuse.bench`.

    A setting at which the original crashes, or does not respond in time, is skipped and reported; a crash of the fused
    model, or at the default setting, is a CrashError that names the op at fault.
    """
    from onnxfuse.measure.benchmark import bench as compare
    from onnxfuse.verification.localize.crashes import ChildRun, result_or_crash_error

    options = filled(BenchRun, given)
    plot, shapes = None if options["plot"] is None else Path(options["plot"]), extents(options["shapes"])
    if plot is not None:
        from onnxfuse.measure.benchmark.plot import check

        check(plot)
        writable(plot)
    chosen = _with_rules(options["rules"])
    before = path_or_proto(original)
    after = optimize(before, chosen).model if fused is None else path_or_proto(fused)
    outcome = raced(
        lambda tell, earlier: compare(
            before, after, shapes=shapes, progress=tell, earlier=earlier, **part(Timed, options)
        ),
        progress or silent,
    )  # fmt: skip
    run = ChildRun(
        before, after, None, (options["seed"],), shapes, options["providers"], use_tf32=options["use_tf32"],
        rules=options["rules"],
    )  # fmt: skip
    report = result_or_crash_error(outcome, run, progress or silent)
    if plot is not None:
        from onnxfuse.measure.benchmark.plot import draw

        draw(report, plot)
    return Benched(report, after)


@dataclass(frozen=True)
class ProfiledModels:
    """Bytes, operations and time of a run, and the fused model to which it was compared."""

    report: "Profile"
    fused: Source | None


def profile(
    model: Model,
    fused: "Model | None" = None,
    *,
    alone: bool = True,
    progress: Progress | None = None,
    **given: Unpack[ProfileRun],
) -> ProfiledModels:
    """Return how bytes, operations and time of a run are distributed; see `onnxfuse.profile`.

    Unless `alone`, a model without fused ops is also optimized, and compared with the result. Raises CrashError that
    names the op at fault.
    """
    from onnxfuse.measure.profile import profile as look
    from onnxfuse.verification.localize.crashes import ChildRun, run_naming_crashes

    options = filled(ProfileRun, given)
    trace, shapes = None if options["trace"] is None else Path(options["trace"]), extents(options["shapes"])
    if trace is not None:
        writable(trace)
    before, report_progress = path_or_proto(model), progress or silent
    after = None if fused is None else path_or_proto(fused)
    if after is None and not alone and not fused_ops(loaded(before, weights=False)):
        report_progress("optimize", 0, 0)
        after = optimize(before).model
    report = run_naming_crashes(
        lambda tell: look(
            before, after, shapes=shapes, progress=lambda step: tell(step, 0, 0), **part(Profiled, options)
        ),
        ChildRun(
            before, after, None, (options["seed"],), shapes, options["providers"], use_tf32=options["use_tf32"]
        ),
        report_progress,
    )  # fmt: skip
    if trace is not None:
        _write_trace(report, trace)
    return ProfiledModels(report, after)


def _write_trace(report: "Profile", trace: Path) -> None:
    from onnxfuse.measure.profile.cupti import HINT
    from onnxfuse.measure.profile.trace import chrome_trace

    if report.untimed:
        raise DeviceError(f"--trace: GPU kernels cannot be traced: {report.untimed}", HINT)
    io.write_text(trace, json.dumps(chrome_trace(report)))
