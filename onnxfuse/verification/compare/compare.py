"""Run two models on the same inputs and judge the second by the first's own error against a float64 reference."""

import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from onnxfuse import runtime
from onnxfuse.files import io
from onnxfuse.model.precision_record import read as read_lowered
from onnxfuse.support.errors import ModelError
from onnxfuse.support.isolation import doing
from onnxfuse.support.progress import Progress, silent
from onnxfuse.verification.cases.limits import EVALUATIONS, CaseCosts, Limits, gigabytes, peak
from onnxfuse.verification.cases.planning import (
    SEARCHING,
    RealInputs,
    acceptance_test,
    enter_branches,
    plan_of,
    search_accepted_sizes,
    shape_key,
)
from onnxfuse.verification.compare.better_inputs import improve_inputs
from onnxfuse.verification.compare.case_comparison import (
    Comparison,
    Float32Check,
    OriginalRuns,
    OutputFacts,
    References,
)
from onnxfuse.verification.compare.doubt import reexamine
from onnxfuse.verification.compare.empty_outputs import outputs_without_elements
from onnxfuse.verification.compare.judging import Judging
from onnxfuse.verification.compare.large_cases import LargeCases, sizes_run
from onnxfuse.verification.compare.lower_precision_check import verified
from onnxfuse.verification.compare.near_bounds import large_constants
from onnxfuse.verification.compare.rounding import may_round_products, rounding_behind
from onnxfuse.verification.inputs.branches import only_in_bodies
from onnxfuse.verification.inputs.input_specs import input_specs
from onnxfuse.verification.inputs.inputs import Case, InputSpec, Shapes, with_declared
from onnxfuse.verification.reference.float8_sums import float8_products
from onnxfuse.verification.reference.float64_reference import (
    Choice,
    as_half,
    as_tf32,
    float32_reference,
    parameters,
    reference_for,
)
from onnxfuse.verification.reference.promoted import is_narrower
from onnxfuse.verification.report.kernel_counts import kernel_rows, launch_problems
from onnxfuse.verification.report.report import VerifyReport
from onnxfuse.verification.report.rows import none_ran
from onnxfuse.verification.run import sessions
from onnxfuse.verification.run.interface import interface_problems
from onnxfuse.verification.run.sessions import Source
from onnxfuse.verification.tolerance.class_outputs import class_outputs
from onnxfuse.verification.tolerance.quantized_outputs import float8_outputs, steps_of_outputs
from onnxfuse.verification.variants.as_written import as_written
from onnxfuse.verification.variants.broken_original import Unoptimized
from onnxfuse.verification.variants.declared_types import with_types
from onnxfuse.verification.variants.error_draws import error_draws
from onnxfuse.verification.variants.float32_twin import Float32Comparison, step_of_half
from onnxfuse.verification.variants.half_ties import within_half_errors
from onnxfuse.verification.variants.perturbed import on_perturbed_tables, on_perturbed_weights, selects
from onnxfuse.verification.variants.variant import Arrays


