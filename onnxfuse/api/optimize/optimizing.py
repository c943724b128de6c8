"""Optimize a model, with optional guard, tuning and dumps; undo it; write the result."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from onnx import ModelProto

from onnxfuse.api.optimize import tuning
from onnxfuse.api.optimize.dumping import Dumping, WrittenDump, dumping
from onnxfuse.api.optimize.lowering import PrecisionRecord, converted
from onnxfuse.api.optimize.screen import screen
from onnxfuse.api.request import options as request_options
from onnxfuse.api.request.optimize_pipeline import OptimizePipeline
from onnxfuse.api.request.options import Options
from onnxfuse.api.request.origin import Origin, owned_copy
from onnxfuse.contract.config import Requirement
from onnxfuse.cuda.pack.file import pack_path_of
from onnxfuse.deploy import compiling
from onnxfuse.deploy.compiling import Compiled, Compiling
from onnxfuse.files import io
from onnxfuse.files.atomic_write import check_no_links, together, writable
from onnxfuse.files.model_source import Model, Source, copied, path_or_proto
from onnxfuse.fusion.undo.unfuse import unfuse
from onnxfuse.measure.profile import remaining_ops
from onnxfuse.model import custom_ops, ledger
from onnxfuse.model.ledger import Ledger, Undone
from onnxfuse.model.overridable import required_inputs
from onnxfuse.model.tf32 import set_strict_fp32
from onnxfuse.passes import pipeline
from onnxfuse.rules.language.rule_file import Rule
from onnxfuse.rules.match import near_misses
from onnxfuse.rules.match.report import OptimizeReport, fused_counts
from onnxfuse.support.log import LOG
from onnxfuse.support.progress import Steps, counting, silent
from onnxfuse.support.screen import Blocks, Screen
from onnxfuse.support.version import VERSION

if TYPE_CHECKING:
    from onnxfuse.measure.tune import Tuned
    from onnxfuse.verification import RealInputs
    from onnxfuse.verification.localize.guard import Guarded


@dataclass(frozen=True, repr=False)
class Optimized(Screen):
    """An optimized model, and everything about how it was made."""

    model: ModelProto
    report: OptimizeReport
    options: Options = field(default_factory=Options)
    sizes: tuple[int, int] = (0, 0)
    """Bytes before and after."""
    seconds: float = 0.0
    original: ModelProto | None = None
    """The original model, if it was to be retained."""
    source: Source | None = None
    """The model that it was made of."""
    has_external_data: bool = False
    """Whether weights of the original model are in external data files."""
    undone: Undone | None = None
    """Of `undo`: the fused nodes that were expanded, and what differs from the original."""
    guarded: "Guarded | None" = None
    tuned: "Tuned | None" = None
    dumped: WrittenDump | None = None
    compiled: Compiled | None = None
    lowered: PrecisionRecord | None = None
    """How the model was converted to lower precision, now or before."""

    removed: list[Path] = field(default_factory=list)
    """Of `written`: data files of the replaced model that nothing else reads, which are removed with it."""

    @property
    def models(self) -> dict[str, ModelProto]:
        """The original model, if retained, and the result."""
        return {"after": self.model} if self.original is None else {"before": self.original, "after": self.model}

    @property
    def external_data(self) -> bool:
        """Whether the weights are written to an external data file: as in the original, unless the options decide."""
        return self.has_external_data if self.options.external_data is None else self.options.external_data

    @property
    def notes(self) -> list[str]:
        """Notes for a caller in Python, one line each."""
        listed = "onnxfuse explain FILE, once it is saved"  # what `onnxfuse.explain` returns has no nodes that stayed
        return self.notes_for({"tolerance": "`tolerance`", "seconds": "`seconds`"}, listed)

    def notes_for(self, named: Mapping[str, str], explain: str) -> list[str]:
        """Return the notes in the reader's words: `named` has options by name, `explain` says which nodes stayed."""
        kept_notes = []
        if self.lowered is not None and self.options.precision is not None and self.lowered.kept:
            advice = self.lowered.advice(named)
            kept_notes = ["; ".join(filter(None, (self.lowered.summary, advice, f"which nodes, and why: {explain}")))]
        return [
            *kept_notes,
            *([self.tuned.note] if self.tuned is not None and self.tuned.note else []),
            *self.report.notes,
        ]

    @property
    def missed(self) -> list[Requirement]:
        """Requirements that are not met."""
        return request_options.missed(self.report, self.options.require)

    def opens(self) -> Callable[[Path], None]:
        """Return a check that raises ModelError if ONNX Runtime does not open a written file of the model although it
        should."""
        from onnxfuse.runtime.sessions.opening import (
            require_written,  # ONNX Runtime is imported only when something is run.
        )

        source = Path(self.source) if isinstance(self.source, str) else self.source
        return require_written(self.model, source)

    def screen(self) -> Blocks:
        """Return what was fused and what was not, without estimates of what remains."""
        return screen({**self._made("model"), "target": None}, self.tuned)

    def as_dict(self, source: str | Path, target: str | Path) -> dict[str, Any]:
        """Return every fact as plain data for JSON; `source` and `target` are the names of the files."""
        facts = {**self._made(source), "target": None if self.missed else str(target)}
        # No rule has a reason for a model that was not changed.
        if self.undone is None and not self.missed and "fuse" in self.report.seconds:
            facts["left"] = remaining_ops.remaining_ops(self.model, self.report).as_dict()
        return facts

    def _made(self, source: str | Path) -> dict[str, Any]:
        """Return the facts that are known without looking at the model again."""
        report, missed = self.report, self.missed
        fused, distinct = fused_counts(report.after)
        facts = {
            "ok": not missed,
            "source": str(source),
            "nodes": {"before": report.before.total(), "after": report.after.total()},
            "fused_nodes": fused,
            "distinct_kernels": distinct,
            "rules": dict(report.by_rule()),
            "bytes": {"before": self.sizes[0], "after": self.sizes[1]},
            "seconds": round(self.seconds, 3),
            "notes": report.notes,
            "phases": {k: round(v, 3) for k, v in report.seconds.items()},
            "not_met": [request_options.requirement_line(report, r) for r in missed],
            "why": {request_options.requirement_line(report, r): why(report, r) for r in missed},
        }
        if self.options.shapes:
            facts["shapes"] = {name: list(sizes) for name, sizes in self.options.shapes.items()}
        if self.undone is not None:
            facts["undone"], facts["back"] = self.undone.fused, self.undone.as_dict()
        elif not missed:
            facts["operators"] = {
                op: {"before": n, "after": m} for op, (n, m) in remaining_ops.operators(report).items()
            }
        if self.lowered is not None:
            facts["precision"] = self.lowered.as_dict()
        if self.guarded is not None:
            facts["guard"] = self.guarded.as_dict()
        if self.dumped is not None:
            facts["dump"] = self.dumped.as_dict()
        if self.compiled is not None:
            facts["compiled"] = self.compiled.as_dict()
        if self.tuned is not None and self.options.tuning is not None:
            facts["tuning"] = tuning.facts(self.tuned, self.options.tuning.file)
        return facts


