"""Lower precision: convert a float32 model to float16 or bfloat16 where its outputs meet a contract.

`convert` is the whole procedure. ONNX's schemas determine what can be converted (`plan`); the effect on each node is
measured against the reference (`measure`); nodes whose values exceed the range stay float32, and as few as possible of
those that lose precision (`sensitive_nodes`, `choose`), tested on the whole model (`trial`); then weights are converted
and Casts inserted at type boundaries (`write`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto

from onnxfuse.files.io import without_weights
from onnxfuse.graph.randomness import random_node
from onnxfuse.model import precision_record
from onnxfuse.model.precision_record import TYPES, HighPrecisionNode, PrecisionRecord
from onnxfuse.precision import mask_constants, plan, user_pins
from onnxfuse.precision.choose import PrecisionChoice, choose
from onnxfuse.precision.measure import NodeStatistics, measure
from onnxfuse.precision.plan import FLOAT, FloatNode
from onnxfuse.precision.scopes import called, every, scopes_of
from onnxfuse.precision.trial import Trial
from onnxfuse.precision.write import constants_as_tensors
from onnxfuse.support.errors import ModelError, UsageError
from onnxfuse.support.plurals import plural
from onnxfuse.support.progress import Steps, silent
from onnxfuse.verification.cases.default_cases import default_cases
from onnxfuse.verification.cases.planning import RealInputs
from onnxfuse.verification.inputs.inputs import Case
from onnxfuse.verification.reference.float64_reference import FLOAT64_PARAMETERS, REFERENCE_GAPS, no_float64, parameters
from onnxfuse.verification.reference.reference import OutOfTime
from onnxfuse.verification.run import sessions
from onnxfuse.verification.tolerance.lower_precision import Judged, relative_rms

Arrays = Mapping[str, npt.NDArray[Any]]

SECONDS = 300.0
"""Time limit for measuring, and again for the trials."""

ROUNDS = 5
"""Number of selections, each with a stricter tolerance, until the final model meets the contract."""

NOTHING = 1e-9
"""Differences below this share of an output are ignored: float64 has six more digits."""


@dataclass(frozen=True)
class Lowering:
    """The requested conversion."""

    precision: str
    """`float16`, `bfloat16` or `mixed`."""
    inputs: tuple[RealInputs, ...] = field(default=())
    """Real inputs; by default generated ones of every kind, in the range of float16."""
    tolerance: float | None = None
    """The largest relative RMS error of an output; None for the contract's default."""
    io: str = "float32"
    """Type of the model's float32 inputs and outputs."""
    seconds: float = SECONDS
    keep_fp32: tuple[str, ...] = ()
    """Nodes that remain float32 regardless of measurements: names, values, operators, or patterns of these."""

    def __post_init__(self) -> None:
        """Raise UsageError for invalid values."""
        if self.precision not in precision_record.PRECISIONS:
            raise UsageError(
                f"precision is {self.precision!r}, expected one of {', '.join(precision_record.PRECISIONS)}"
            )
        if self.io not in TYPES:
            raise UsageError(f"io_precision is {self.io!r}, expected one of {', '.join(TYPES)}")
        if self.tolerance is not None and not 0 < self.tolerance < 1:
            raise UsageError(f"tolerance is {self.tolerance:g}, expected a share above 0 and below 1", "Such as 0.01.")


def convert(
    model: ModelProto,
    request: Lowering,
    progress: Steps = silent,
    finished: Callable[[ModelProto], ModelProto] = lambda lowered: lowered,
) -> PrecisionRecord:
    """Convert a normalized model without fused ops, in place; return its precision record, which the model then
    carries.

    The result of `finished` on the converted model, which rounds differently, meets the contract, too. Raises
    ModelError, which names the output, if no selection does; UsageError if the model runs on none of the generated
    inputs.
    """
    previous = precision_record.read(model)
    if previous is not None:
        return previous
    _check(model)
    start = time.perf_counter()
    constants_as_tensors(model, [s.proto for s in every(scopes_of(model))])
    words = request.keep_fp32
    pinned = user_pins.of(plan.float_nodes(scopes_of(model), plan.opsets_of(model)), words) if words else {}
    low = TYPES["float16" if request.precision == "mixed" else request.precision]
    tolerance = precision_record.tolerance_of(request.precision) if request.tolerance is None else request.tolerance
    progress("inputs")
    cases = default_cases(model, request.inputs or None, [sessions.CPU], "--precision", half=True)
    feeds = [case.make() for case in cases]
    clamped, float_nodes, observed, reference = _measured(model, request, low, feeds, progress)
    until = max(start, time.perf_counter()) + request.seconds
    trial = Trial(model, low, tolerance, feeds, observed.outputs, until, progress)
    named = {name: why for name, why in pinned.items() if float_nodes[name].types}
    for _ in range(ROUNDS):
        choice = choose(trial, float_nodes, observed.observed, named, mixed=request.precision == "mixed")
        _require(choice, float_nodes, tolerance, request, out_of_time=trial.cut)
        complete = trial.whole(finished(trial.converted(choice.kept)[0]))
        if complete.ok or trial.over:
            break
        trial.stricter(complete)
    lowered, doubled = trial.converted(choice.kept, TYPES[request.io])
    choice = replace(choice, tried=max(choice.tried, complete, key=lambda tried: tried.judged.severity))
    _require(choice, float_nodes, tolerance, request, out_of_time=trial.cut)
    facts = PrecisionRecord(
        precision=request.precision,
        tolerance=tolerance,
        inputs=_told(cases[: len(observed.outputs)], observed.note),
        truth=reference,
        nodes=sum(bool(p.types) for p in float_nodes.values()),
        kept=tuple(
            HighPrecisionNode(
                called(float_nodes[n].node), float_nodes[n].node.op_type, precision_record.NAMES[t], choice.reasons[n]
            )
            for n, t in choice.kept.items()
        ),
        fixed=tuple(
            HighPrecisionNode(called(p.node), p.node.op_type, "float32", p.why) for p in float_nodes.values() if p.why
        ),
        clamped=tuple(clamped),
        doubled=tuple(doubled),
        error=float(f"{choice.tried.judged.error:.3g}"),
        out_of_time=trial.cut,
        plain_error=0.0 if choice.plain is choice.tried else _above(choice.plain.judged),
    )
    model.CopyFrom(lowered)
    precision_record.write(model, facts)
    return facts