def compare(
    original: Source,
    fused: Source,
    inputs: Sequence[RealInputs] | None = None,
    seeds: Sequence[int] = (0,),
    shapes: Shapes | None = None,
    providers: Sequence[str] | None = None,
    truth: Choice = "auto",
    progress: Progress = silent,
    judging: Judging | None = None,
    fused_providers: Sequence[str] | None = None,
    limits: Limits | None = None,
    rules: Sequence[str | Path] = (),
    *,
    extra_cases: bool = True,
) -> VerifyReport:
    """Return the report of `onnxfuse.verification.verify`, which documents the arguments."""
    start = time.perf_counter()
    original_model, fused_model = load(original, "original"), load(fused, "fused")
    judging, limits = judging or Judging(), limits or Limits()
    judging.tolerances.check([o.name for o in original_model.graph.output])
    providers = sessions.chosen_providers(providers)
    lowered = read_lowered(fused_model)
    if lowered is not None and not judging.tolerances.rtol and not judging.tolerances.atol:
        return verified(
            original_model, fused_model, lowered, inputs=inputs, seeds=seeds, shapes=shapes, providers=providers,
            truth=truth, limits=limits, rules=rules, progress=progress, top_k=judging.top_k,
        )  # fmt: skip
    elsewhere = None if fused_providers is None else sessions.chosen_providers(fused_providers)
    report = VerifyReport(
        providers[0], "", "", "", (), (), (), tuple(interface_problems(original_model, fused_model)), 0.0,
        "" if elsewhere is None else elsewhere[0],
        without_tf32=_why_without_tf32(judging, fused_model, [*providers, *(elsewhere or ())]),
        limits={"seconds": limits.seconds, "memory": limits.memory},
    )  # fmt: skip
    halves = is_narrower(original_model, TensorProto.FLOAT)
    wide: Float32Comparison | None = None
    wrong_in_float32, planned = False, 0
    if not report.problems:
        specs = input_specs(original_model)
        shapes = with_declared(specs, fused_model, shapes) if inputs is None else shapes
        plan = plan_of(specs, inputs, seeds, shapes)
        with tempfile.TemporaryDirectory(prefix="onnxfuse-") as folder:
            # Reference and sessions hold one copy of the weights each in the end: free the models read before opening
            # the next.
            cuda = sessions.tf32_options(judging.use_tf32, fused_model)
            fused_file = sessions.openable(fused, fused_model, folder)
            in_branches = only_in_bodies(fused_model)
            del fused_model
            file = sessions.openable(original, original_model, folder)
            # An original that ONNX Runtime does not open is reported as such, not as one without a reference.
            doing(model="original", case=None)
            plain = sessions.ort_session(file, providers, cuda=cuda)
            requested = shapes or {}
            plan, shapes, report = _accepted_plan(
                original_model, acceptance_test(plain, progress), plan, specs, inputs, seeds, shapes, limits, report
            )
            needs = {key: EVALUATIONS * peak(original_model, dict(key)) for key in {shape_key(c) for c in plan}}
            too_much = _why_not_float64(original_model, plan, limits) if truth == "auto" else ""
            oracle = (
                float32_reference(original_model, too_much, file)
                if too_much
                else reference_for(original_model, truth, [c.shapes for c in plan], file)
            )
            rounded = {"tf32": as_tf32, "half": as_half}[judging.rounding](original_model) if judging.rounding else None
            ties = list(within_half_errors(original_model)) if judging.rounding == "half" else []
            if ties and may_round_products(report) and oracle.kind == "float64" and float8_products(original_model):
                ties.append(as_tf32(original_model))
            why_not_wide = ""
            if judging.wide and halves and oracle.kind == "float64":
                wide, why_not_wide = _wide(original, fused, original_model)
            facts = OutputFacts(
                class_outputs(original_model) if judging.top_k is None else frozenset(),
                outputs_without_elements(original_model),
                selects(original_model),
                steps_of_outputs(original_model),
                float8_outputs(original_model),
            )
            costs = CaseCosts(original_model)
            del original_model
            # With two providers the original's own error is the worse of the two.
            twin = None if elsewhere is None else sessions.ort_session(file, elsewhere, cuda=cuda)
            doing(model="fused", case=None)
            session = sessions.with_kernels(fused_file, elsewhere or providers, cuda, rules)
            del file, fused_file

            def reopened() -> sessions.Model:
                path = Path(original) if isinstance(original, str | Path) else None
                return path or sessions.openable(original, load(original, "original"), folder)

            def on_cpu() -> Any:
                return sessions.low_memory_session(reopened(), [sessions.CPU])

            runtime.reset_counts()

            runs = OriginalRuns(
                plain,
                on_perturbed_tables(lambda: load(original, "original"), providers, cuda),
                rounded,
                ties,
                lambda: _original_variants(load(original, "original"), providers, cuda),
                Unoptimized(
                    lambda: sessions.unoptimized(reopened(), providers=providers, cuda=cuda),
                    (lambda: sessions.precise(reopened(), providers)) if providers[0] == sessions.CPU else None,
                    lambda names: sessions.without_optimizers(reopened(), providers, cuda, names),
                ),
                lambda: error_draws(load(original, "original")),
                twin,
                on_cpu if elsewhere is None and sessions.CUDA in providers else None,
            )
            references = References(oracle, lambda why: float32_reference(load(original, "original"), why))
            comparison = Comparison(
                runs, session, references, facts, judging, limits, needs, Float32Check(wide, why_not_wide)
            )
            planned = len(plan)
            comparison.run_all(plan, progress)
            if inputs is None and extra_cases:
                reloads = (lambda: load(original, "original")), (lambda: load(fused, "fused"))
                report = _run_extra_cases(comparison, costs, *reloads, specs, requested, shapes, report, progress)
            reexamine(comparison, lambda n: comparison.cases[n].made or plan[n], specs, progress)
            progress("judging", len(plan), len(plan))
            report = _concluded(comparison, specs, report, in_branches, planned)
            wrong_in_float32 = bool(wide and wide.problems) or any(r.verdict == "mismatch" for r in comparison.exact)
    rounding = (
        ""
        if report.ok or judging.rounding or wrong_in_float32
        else rounding_behind(report, halves=halves, wide=wide is not None)
    )
    if rounding:
        permitted = replace(judging, rounding=rounding, wide=False)  # The float32 comparison found no problem.
        permissive = compare(
            original, fused, inputs, seeds, shapes, providers, truth, progress, permitted, fused_providers,
            limits.restarted(), rules, extra_cases=extra_cases,
        )  # fmt: skip
        # Both start from the same plan; how many cases are omitted depends on the time.
        permissive_ran, ran = (sum(not c.note for c in one.cases[:planned]) for one in (permissive, report))
        as_much = permissive_ran >= ran
        if permissive.ok and as_much:
            report = replace(
                permissive, searched=report.searched, wide=report.wide, tf32=rounding == "tf32", half=rounding == "half"
            )
    nan_weights = weights_with_nan(load(original, "original")) if report.unverified else ()
    return replace(report, nan_weights=nan_weights, seconds=time.perf_counter() - start)