def why(report: OptimizeReport, required: Requirement) -> list[str]:
    """Return why a requirement is missed: where the rule stopped short, or where it applied although forbidden."""
    if required.exceeded_by(report.by_rule()[required.rule]):
        return too_often(report, required.rule)
    return near_misses.why(near_misses.lost(report, required.rule))


def too_often(report: OptimizeReport, rule: str) -> list[str]:
    """Return where a rule applied, a line for each of the first times."""
    applied = [a for a in report.applied if a.rule == rule]
    return [f"{a.rule} applied at {a.root or a.op}" for a in applied[: near_misses.WHYS]]


def optimize(model: Model, options: Options | None = None, progress: Steps = silent) -> Optimized:
    """Return the optimized model with a report; the given one is not changed.

    Raises ModelError, RuleError, UsageError; DeviceError if it is to be measured and there is no GPU.
    """
    options = options or Options()
    with together(), custom_ops.using(options.custom_ops):  # remove a dump if optimizing fails
        return _optimize(model, options, progress)


def _optimize(model: Model, options: Options, progress: Steps) -> Optimized:
    from onnxfuse.runtime.sessions import opening  # ONNX Runtime is imported where something is to be run.

    dumped = None if options.dump is None else dumping(options.dump)
    rules = options.chosen()
    if options.tuning is not None:
        tuning.check(options.tuning)
    start = time.perf_counter()
    origin = Origin(path_or_proto(model), options.strict_fp32, options.shapes)
    first = owned_copy(origin.source)
    before = io.size(first)
    record = ledger.of(first)
    origin.marked(first)
    original = copied(first) if options.keep else None
    result = Optimized(
        first,
        OptimizeReport(),
        options,
        original=original,
        source=origin.source,
        has_external_data=_has_external_data(origin.source),
    )
    exported = pipeline.count_ops(first)
    origin, precision_record = converted(first, origin, options, rules, progress)
    result = replace(result, lowered=precision_record)
    if options.tuning is not None:
        result = replace(result, tuned=tuning.find(first, options.tuning, rules, progress))
    optimizer = OptimizePipeline(origin, options.freeze_initializers, result.tuned)
    if options.guard is None:
        report, follow = _run(optimizer, first, rules, dumped, progress)
        result = replace(result, report=report)
    else:
        opens = opening.require(first)
        result, follow = _guarded(result, optimizer, rules, options.guard.inputs, dumped, progress)
        progress("open")
        opens(result.model)
    if options.precision is not None:
        result.report.before = exported
    _write_ledger(result, record)
    if dumped is not None:
        progress("dump")
        follow("result")
        result = replace(result, dumped=dumped.write(result.model))
    if result.tuned is not None:
        result.tuned.attach(result.model)
    seconds = time.perf_counter() - start
    LOG.info("optimized %s: %s; %.1f s", _named(origin.source), result.report.verdict, seconds)
    return replace(result, sizes=(before, io.size(result.model)), seconds=seconds)


