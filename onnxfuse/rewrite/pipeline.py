"""The whole way of a model: normalize, rewrite to a fixed point, lay out, fuse, attach the bodies, check."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence

from onnx import GraphProto, ModelProto

from onnxfuse.model import normalize, types
from onnxfuse.model.fused import DOMAIN, FusedOp, write
from onnxfuse.model.graph import Graph, bodies
from onnxfuse.model.nested import nodes_of
from onnxfuse.model.share import share_weights
from onnxfuse.model.types import opset_of
from onnxfuse.model.valid import Judge, Opens
from onnxfuse.rewrite import strict
from onnxfuse.rewrite.blame import mend
from onnxfuse.rewrite.fuse.choices import Choices
from onnxfuse.rewrite.fuse.fuse import fuse
from onnxfuse.rewrite.language.rule_file import Rule, shipped
from onnxfuse.rewrite.nhwc.min_cut import lay_out
from onnxfuse.rewrite.report import Report
from onnxfuse.rewrite.simplify.rewrite import MAX_ROUNDS, endless, rewrite

Progress = Callable[[str], None]
"""Called with the name of each phase as it starts."""

OLDEST = 7
"""The first operator set that ONNX Runtime promises to run. Before it Add and its like broadcast where an attribute
says so alone: rules mean something else there."""


def run(
    model: ModelProto,
    rules: Sequence[Rule] | None = None,
    progress: Progress = lambda _: None,
    choices: Choices | None = None,
    *,
    opens: Opens | None = None,
    again: Callable[[], ModelProto] | None = None,
    freeze: bool = False,
) -> Report:
    """Optimize `model` in place and return what was done. Raises ModelError for a model that is not valid.

    `choices` is what measuring decided, by default what the rules say of cost. `opens` says whether ONNX Runtime opens
    a model: it is asked of the result, and of a model that ONNX's checker does not take. `again` gives the model as it
    came: a rewrite that made it invalid is then left out. With `freeze` weights that are graph inputs, too, become
    constants. The same model, rules and choices give the same bytes, and an optimized model comes out as it went in.
    """
    rules = strict.for_model(shipped() if rules is None else rules, model)
    report = Report(before=count_ops(model))
    with _phase(report, "normalize", progress):
        normalize.normalize(model, freeze=freeze)
        judge = Judge(model, opens)
    opset = opset_of(model)
    if opset >= OLDEST:
        _optimize(model, rules, report, progress, choices)
    elif any(not n.domain for n in nodes_of(model.graph)):
        report.notes.append(f"opset {opset} is older than what ONNX Runtime promises to run, {OLDEST}: nothing is done")

    def remake(without: Collection[str]) -> tuple[ModelProto, Report]:
        assert again is not None
        anew, remade = again(), Report(before=report.before)
        normalize.normalize(anew, freeze=freeze)
        _optimize(anew, [r for r in rules if r.name not in without], remade, progress, choices)
        return anew, remade

    with _phase(report, "check", progress):
        said = judge.wrong(model)
        if said is not None:
            mended = mend(model, report, rules, said, judge.wrong, None if again is None else remake, again)
            if mended.model is not model:
                model.CopyFrom(mended.model)
            report = mended.report
    report.notes += judge.notes()
    if weights := normalize.replaceable(model):
        report.notes.append(
            f"weights that are graph inputs, too ({len(weights)}, as '{weights[0]}'), may be replaced by a caller: "
            "nothing is done that takes them for constants. With --freeze-initializers they are constants"
        )
    report.after = count_ops(model)
    return report


def _optimize(
    model: ModelProto, rules: Sequence[Rule], report: Report, progress: Progress, choices: Choices | None
) -> None:
    """Take a normalized model through the other phases, in place, whatever comes out."""
    ops: dict[str, FusedOp] = {}
    phases: tuple[tuple[str, Callable[[], None]], ...] = (
        ("rewrite", lambda: _rewrite(model, rules, report)),
        ("layout", lambda: _each_graph(model, lambda graph: lay_out(graph, rules, report))),
        ("fuse", lambda: _each_graph(model, lambda graph: fuse(graph, rules, report, ops, choices))),
        ("attach bodies", lambda: _attach(model, ops)),
    )
    for phase, act in phases:
        with _phase(report, phase, progress):
            act()


@contextlib.contextmanager
def _phase(report: Report, name: str, progress: Progress) -> Iterator[None]:
    """Say which phase begins, and keep the time that it takes."""
    progress(name)
    start = time.perf_counter()
    yield
    report.seconds[name] = time.perf_counter() - start


def count_ops(model: ModelProto) -> Counter[str]:
    """Return how often each operator stands in the model, the bodies of If, Loop and Scan included."""

    def walk(graph: GraphProto) -> Iterator[str]:
        for node in graph.node:
            yield f"{node.domain}:{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
            for body in bodies(node):
                yield from walk(body)

    return Counter(walk(model.graph))


def _each_graph(model: ModelProto, act: Callable[[Graph], None]) -> None:
    """Call `act` for the body of every If, Loop and Scan, innermost first, then for the main graph."""
    opset = opset_of(model)

    def visit(proto: GraphProto, inferred: GraphProto, parent: Graph | None) -> None:
        twins = zip(proto.node, inferred.node, strict=True)
        nested = [pair for node, twin in twins for pair in zip(bodies(node), bodies(twin), strict=True)]
        if nested:
            outer = Graph(proto, inferred, opset, parent)
            for body, twin in nested:
                visit(body, twin, outer)
        graph = Graph(proto, inferred, opset, parent)
        act(graph)
        graph.commit()

    visit(model.graph, types.infer(model).graph, None)


def _rewrite(model: ModelProto, rules: Sequence[Rule], report: Report) -> None:
    """Rewrite until nothing changes: of values that a rewrite made, the types are known the next time round.

    What a folded shape computes may tell the next one. Folding ends by itself: each fold takes a node away.
    """
    rounds = 0
    while rounds < MAX_ROUNDS:
        before = len(report.applied)
        report.stopped.clear()
        if not _rewritten(model, rules, report):
            return
        rounds += len(report.applied) > before
    raise endless(report.applied[before:], f"it goes on after {MAX_ROUNDS} rounds")


def _rewritten(model: ModelProto, rules: Sequence[Rule], report: Report) -> bool:
    changed: list[bool] = []
    _each_graph(model, lambda graph: changed.append(rewrite(graph, rules, report)))
    return any(changed)


def _attach(model: ModelProto, ops: dict[str, FusedOp]) -> None:
    """Add the bodies of the fused ops as model-local functions, each once, and let all nodes read each weight once."""
    share_weights(model)
    have = {f.name for f in model.functions if f.domain == DOMAIN}
    # One that became a part of another has no node any more.
    used = {name.removeprefix(f"{DOMAIN}:") for name in count_ops(model)}
    new = [op for name, op in ops.items() if name not in have and name in used]
    if not new:
        return
    model.functions.extend(write(op) for op in new)
    if all(o.domain != DOMAIN for o in model.opset_import):
        model.opset_import.add(domain=DOMAIN, version=1)
    model.ir_version = max(model.ir_version, normalize.FUNCTIONS_IR)
