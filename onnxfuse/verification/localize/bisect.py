"""Locate the fused op or rule at fault: every changed part of the graph is verified by itself, from the inputs on.

A fused model is partitioned into windows (`partition.py`). The original is run once per batch of windows for the values
that they read; each window then gets the original's own values, so that an earlier error is not counted against it, and
is verified like a model: within the error budget of the original's nodes there, against float64.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx
from onnx import ModelProto, TypeProto
from onnxruntime import InferenceSession

from onnxfuse import ops
from onnxfuse.files import io
from onnxfuse.files.atomic_write import check_no_links, filling, together
from onnxfuse.model.fused import DOMAIN, fused_ops, replaced_nodes
from onnxfuse.model.tf32 import is_strict_fp32, set_strict_fp32
from onnxfuse.support.errors import CrashError, ModelError
from onnxfuse.support.isolation import Crash, doing, isolated
from onnxfuse.support.progress import Progress, silent
from onnxfuse.verification.cases.planning import RealInputs, plan_of
from onnxfuse.verification.compare.case_comparison import FUSED_FAILS
from onnxfuse.verification.compare.compare import compare, load
from onnxfuse.verification.compare.judging import Judging
from onnxfuse.verification.inputs.input_specs import input_specs
from onnxfuse.verification.inputs.inputs import Case, Shapes
from onnxfuse.verification.inputs.value_files import serialized
from onnxfuse.verification.localize.anchors import anchored
from onnxfuse.verification.localize.inner_ties import reach_of_ties
from onnxfuse.verification.localize.partition import (
    Segment,
    aspects,
    differing,
    submodel,
    types_of_values,
    windows,
)
from onnxfuse.verification.report.localization import Localization, Suspect
from onnxfuse.verification.report.report import VerifyReport
from onnxfuse.verification.run import sessions
from onnxfuse.verification.run.more_outputs import with_outputs
from onnxfuse.verification.run.opened_values import feed_of
from onnxfuse.verification.run.sessions import Source
from onnxfuse.verification.run.tensors import input_types, values_of

ONLY = "nothing else differs there"
NOT_TODAYS = "optimize makes this part right today, so the file is of another version or was changed since"

Arrays = dict[str, npt.NDArray[Any]]
Reoptimize = Callable[[Collection[str]], tuple[ModelProto, tuple[str, ...]]]
"""Optimizes the original without the rules of these names; returns the model and the names of the rules that applied.
Supplied by `onnxfuse.api`, because verification does not depend on rules."""

BATCH = 16
"""Windows whose values are fetched in one run of the original: larger batches hold more memory, smaller ones run it
more often."""

CASES = 4
"""Failing cases that are tried until one exposes a window that is wrong by itself: as many as there are kinds of
inputs."""


@dataclass(frozen=True)
class NodeFault:
    """The first faulty window, as a pair of models with inputs."""

    window: Segment
    output: str
    why: str
    """What is wrong, in the words of `verify`."""
    original: ModelProto
    fused: ModelProto
    feeds: Arrays
    checked: int
    """Number of windows examined, including this one."""


@dataclass(frozen=True)
class ExaminedWindow:
    """A window that was fed the original's values, and what `compare` says of it."""

    window: Segment
    original: ModelProto
    fused: ModelProto
    feeds: Arrays
    report: VerifyReport
    index: int
    """How many windows have been examined, including this one."""

    @property
    def fault(self) -> NodeFault | None:
        """What is wrong with it; None if it is within the error budget."""
        report = self.report
        wrong = next((r for r in report.outputs if r.verdict == "mismatch"), None)
        output, why = (wrong.output, wrong.fault) if wrong is not None else (self.window.outputs[0], "")
        if wrong is None and report.problems and not report.rows:
            why = report.problems[0]
        return NodeFault(self.window, output, why, self.original, self.fused, self.feeds, self.index) if why else None