def _named(source: Source) -> str:
    return source.graph.name if isinstance(source, ModelProto) else str(source)


def _write_ledger(result: Optimized, record: Ledger | None) -> None:
    """Record in the model its source and the rewrites applied, in addition to earlier records."""
    if record is None:
        return
    requests = [f"made for {_sizes(result.model)} only"] if result.options.shapes else []
    if result.options.precision is not None and result.lowered is not None:
        requests.append(f"weights and nodes are in {result.lowered.precision}")
    if result.options.freeze_initializers:
        requests.append("weights that were also inputs are now constants")
    new = Counter(a.rule for a in result.report.applied if not a.op)
    changed = bool(result.report.applied or requests) or not record.version
    ledger.write(
        result.model,
        replace(
            record,
            version=VERSION if changed else record.version,
            rewrites=dict(Counter(record.rewrites) + new),
            made=tuple(dict.fromkeys((*record.made, *requests))),
        ),
    )


def _sizes(model: ModelProto) -> str:
    """Return the shapes of the inputs, by input name also where dimensions were given by their own names."""
    inputs = required_inputs(model.graph)
    dims = {i.name: [d.dim_param or str(d.dim_value) for d in i.type.tensor_type.shape.dim] for i in inputs}
    return ", ".join(f"{name}={'x'.join(of)}" for name, of in dims.items())


def undo(model: Model, progress: Steps = silent, options: Options | None = None) -> Optimized:
    """Return the model with every fused op replaced by the nodes of its body; the given one is not changed.

    Folded weights and rewritten nodes remain: they compute the same, and `.undone` lists them. `options` decide whether
    the result also retains the original model, and where its weights go. Raises ModelError if ONNX Runtime opens
    `model` and not the result.
    """
    from onnxfuse.runtime.sessions import opening  # ONNX Runtime is imported only when something is run.

    start = time.perf_counter()
    options, source = options or Options(), path_or_proto(model)
    unfused = owned_copy(source)
    before = io.size(unfused)
    opens = opening.require(unfused)
    original = copied(unfused) if options.keep else None
    progress("undo")
    report = OptimizeReport(before=pipeline.count_ops(unfused))
    count = unfuse(unfused)
    summary = ledger.undone(unfused, count)
    ledger.remove(unfused)
    set_strict_fp32(unfused, strict=False)
    report.after = pipeline.count_ops(unfused)
    progress("open")
    opens(unfused)
    sizes = (before, io.size(unfused))
    seconds = time.perf_counter() - start
    return Optimized(
        unfused,
        report,
        options,
        sizes=sizes,
        seconds=seconds,
        original=original,
        source=source,
        has_external_data=_has_external_data(source),
        undone=summary,
    )