def weights_with_nan(model: onnx.ModelProto) -> tuple[str, ...]:
    """Return the weights that hold a NaN; of the types that numpy has."""
    floats = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
    return tuple(
        one.name
        for one in model.graph.initializer
        if one.data_type in floats and np.isnan(onnx.numpy_helper.to_array(one)).any()
    )


def _accepted_plan(
    model: onnx.ModelProto,
    runs: Callable[[Case], bool],
    plan: list[Case],
    specs: Sequence[InputSpec],
    inputs: Sequence[RealInputs] | None,
    seeds: Sequence[int],
    shapes: Shapes | None,
    limits: Limits,
    report: VerifyReport,
) -> tuple[list[Case], Shapes | None, VerifyReport]:
    """Return the plan with accepted sizes and cases that enter branches, and notes on both.

    `runs`: whether the original accepts a case.
    """
    requested = shapes or {}
    if inputs is None:
        deadline = SEARCHING * limits.seconds
        sizes = search_accepted_sizes(runs, model, specs, plan, requested, lambda: limits.spent > deadline)
        shapes, report = {**requested, **sizes}, replace(report, searched=sizes)
        plan = plan_of(specs, inputs, seeds, shapes) if sizes else plan
    plan, never = enter_branches(runs, model, specs, plan, requested, limits)
    return plan, shapes, replace(report, never_ran=never)


def _wide(original: Source, fused: Source, model: onnx.ModelProto) -> tuple[Float32Comparison | None, str]:
    """Return the float32 comparison of the fusions of a half-precision model, or why there is none."""
    try:
        return Float32Comparison(
            lambda: load(original, "original"), step_of_half(model), lambda: load(fused, "fused")
        ), ""
    except ModelError as error:
        return None, f"{error}"