def bisect(
    original: ModelProto,
    fused: ModelProto,
    inputs: Arrays,
    providers: Sequence[str],
    *,
    reoptimize: Reoptimize | None = None,
    folder: Path | None = None,
    progress: Progress = silent,
) -> Localization:
    """Return what is at fault for a wrong result on `inputs`; with `folder`, its window is saved there as a bug report.

    `reoptimize` separates a fused op from the rewrites next to it, and names the rules of rewrites. Raises ModelError
    if the folder cannot be written.
    """
    checked, unexamined = 0, dict[Segment, str]()
    progress("cutting into windows", 0, 1)
    for fault, index in faults(original, fused, inputs, providers, progress, unexamined=unexamined):
        checked = index
        if fault is not None:
            localization = localize(original, fused, inputs, providers, fault, reoptimize, progress)
            return localization if folder is None else replace(localization, folder=str(write_report(folder, fault)))
    right = "every window is right by itself" + "".join(f"; {w.outputs[0]}: {why}" for w, why in unexamined.items())
    return Localization(None, (), right, "", (), "", (), (), checked)


def investigate(
    original: Source,
    fused: Source,
    report: VerifyReport,
    *,
    inputs: Sequence[RealInputs] | None = None,
    seeds: Sequence[int] = (0,),
    shapes: Shapes | None = None,
    reoptimize: Reoptimize | None = None,
    folder: Path | None = None,
    progress: Progress = silent,
) -> VerifyReport:
    """Return `report` with what `bisect` finds on the smallest failing inputs; the arguments are those of `verify`.

    The report is returned unchanged if nothing was wrong, or nothing that a run exposes: different inputs or outputs.
    """
    failed = {r.case for r in report.rows if r.verdict == "mismatch"}
    failed |= {n for n, c in enumerate(report.cases) if c.note == FUSED_FAILS}
    failed |= {*report.parts.cases} if report.parts is not None else set()
    if report.ok or not failed:
        return report
    before, after = load(original, "original"), load(fused, "fused")
    plan = [] if inputs is None else plan_of(input_specs(before), inputs, seeds, shapes)
    after, providers = as_it_ran(after, report)
    after = anchored(before, after)
    if reoptimize is not None:
        reoptimize = anchoring(before, reoptimize)
    localization = None
    for case in cases_to_bisect([report.cases[n].made or plan[n] for n in sorted(failed)]):
        localization = bisect(
            before, after, case.make(), providers, reoptimize=reoptimize, folder=folder, progress=progress
        )
        if localization.fault:
            break
    return replace(report, bisection=localization)


def anchoring(original: ModelProto, reoptimize: Reoptimize) -> Reoptimize:
    """Return a reoptimizer whose models are anchored."""

    def reoptimized(skipped: Collection[str]) -> tuple[ModelProto, tuple[str, ...]]:
        model, applied = reoptimize(skipped)
        return anchored(original, model), applied

    return reoptimized


def as_it_ran(fused: ModelProto, report: VerifyReport) -> tuple[ModelProto, list[str]]:
    """Return the fused model with the options under which the report's sessions ran it, and their providers."""
    providers = list(dict.fromkeys([report.fused_provider or report.provider, sessions.CPU]))
    if sessions.CUDA in providers and is_strict_fp32(fused) != bool(report.without_tf32):
        fused = io.without_weights(fused, lambda weight: weight)
        set_strict_fp32(fused, strict=bool(report.without_tf32))
    return fused, providers


def cases_to_bisect(failed: Sequence[Case]) -> list[Case]:
    """Return the cases to examine: the smallest of each kind, smaller ones first, then the next smallest.

    An operator's fault is visible in inputs that exercise it. What verify sees in normal numbers over many cases may be
    below one rounding step at every single node of one such case, and obvious in one with edge values.
    """
    by_size = sorted(failed, key=lambda c: sum(math.prod(s) for s in c.shapes.values()))
    first = {c.name: c for c in reversed(by_size)}
    return sorted(by_size, key=lambda c: first[c.name] is not c)[:CASES]