def _has_external_data(source: Source) -> bool:
    return not isinstance(source, ModelProto) and io.has_external_data(source)


@contextlib.contextmanager
def written(make: Callable[[], Optimized], target: Path | BinaryIO, progress: Steps = silent) -> Iterator[Optimized]:
    """Write the result of `make`; it replaces `target` if the block succeeds, after everything else written there.

    Otherwise, and if a requirement is missed, nothing of it remains. A stream is also written at that point. Raises
    ModelError if ONNX Runtime cannot open the file that was written although it should.
    """
    if isinstance(target, Path):
        writable(target)
    with contextlib.ExitStack() as pending, together():
        result = make()
        start = time.perf_counter()
        if not result.missed:
            if isinstance(target, Path) and result.options.compile is not None:
                result = replace(result, compiled=_compiled(result, result.options.compile, target, progress))
            progress("write")
            if isinstance(target, Path):
                saving = io.saving(result.model, target, external_data=result.external_data, opens=result.opens())
                result = replace(result, removed=pending.enter_context(saving))
            else:
                pending.enter_context(io.streaming(result.model, target, result.opens()))
        holder = [replace(result, seconds=result.seconds + time.perf_counter() - start)]
        del result  # a model pending replacement is complete in its temporary file, for whoever needs it
        yield holder.pop()


def _compiled(result: Optimized, options: Compiling, target: Path, progress: Steps) -> Compiled:
    """Write the kernel pack next to the model's target; it is removed again if the model is not written."""
    start = time.perf_counter()
    step = counting(progress, "compile")
    pack, assumed = compiling.build(result.model, replace(options, rules=result.options.rules), step)
    pack_path = pack_path_of(target)
    check_no_links(pack_path, target.parent)
    compiling.write(pack, pack_path)
    return Compiled(pack_path, pack, assumed, time.perf_counter() - start)


def _run(
    optimizer: OptimizePipeline,
    model: ModelProto,
    rules: Sequence[Rule],
    dumped: Dumping | None,
    progress: Steps,
) -> tuple[OptimizeReport, Steps]:
    """Optimize a model in place; return the report, and a callback for the names of later phases."""
    if dumped is None:
        return optimizer.run(model, rules, progress), progress
    follow = dumped.following(model, progress)
    with dumped.passes():
        return optimizer.run(model, rules, follow), follow


def _guarded(
    result: Optimized,
    optimizer: OptimizePipeline,
    rules: Sequence[Rule],
    inputs: "Sequence[RealInputs]",
    dumped: Dumping | None,
    progress: Steps,
) -> tuple[Optimized, Steps]:
    """Return the model without the reverted fusions, with a report on the remaining ones and a callback for later
    phases.

    `dumped` follows the phases of the final optimization, and its result.
    """
    from onnxfuse.verification.localize.guard import guard  # ONNX Runtime is imported only when something is run.

    reports: list[OptimizeReport] = []

    def show(step: str, done: int, total: int) -> None:
        progress(f"guard {done} of {total}: {step}")

    reoptimize = optimizer.reoptimizer(rules, progress, reports)
    guarded = guard(result.model, reoptimize, unfuse, inputs=inputs or None, progress=show)
    report, follow = reports[0], progress
    if guarded.left_out or dumped is not None:
        # The final model was made without the disabled rules: its report and phases are of the others.
        final = optimizer.origin.fresh()
        report, follow = _run(optimizer, final, request_options.without(rules, guarded.left_out), dumped, progress)
        final.CopyFrom(guarded.model)
    for fusion in guarded.undone:
        reverted = next((a for a in report.applied if fusion.op and a.op == fusion.op), None)
        if reverted is not None:
            report.applied.remove(reverted)
    report.after = pipeline.count_ops(guarded.model)
    return replace(result, model=guarded.model, report=report, guarded=guarded), follow