def _check(model: ModelProto) -> None:
    """Raise UsageError for a model that has nothing to convert, or has no trustworthy reference."""
    random = random_node(model)
    if random is not None:
        raise UsageError(
            f"{random.op_type} '{called(random)}' draws random numbers: the effect of lower precision cannot be "
            "measured",
            "Export the model for inference, or cut it before that node.",
        )
    float_nodes = plan.float_nodes(scopes_of(model), plan.opsets_of(model))
    if not any(p.types for p in float_nodes.values()):
        raise UsageError("no node of the model can be converted: none computes with float32", "Leave out --precision.")


def _measured(
    model: ModelProto, request: Lowering, low: int, feeds: Sequence[Arrays], progress: Steps
) -> tuple[list[str], dict[str, FloatNode], NodeStatistics, str]:
    """Return the mask constants clamped in `model`, its nodes, their statistics, and the type of the reference."""
    types = [low] if request.precision != "mixed" else [low, TensorProto.BFLOAT16]
    reference_type = TensorProto.DOUBLE if parameters(model) <= FLOAT64_PARAMETERS else FLOAT

    def look(at: ModelProto, types: Sequence[int]) -> tuple[dict[str, FloatNode], NodeStatistics]:
        main = scopes_of(at)
        float_nodes = plan.float_nodes(main, plan.opsets_of(at))
        try:
            return float_nodes, measure(at, float_nodes, types, feeds, request.seconds, progress, reference_type)
        except OutOfTime as error:
            raise UsageError(f"--precision: {error}", "Give smaller inputs with --inputs, or more --time.") from None
        except REFERENCE_GAPS as error:
            raise UsageError(f"--precision: the truth is {no_float64(error)}", "Leave out --precision.") from error

    hidden = without_weights(model, lambda weight: weight)
    clamped = mask_constants.clamp(scopes_of(hidden))
    float_nodes, observed = look(hidden, types)
    if clamped:
        progress("masks")
        as_it_is = look(model, [])[1]
        pairs = zip(as_it_is.outputs, observed.outputs, strict=False)
        if not all(relative_rms(b[n], a[n])[0] <= NOTHING for a, b in pairs for n in a if np.asarray(a[n]).size):
            clamped = []
            float_nodes, observed = look(model, types)
        else:
            model.CopyFrom(hidden)
    return clamped, float_nodes, observed, "float64" if reference_type == TensorProto.DOUBLE else "float32"


def _require(
    choice: PrecisionChoice,
    float_nodes: Mapping[str, FloatNode],
    tolerance: float,
    request: Lowering,
    *,
    out_of_time: bool,
) -> None:
    """Raise ModelError if the contract is not met, with the output and the node where accuracy is lost."""
    if choice.tried.ok:
        return
    first = next(iter(choice.kept), None)
    worst = (
        f"; the worst node is {float_nodes[first].node.op_type} '{called(float_nodes[first].node)}'" if first else ""
    )
    advice = (
        f"Allow more than {tolerance:.2g} with --tolerance, try another precision, or give real inputs with --inputs."
    )
    raise ModelError(
        f"--precision {request.precision}: output '{choice.tried.output}' does not meet the contract: "
        f"{choice.tried.judged.fault}, with {plural(choice.kept, 'node')} kept in float32{worst}",
        "The time ran out before a set of nodes that meets it was found: allow more with --time."
        if out_of_time
        else advice,
    )


def _above(judged: Judged) -> float:
    """Return the tolerance, to two digits, that an output would have met; 0 if unknown."""
    wider = replace(judged, allowed=judged.error, least_cosine=1 - judged.error**2)
    if wider.fault or not 0 < judged.error < 1:
        return 0.0
    return float(f"{1.06 * judged.error:.1e}")  # rounding down to two digits is less than 5% too low


def _told(cases: Sequence[Case], note: str) -> str:
    """Describe what was run, in words."""
    names = ", ".join(dict.fromkeys(c.name for c in cases))
    origin = "generated" if cases and cases[0].generated else "given"
    return f"{plural(cases, 'case')} of {origin} inputs ({names})" + f", {note}" * bool(note)


__all__ = ["Lowering", "convert"]