def faults(
    original: ModelProto,
    fused: ModelProto,
    inputs: Arrays,
    providers: Sequence[str],
    progress: Progress = silent,
    chosen: Collection[Segment] | None = None,
    session: InferenceSession | None = None,
    unexamined: dict[Segment, str] | None = None,
) -> Iterator[tuple[NodeFault | None, int]]:
    """Yield for each window, in order, its fault or None, and how many have been examined.

    `session` is one of `open_with_inputs`, for windows that are examined more than once. `unexamined` collects the
    windows that cannot be examined, with the reason.
    """
    unexamined = {} if unexamined is None else unexamined
    every = windows(original, fused) if chosen is None else list(chosen)
    session = session or open_with_inputs(original, every, providers)
    examination = examine(original, fused, inputs, providers, every, session, unexamined, progress)
    for index, examined in enumerate(examination, 1):
        yield (None if examined is None else examined.fault), index


def examine(
    original: ModelProto,
    fused: ModelProto,
    inputs: Arrays,
    providers: Sequence[str],
    every: Sequence[Segment],
    session: InferenceSession,
    unexamined: dict[Segment, str],
    progress: Progress = silent,
) -> Iterator[ExaminedWindow | None]:
    """Yield each window with its report, None for one that cannot be examined; `unexamined` then has the reason."""
    inputs = values_of(inputs, input_types(original.graph))
    types = types_of_values(original)
    kinds = {v.name: v.type for v in (*session.get_inputs(), *session.get_outputs())}
    for first in range(0, len(every), BATCH):
        batch = every[first : first + BATCH]
        doing(window=None)
        names = list(dict.fromkeys(v for w in batch for v in w.inputs if v not in inputs))
        values = {**inputs, **(sessions.run(session, inputs, names) if names else {})}
        for index, window in enumerate(batch, first + 1):
            progress(f"window of {window.outputs[0]}", index - 1, len(every))
            doing(window=window)
            feed = feed_of({v: values[v] for v in window.inputs}, kinds)
            if feed.why_not:
                unexamined[window] = feed.why_not
                yield None
                continue
            outputs = {v: types.get(v, TypeProto()) for v in window.outputs}
            ours, theirs = (
                feed.add_to(submodel(model, nodes, feed.tensors, outputs))
                for model, nodes in ((original, window.original), (fused, window.fused))
            )
            try:
                judging = Judging(reach=reach_of_ties(ours, feed.tensors))
                report = compare(ours, theirs, [feed.tensors], providers=providers, judging=judging)
            except ModelError as error:  # ONNX Runtime's optimizer makes an invalid model of some windows
                unexamined[window] = f"{error}"
                yield None
                continue
            yield ExaminedWindow(window, ours, theirs, feed.tensors, report, index)


def open_with_inputs(original: ModelProto, every: Collection[Segment], providers: Sequence[str]) -> InferenceSession:
    """Return a session of `original` that outputs every value that these windows read."""
    with with_outputs(original, dict.fromkeys(v for w in every for v in w.inputs)) as open_one:
        return sessions.low_memory_session(open_one, providers)


def write_report(folder: Path, fault: NodeFault) -> Path:
    """Save the window in `folder`: original.onnx, model.onnx, and inputs and expected outputs in test_data_set_0.

    `onnxfuse verify original.onnx model.onnx --inputs test_data_set_0` reproduces the fault there. Returns the folder.
    Raises ModelError if not all of it can be written; nothing is left there then.
    """
    data = folder / "test_data_set_0"
    for path in (folder / "original.onnx", folder / "model.onnx", *data.glob("*"), data):
        check_no_links(path, folder)
    expected = sessions.run(sessions.ort_session(fault.original, [sessions.CPU]), fault.feeds)
    with (
        filling(data),
        io.saving(fault.original, folder / "original.onnx"),
        io.saving(fault.fused, folder / "model.onnx"),
        together(),
    ):
        for kind, arrays in (("input", fault.feeds), ("output", expected)):
            for n, (name, array) in enumerate(arrays.items()):
                io.write_bytes(data / f"{kind}_{n}.pb", serialized(name, array))
    return folder


