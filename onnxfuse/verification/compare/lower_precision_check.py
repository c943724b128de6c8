"""Verify a file in lower precision: judge each output against the reference by its contract (`lower_precision`)."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from onnxfuse import runtime
from onnxfuse.model.nested import nodes_of
from onnxfuse.model.precision_record import TYPES, PrecisionRecord
from onnxfuse.support.error_text import first_line
from onnxfuse.support.errors import ModelError
from onnxfuse.support.isolation import doing
from onnxfuse.support.progress import Progress
from onnxfuse.verification.cases.default_cases import as_half, default_cases, float32_case
from onnxfuse.verification.cases.limits import Limits
from onnxfuse.verification.cases.planning import (
    RealInputs,
    acceptance_test,
    enter_branches,
    plan_of,
    shapes_text,
)
from onnxfuse.verification.compare.case_comparison import FUSED_FAILS, fused_fails
from onnxfuse.verification.inputs.branches import only_in_bodies
from onnxfuse.verification.inputs.input_specs import input_specs
from onnxfuse.verification.inputs.inputs import Case, Shapes, with_declared
from onnxfuse.verification.reference.float64_reference import (
    REFERENCE_GAPS,
    Choice,
    Float64Reference,
    float32_reference,
    no_float64,
    reference_for,
)
from onnxfuse.verification.reference.float64_reference import as_half as rounded_run
from onnxfuse.verification.report.kernel_counts import kernel_rows, launch_problems
from onnxfuse.verification.report.report import VerifyReport
from onnxfuse.verification.report.rows import LEFT_OUT, CaseRow, OutputRow, none_ran
from onnxfuse.verification.run import sessions
from onnxfuse.verification.run.floats import float_type
from onnxfuse.verification.run.interface import interface_problems
from onnxfuse.verification.run.tensors import MISSING, counts, innermost, output_of
from onnxfuse.verification.tolerance.class_outputs import class_outputs
from onnxfuse.verification.tolerance.lower_precision import judge
from onnxfuse.verification.tolerance.metrics import difference
from onnxfuse.verification.tolerance.output_error import NOTHING

Arrays = Mapping[str, npt.NDArray[Any]]
Run = Callable[[dict[str, npt.NDArray[Any]]], Mapping[str, npt.NDArray[Any]]]


def verified(
    original: onnx.ModelProto,
    fused: onnx.ModelProto,
    lowered: PrecisionRecord,
    *,
    inputs: Sequence[RealInputs] | None,
    seeds: Sequence[int],
    shapes: Shapes | None,
    providers: Sequence[str],
    truth: Choice,
    limits: Limits,
    rules: Sequence[Any],
    progress: Progress,
    top_k: Sequence[int] | None,
) -> VerifyReport:
    """Return the report on `fused`, a file in lower precision. Raises UsageError, ModelError."""
    start = time.perf_counter()
    problems = tuple(interface_problems(original, fused, lower=True))
    report = VerifyReport(providers[0], "", "", "", (), (), (), problems, 0.0, contract=lowered)
    if problems:
        return report
    shapes = with_declared(input_specs(original), fused, shapes) if inputs is None else shapes
    plan = _plan(original, inputs, seeds, shapes)
    with tempfile.TemporaryDirectory(prefix="onnxfuse-") as folder:
        doing(model="original", case=None)
        file = sessions.openable(original, original, folder)
        plain = sessions.ort_session(file, providers)
        plan, never = enter_branches(
            acceptance_test(plain, progress), original, input_specs(original), plan, shapes or {}, limits
        )
        oracle = reference_for(original, truth, [c.shapes for c in plan], file)
        doing(model="fused", case=None)
        run, session = lower_run(fused, providers, folder, rules)
        runtime.reset_counts()
        scores = class_outputs(original)
        tiny = float_type(np.dtype(np.float32 if lowered.precision == "bfloat16" else np.float16)).tiny
        cases: list[CaseRow] = []
        rows: list[OutputRow] = []
        failures: list[str] = []
        for index, case in enumerate(plan):
            progress(f"{case.name} {shapes_text(case)}", index, len(plan))
            started = time.perf_counter()
            note = _late(cases, limits)
            if not note:
                feeds = case.make()
                doing(model="original", case=case.name)
                try:
                    expected = sessions.tensors(plain, feeds)
                except sessions.ORT_ERRORS as error:
                    note = f"the original refuses it: {first_line(error)}"
            if not note:
                doing(model="fused", case=case.name)
                try:
                    actual = run(as_declared(feeds, fused))
                except sessions.ORT_ERRORS as error:
                    failures.append(fused_fails(case, error))
                    note = FUSED_FAILS
            if not note:
                doing(model="truth", case=case.name)
                true, oracle = _true(oracle, feeds, original)
                for name, value in expected.items():
                    ours = actual.get(name, MISSING)
                    judged = judge(
                        ours, value, true.get(name, MISSING), lowered.tolerance, tiny=tiny, scores=name in scores
                    )
                    measured_difference = difference(
                        ours.astype(value.dtype), value, top_k or ((1,) if name in scores else ())
                    ) if ours.shape == value.shape else NOTHING.difference  # fmt: skip
                    measure = replace(
                        NOTHING,
                        elements=value.size,
                        compared=value.size,
                        difference=measured_difference,
                        scale=_largest(true.get(name, MISSING)),
                    )
                    rows.append(OutputRow(name, str(ours.dtype), len(cases), measure, contract=judged))
            seconds = time.perf_counter() - started
            cases.append(CaseRow.of(case, seconds, note))
        if not rows and not failures:
            raise none_ran(cases)
    kernels = kernel_rows(session) if session is not None else ()
    # Branches that never ran are reported as such; ops that occur nowhere else are not required to have been called.
    idle = launch_problems(kernels, only_in_bodies(fused) if never else ()) if providers[0] == sessions.CUDA else ()
    return replace(
        report, truth=oracle.kind, truth_how=oracle.how, truth_why=oracle.why, cases=tuple(cases), rows=tuple(rows),
        kernels=kernels, problems=(*failures, *idle), never_ran=never,
        half=session is None, seconds=time.perf_counter() - start,
    )  # fmt: skip


def _largest(values: npt.NDArray[Any]) -> float:
    """Return the largest finite value of an output; 0 if there is none, or if it is not numeric."""
    if values.dtype.kind not in "biufV":
        return 0.0
    magnitudes = np.abs(values.astype(np.float64))
    return float(magnitudes.max(initial=0.0, where=np.isfinite(magnitudes)))


def _plan(
    original: onnx.ModelProto, inputs: Sequence[RealInputs] | None, seeds: Sequence[int], shapes: Shapes | None
) -> list[Case]:
    """Return the cases: real inputs, or inputs generated in the range of float16, at sizes that the original
    accepts."""
    if inputs is None and not shapes:
        usual = default_cases(original, None, [sessions.CPU], "verify", half=True)
        shapes = dict(usual[0].shapes)
    specs = input_specs(original)
    if inputs is not None:
        return plan_of(specs, inputs, seeds, shapes)
    return [float32_case(case, half=True) for case in plan_of(as_half(specs), None, seeds, shapes)]


def lower_run(
    fused: onnx.ModelProto, providers: Sequence[str], folder: str, rules: Sequence[Any] = ()
) -> tuple[Run, Any]:
    """Return the runner of a model in lower precision, and its session; None for a type without CPU kernels."""
    if providers[0] == sessions.CPU and _uses_type(fused, TensorProto.BFLOAT16):
        return rounded_run(fused), None
    session = sessions.with_kernels(sessions.openable(fused, fused, folder), providers, rules=rules)
    return (lambda feeds: sessions.tensors(session, feeds)), session


def _uses_type(model: onnx.ModelProto, type_: int) -> bool:
    declared = (v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output))
    nodes = [*nodes_of(model.graph), *(n for f in model.functions for n in f.node)]
    casts = (a.i for n in nodes for a in n.attribute if a.name == "to")
    return type_ in {*declared, *casts, *(t.data_type for t in model.graph.initializer)}


def as_declared(feeds: Arrays, model: onnx.ModelProto) -> dict[str, npt.NDArray[Any]]:
    """Convert the inputs to the types that the file declares."""
    tensors = {i.name: innermost(i.type) for i in model.graph.input}
    types = {name: tensor.elem_type for name, tensor in tensors.items() if tensor is not None}
    low = {TYPES[n] for n in ("float16", "bfloat16")}
    lowered = {n: type_ for n in feeds if (type_ := types.get(output_of(n, types))) in low and not counts(n, types)}
    return {
        n: x.astype(onnx.helper.tensor_dtype_to_np_dtype(lowered[n])) if n in lowered else x for n, x in feeds.items()
    }


def _late(cases: Sequence[CaseRow], limits: Limits) -> str:
    longest = max((c.seconds for c in cases), default=0.0)
    if cases and limits.spent + longest > limits.seconds:
        return f"{LEFT_OUT}{limits.used_up}"
    return ""


def _true(
    reference: Float64Reference, feeds: dict[str, npt.NDArray[Any]], original: onnx.ModelProto
) -> tuple[Arrays, Float64Reference]:
    """Return the reference outputs, in float32 from now on if float64 is not possible."""
    try:
        return reference.evaluate(feeds), reference
    except REFERENCE_GAPS as error:
        if reference.kind == "float32":
            raise ModelError(f"the truth is not possible: {first_line(error)}") from error
        other = float32_reference(original, no_float64(error))
        return other.evaluate(feeds), other