def _why_not_float64(model: onnx.ModelProto, plan: Sequence[Case], limits: Limits) -> str:
    """Return why the reference is not computed in float64; empty if the smallest case and the weights fit."""
    weights = 8 * parameters(model)
    need = weights + min((peak(model, dict(key), float_bytes=8) for key in {shape_key(c) for c in plan}), default=0)
    return f"about {gigabytes(need)} in float64, of {gigabytes(limits.memory)}" if need > limits.memory else ""


def _run_extra_cases(
    comparison: Comparison,
    costs: CaseCosts,
    reload: Callable[[], onnx.ModelProto],
    reload_fused: Callable[[], onnx.ModelProto],
    specs: Sequence[InputSpec],
    requested: Shapes,
    shapes: Shapes | None,
    report: VerifyReport,
    progress: Progress,
) -> VerifyReport:
    """Run additional cases: large sizes and values, and more informative inputs where the default ones show little.

    `requested` are the sizes requested by the user, `shapes` include those that were searched; `costs` are the
    original's.
    """
    seed = next((c.seed for c in comparison.cases if c.seed is not None), 0)
    constants = {*large_constants(reload()), *large_constants(reload_fused())}
    not_run = LargeCases(comparison, specs, seed, progress, costs).run(
        requested, shapes or {}, sorted(constants), reload
    )
    unfound = improve_inputs(comparison, reload, specs, shapes or {}, requested, progress)
    return replace(report, not_run=(*not_run, *filter(None, [unfound])))


def _concluded(
    comparison: Comparison,
    specs: Sequence[InputSpec],
    empty: VerifyReport,
    in_branches: Collection[str],
    planned: int,
) -> VerifyReport:
    """Return the report on all cases, the first `planned` of which were planned, and the others additional.

    `in_branches` are the fused ops that occur only in branches.

    Raises UsageError if the original accepted no case.
    """
    if not comparison.rows and not comparison.problems:
        raise none_ran(comparison.cases)
    kernels = kernel_rows(comparison.session)
    # Branches that never ran are reported as such; ops that occur nowhere else are not required to have been called.
    excused = in_branches if empty.never_ran else ()
    wrong = {r.output for r in comparison.rows if r.verdict == "mismatch"}
    wide = comparison.wide.problems if comparison.wide else {}
    return replace(
        empty,
        truth=comparison.truth.kind,
        truth_how=comparison.truth.how,
        truth_why=comparison.truth.why,
        cases=tuple(replace(c, additional=n >= planned) for n, c in enumerate(comparison.cases)),
        sizes=sizes_run(specs, [c.shapes for c in comparison.cases if not c.note]),
        rows=tuple(comparison.rows),
        kernels=kernels,
        wide="compared" if comparison.wide else comparison.why_not_wide,
        saturating=comparison.original.unoptimized.saturating,
        optimizers=comparison.original.unoptimized.optimizers,
        problems=(
            *comparison.problems,
            *(why for name, why in wide.items() if name not in wrong),
            *(launch_problems(kernels, excused) if (empty.fused_provider or empty.provider) == sessions.CUDA else ()),
        ),
    )


def _original_variants(
    model: onnx.ModelProto, providers: Sequence[str], cuda: Mapping[str, str]
) -> list[Callable[[Arrays], Arrays]]:
    """Return the runners of the original's variants; one that cannot be opened is omitted."""
    variants = []
    for form in (with_types, as_written):
        with suppress(ModelError):
            variants += [run for run in [form(model, providers, cuda)] if run is not None]
    with suppress(ModelError):
        variants += on_perturbed_weights(lambda: model, providers, cuda)
    return variants


def load(source: Source, name: str) -> onnx.ModelProto:
    """Load the model behind `source`, which messages call `name`. Raises ModelError."""
    if isinstance(source, onnx.ModelProto):
        return source
    return io.parse(source, f"the {name} model") if isinstance(source, bytes) else io.load(source)


def _why_without_tf32(judging: Judging, fused: onnx.ModelProto, providers: Sequence[str]) -> str:
    if sessions.CUDA not in providers or sessions.tf32_options(judging.use_tf32, fused).get("use_tf32") != "0":
        return ""
    return "asked for" if judging.use_tf32 is False else "the fused file was made with --strict-fp32"