def localize(
    original: ModelProto,
    fused: ModelProto,
    inputs: Arrays,
    providers: Sequence[str],
    fault: NodeFault,
    reoptimize: Reoptimize | None,
    progress: Progress,
) -> Localization:
    """Return what is at fault for `fault`: the only node of the window, or the rule without which the fault
    disappears."""
    window = fault.window
    suspects = {n: describe_suspect(fused, n) for n in differing(original, fused, window)}
    original_nodes = [original.graph.node[n] for n in window.original]
    base = Localization(
        guilty=None, rules=(), why="", fault=fault.why, inputs=window.inputs, output=fault.output,
        window=tuple(suspects.values()), checked=fault.checked,
        replaced=tuple(_called(n) for n in original_nodes if n.op_type != ops.Constant),
    )  # fmt: skip
    only = next(iter(suspects.values())) if len(suspects) == 1 else None
    is_fused_op = only is not None and bool(only.rule)
    if (
        only is not None
        and is_fused_op
        and (reoptimize is None or _same_operators(fused, next(iter(suspects)), original_nodes))
    ):
        found = _fused_op(base, only, fault, providers, ONLY)
        values = {o for n in window.original for o in original.graph.node[n].output}
        if reoptimize is None or _has_fault(original, reoptimize(())[0], inputs, providers, values):
            return found
        return replace(found, why=f"{found.why}; {NOT_TODAYS}", outdated=True)
    if reoptimize is None:
        rules = tuple(dict.fromkeys(s.rule for s in suspects.values() if s.rule))
        return replace(base, guilty=only, rules=rules, why="nothing more can be said without its rules")
    reoptimized, applied = reoptimize(())
    values = {o for n in window.original for o in original.graph.node[n].output}
    if _has_fault(original, reoptimized, inputs, providers, values):
        guilty = []
        for n, rule in enumerate(applied):
            progress(f"without rule {rule}", n, len(applied))
            if not _has_fault(original, reoptimize([rule])[0], inputs, providers, values):
                guilty.append(rule)
        return _localize_by_skipping(base, guilty)
    if only is not None and is_fused_op:
        found = _fused_op(base, only, fault, providers, ONLY)
        return replace(found, why=f"{found.why}; {NOT_TODAYS}", outdated=True)
    if only is None:
        inside = [w for w in windows(reoptimized, fused) if set(w.fused) <= set(window.fused)]
        narrower = first_fault(reoptimized, fused, inputs, providers, inside)
        described = (
            []
            if narrower is None
            else [describe_suspect(fused, n) for n in differing(reoptimized, fused, narrower.window)]
        )
        if len(described) != 1:
            return replace(base, why="the current rules make a different and correct model here")
        only = described[0]
    if only.rule:
        return _fused_op(base, only, fault, providers, "all else there is what the rules make of the original")
    return _localize_by_author(base, fused, only, (reoptimize, reoptimized, applied))


def _same_operators(fused: ModelProto, position: int, original_nodes: Sequence[onnx.NodeProto]) -> bool:
    """Return whether the body of a fused op has the original's operators; otherwise a rewrite preceded the fusion."""
    op = fused.graph.node[position].op_type
    bodies = [f.node for f in fused.functions if f.name == op and f.domain == DOMAIN]
    inside = sorted(n.op_type for body in bodies for n in body if n.op_type != ops.Constant)
    return inside == sorted(n.op_type for n in original_nodes if n.op_type != ops.Constant)


