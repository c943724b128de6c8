"""Optimize a model: normalize it, run `phases.PIPELINE` to a fixed point, and verify the result."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence

from onnx import GraphProto, ModelProto

from onnxfuse.fusion.region.choices import Choices
from onnxfuse.fusion.undo.blame import mend
from onnxfuse.graph import normalize
from onnxfuse.graph.declarations import correct_declarations
from onnxfuse.graph.graph import Node, bodies
from onnxfuse.graph.redefined import redefined
from onnxfuse.graph.validity import Judge, Opens
from onnxfuse.model.fused import FusedOp
from onnxfuse.model.nested import nodes_of
from onnxfuse.model.overridable import overridable
from onnxfuse.model.schema import opset_of
from onnxfuse.passes.manager import State
from onnxfuse.passes.phases import PIPELINE
from onnxfuse.rules.language import pack, strict_float32
from onnxfuse.rules.language.rule_file import Rule, by_default, replacing, shipped
from onnxfuse.rules.match.report import OptimizeReport, names
from onnxfuse.rules.rewriting.every_graph import LastRead
from onnxfuse.rules.rewriting.rewrite import MAX_ROUNDS, endless
from onnxfuse.shapes.inference import shell
from onnxfuse.support.collector import collecting_rarely
from onnxfuse.support.progress import Steps, silent

OLDEST = 7
"""The oldest operator set that ONNX Runtime guarantees to run. Before it Add and its like broadcast only where an
attribute requests it: rules assume otherwise.
"""


@collecting_rarely()
def run(
    model: ModelProto,
    rules: Sequence[Rule] | None = None,
    progress: Steps = silent,
    choices: Choices | None = None,
    *,
    opens: Opens | None = None,
    again: Callable[[], ModelProto] | None = None,
    freeze: bool = False,
) -> OptimizeReport:
    """Optimize `model` in place and return a report. Raises ModelError for an invalid model.

    `choices` are decisions from measurements; by default the rules' cost estimates decide. `opens` reports whether ONNX
    Runtime loads a model: it is called on the result, and on a model that ONNX's checker rejects. `again` returns the
    original model: if a rewrite made the result invalid, the model is optimized again without it. With `freeze`,
    weights that are also graph inputs become constants. The same model, rules and choices give the same bytes, and
    optimizing an optimized model changes nothing.
    """
    rules = strict_float32.for_model(by_default(shipped()) if rules is None else rules, model)
    report, twice = OptimizeReport(before=count_ops(model)), redefined(model)
    with _phase(report, "normalize", progress):
        normalize.normalize(model, freeze=freeze)
        correct_declarations(model)
        judge = Judge(model, opens)
    opset = opset_of(model)
    if opset >= OLDEST:
        _optimize(model, rules, report, progress, choices)
    elif any(not n.domain for n in nodes_of(model.graph)):
        report.notes.append(
            f"opset {opset} is older than {OLDEST}, the oldest that ONNX Runtime supports: the model is left "
            "unchanged. "
            "Export it with a newer opset, or convert it: onnx.version_converter.convert_version(model, 17)"
        )

    def remake(without: Collection[str]) -> tuple[ModelProto, OptimizeReport]:
        assert again is not None
        anew, remade = again(), OptimizeReport(before=report.before)
        normalize.normalize(anew, freeze=freeze)
        correct_declarations(anew)
        _optimize(anew, [r for r in rules if r.name not in without], remade, progress, choices)
        return anew, remade

    with _phase(report, "check", progress):
        reason = judge.wrong(model)
        if reason is not None:
            mended = mend(model, report, rules, reason, judge.wrong, None if again is None else remake, again)
            if mended.model is not model:
                model.CopyFrom(mended.model)
            report = mended.report
    used = report.by_rule()
    pack.record(model, [r for r in rules if r.name in used])
    report.notes += judge.notes()
    report.notes += [f"{r.path} overrides the shipped rule {r.name}" for r in replacing(rules)]
    if twice:
        others = f", and {len(twice) - 1} more" if twice[1:] else ""
        report.notes.append(
            f"'{twice[0]}' is defined more than once{others}: the last definition counts, as in ONNX Runtime"
        )
    if weights := overridable(model):
        report.notes.append(
            f"weights that are graph inputs, too ({len(weights)}, as '{weights[0]}'), may be replaced by a caller: "
            "nothing is done that takes them for constants. With --freeze-initializers they are constants"
        )
    report.after = count_ops(model)
    return report


def _optimize(
    model: ModelProto, rules: Sequence[Rule], report: OptimizeReport, progress: Steps, choices: Choices | None
) -> None:
    """Run the pipeline on a normalized model, in place, to a fixed point.

    What one rule fused may have been the last obstacle to another rule or simplification: optimizing the file again
    would find it. Raises RuleError for rules that do not reach a fixed point.
    """
    ops: dict[str, FusedOp] = {}
    nodes = {node.name: line for node in map(Node, nodes_of(model.graph)) for line in names([node])}
    before, last = shell(model), LastRead()
    for turn in range(MAX_ROUNDS):
        state = State(rules, OptimizeReport(seconds=report.seconds), choices, ops, nodes, last=last)
        for phase in PIPELINE:
            with _phase(state.report, phase.name, silent if turn else progress):
                phase.run(model, state)
        after = shell(model)
        changed, before = after != before, after
        if changed or not turn:
            report.add(state.report)
        if not changed:
            return
        # Decisions from measurements concern ops of the first iteration: no rule fuses there what was to stay unfused.
        rules = state.rules if choices is None else [r for r in state.rules if r.fuse is None]
    raise endless(state.report.applied, f"optimizing what was optimized {MAX_ROUNDS} times changes it still")


@contextlib.contextmanager
def _phase(report: OptimizeReport, name: str, progress: Steps) -> Iterator[None]:
    """Report the start of a phase, and record its duration."""
    progress(name)
    start = time.perf_counter()
    yield
    report.seconds[name] = report.seconds.get(name, 0.0) + time.perf_counter() - start


def count_ops(model: ModelProto) -> Counter[str]:
    """Return how often each operator occurs in the model, the bodies of If, Loop and Scan included."""

    def walk(graph: GraphProto) -> Iterator[str]:
        for node in graph.node:
            yield f"{node.domain}:{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
            for body in bodies(node):
                yield from walk(body)

    return Counter(walk(model.graph))