def _fused_op(
    base: Localization, guilty: Suspect, fault: NodeFault, providers: Sequence[str], why: str
) -> Localization:
    """Return the finding about a fused op; if it ran as a kernel and did not crash, its body is tested, too."""
    if sessions.CUDA in providers and fault.feeds:
        body = isolated(lambda _: compare(fault.original, fault.fused, [fault.feeds], providers=[sessions.CPU]))
        right = not isinstance(body, Crash) and body.ok
        why += "; its body is right on the CPU, so its kernel is wrong" if right else "; its body is wrong too"
    return replace(base, guilty=guilty, rules=(guilty.rule,), why=why)


def _localize_by_skipping(base: Localization, guilty: Sequence[str]) -> Localization:
    """Return the finding about a fault that the rules reproduce, but not without any one of `guilty`."""
    named = [s for s in base.window if s.rule in guilty]
    alone = named[0] if len(named) == 1 and len(guilty) == 1 else None
    return replace(
        base,
        guilty=alone,
        rules=tuple(guilty),
        why="without the rule the fault is gone" if guilty else "no one rule is to blame",
    )


def _localize_by_author(
    base: Localization, fused: ModelProto, guilty: Suspect, rules: tuple[Reoptimize, ModelProto, tuple[str, ...]]
) -> Localization:
    """Return the finding about a plain node: the rule that wrote it is at fault."""
    reoptimize, reoptimized, applied = rules
    right = aspects(reoptimized, guilty.output)
    wrong = _differing_keys(aspects(fused, guilty.output), right)
    wrote = {r: _differing_keys(aspects(reoptimize([r])[0], guilty.output), right) for r in applied}
    named = tuple(r for r in applied if wrote[r] & wrong) or tuple(r for r in applied if wrote[r])
    why = (
        "it writes this node, and would write it otherwise" if named else "the file was changed after it was optimized"
    )
    return replace(base, guilty=guilty, rules=named, why=why)


def _has_fault(
    original: ModelProto, fused: ModelProto, inputs: Arrays, providers: Sequence[str], values: Collection[str]
) -> bool:
    """Return whether a window that computes one of `values` is wrong.

    With other rules the same nodes may form one window or several.
    """
    computes = [set(node.output) for node in original.graph.node]
    chosen = [w for w in windows(original, fused) if any(computes[n] & set(values) for n in w.original)]
    return first_fault(original, fused, inputs, providers, chosen) is not None


def first_fault(
    original: ModelProto, fused: ModelProto, inputs: Arrays, providers: Sequence[str], chosen: Collection[Segment]
) -> NodeFault | None:
    """Return the first fault among these windows; one that crashes is faulty."""

    def first(progress: Progress) -> NodeFault | None:
        examined = faults(original, fused, inputs, providers, progress, chosen)
        return next((fault for fault, _ in examined if fault is not None), None)

    outcome = isolated(first)
    return crashed(original, fused, outcome) if isinstance(outcome, Crash) else outcome


def crashed(original: ModelProto, fused: ModelProto, crash: Crash) -> NodeFault:
    """Return the fault of a window in which the models crash. Raises CrashError if the original crashed."""
    window = crash.doing.get("window")
    if window is None:
        raise CrashError(
            f"the original {crash.how} where it is run for the values inside it, at the step '{crash.step}'",
            "Which op it is: onnxfuse verify of the original against itself.",
        )
    return NodeFault(window, window.outputs[0], f"it {crash.how}", original, fused, {}, 0)


def _differing_keys(a: dict[str, Any], b: dict[str, Any]) -> set[str]:
    return {key for key in a.keys() | b.keys() if a.get(key) != b.get(key)}


def describe_suspect(model: ModelProto, position: int) -> Suspect:
    """Describe a node of the fused model."""
    node = model.graph.node[position]
    name = node.name or node.output[0]
    if node.domain != DOMAIN:
        return Suspect(name, node.op_type, "", (_called(node),), node.output[0])
    op = fused_ops(model)[node.op_type]
    return Suspect(name, node.op_type, op.rule, replaced_nodes(node, op), node.output[0])


def _called(node: onnx.NodeProto) -> str:
    return f"{node.op_type} {node.name or node.output[0]}"
