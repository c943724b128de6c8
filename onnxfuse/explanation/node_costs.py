"""What the candidates for a node cost, and who decides among them: measured times, estimates, or a rule's sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from onnx import NodeProto
from rich.markup import escape

from onnxfuse.api.request.options import Options
from onnxfuse.cuda.costs import tables
from onnxfuse.cuda.dispatch import measurements
from onnxfuse.cuda.dispatch.dispatch import supports
from onnxfuse.cuda.dispatch.estimates import Estimate, estimates
from onnxfuse.cuda.dispatch.measurements import Book, MeasuredVariants
from onnxfuse.cuda.planning.arch import H200, Arch
from onnxfuse.explanation.explaining import explain
from onnxfuse.explanation.library_cost import library_cost
from onnxfuse.files.model_source import Model
from onnxfuse.graph.concrete_shapes import every_type, fused_nodes, input_shapes, with_sizes
from onnxfuse.measure.profile.sizes import Sized, sized
from onnxfuse.model.fused import FusedOp, fused_ops
from onnxfuse.rules.match.node_lookup import name_of
from onnxfuse.shapes.inference import infer
from onnxfuse.support.errors import NoPlanError
from onnxfuse.support.progress import Steps, silent
from onnxfuse.support.screen import LIMIT, Blocks, Line, Rows, Screen, more_rows, plain_table
from onnxfuse.symbolic.strides import Shape

DecidedBy = Literal["measured", "estimate", "rule"]
"""`measured`: times of optimize --tune; `estimate`: of the template; `rule`: its conditions alone, or a template that
chooses by sizes."""


LIBRARY = "ONNX Runtime's kernels"
"""Name of the candidate that runs a fused op's plain nodes."""
DECIDED = {"measured": "decided by measured times", "estimate": "decided by estimates", "rule": "decided by the rule"}


@dataclass(frozen=True)
class CandidateCost:
    """One way to compute a fused op."""

    name: str
    """The template's kernel with its variant, or `library`, `split`, `alone` as measured."""
    microseconds: float | None
    """None if it failed."""
    is_measured: bool
    """Whether the time was measured; else it is estimated."""
    is_chosen: bool
    failed: str = ""


@dataclass(frozen=True)
class NodeCost:
    """The candidates for one fused op on inputs of certain shapes."""

    op: str
    rule: str
    nodes: tuple[str, ...]
    """The original nodes, as "Op name"."""
    shapes: tuple[Shape, ...]
    """Shapes of the fused op's inputs."""
    arch: str
    """The architecture for which times are estimated."""
    decided_by: DecidedBy
    candidates: tuple[CandidateCost, ...]
    """Fastest first."""
    note: str = ""
    """Why nothing is estimated, or on which card the estimates were measured."""

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data for JSON."""
        return {
            "op": self.op, "rule": self.rule, "nodes": list(self.nodes), "shapes": [list(s) for s in self.shapes],
            "arch": self.arch, "decided_by": self.decided_by, "note": self.note,
            "candidates": [
                {"name": c.name, "microseconds": c.microseconds, "measured": c.is_measured, "chosen": c.is_chosen}
                | ({"failed": c.failed} if c.failed else {})
                for c in self.candidates
            ],
        }  # fmt: skip


@dataclass(frozen=True, repr=False)
class NodeCosts(Screen):
    """The candidates for the fused ops that take some nodes."""

    node: str
    """The name or pattern by which they were requested."""
    costs: tuple[NodeCost, ...]

    def screen(self, limit: int | None = LIMIT) -> Blocks:
        """Return each fused op that takes the nodes, and up to `limit` candidates for it, fastest first."""
        if not self.costs:
            yield Line(f"[bold]{escape(self.node)}[/]: it is in no fused op, so ONNX Runtime runs it")
        for one in self.costs:
            shapes = ", ".join("x".join(map(str, s)) or "scalar" for s in one.shapes)
            heading = f"[bold]{escape(one.op)}[/] (rule {escape(one.rule)}) of {shapes} on {one.arch}"
            yield Line(f"{heading}: {DECIDED[one.decided_by]}; {escape(one.note)}")
            table = plain_table("candidate", "us", "", right=("us",))
            for candidate in _shown(one.candidates, limit):
                time = "" if candidate.microseconds is None else f"{candidate.microseconds:.1f}"
                chosen = "chosen" if candidate.is_chosen else candidate.failed
                table.add_row(escape(candidate.name), time, escape(chosen))
            if one.candidates:
                yield Rows(table, ("candidate", ""))
            yield from more_rows(one.candidates, limit, "more candidate")

    def as_dict(self) -> dict[str, Any]:
        """Return them as plain data for JSON."""
        return {"ok": True, "costs": [one.as_dict() for one in self.costs]}


def _shown(candidates: Sequence[CandidateCost], limit: int | None) -> list[CandidateCost]:
    """Return the first candidates, and the chosen one if it is not among them."""
    first = candidates[:limit]
    return [*first, *(c for c in candidates[len(first) :] if c.is_chosen)]


def node_costs(
    model: Model,
    node: str,
    options: Options | None = None,
    sizes: Mapping[str, int] | None = None,
    arch: Arch | None = None,
    progress: Steps = silent,
) -> NodeCosts:
    """Return the candidates for the fused ops that take the nodes requested by a name or pattern; the model is not
    changed.

    `sizes` are those of dynamic dimensions by name, 1 by default; where ops were measured, their shapes. `arch`: the
    GPU, by default this machine's, else the one on which costs were measured. Raises UsageError for an unknown name.
    """
    from onnxfuse.runtime.engine.cuda_provider import arch_here  # ONNX Runtime is imported only when something is run.

    explained = explain(model, options, (node,), progress)
    assert explained.optimized is not None, "explain returns the optimized model"
    on = arch or arch_here() or H200
    nodes = explained.requests[node].nodes
    taken = [a for a in explained.report.applied if a.op and any(name_of(n) in nodes for n in a.nodes)]
    ops = fused_ops(explained.optimized)
    book: Book = {} if explained.tuned is None else explained.tuned.book
    light, _ = with_sizes(explained.optimized, sizes or {})
    whole, graph = sized(light, {}), infer(light).graph
    types, placed = every_type(graph), fused_nodes(graph)
    found: dict[NodeCost, None] = {}
    for one in taken:
        for fused in placed.get(one.op, ()):
            if tuple(fused.output) != one.outputs:
                continue
            op = ops[one.op]
            measured: Sequence[tuple[Shape, ...] | None] = _measured_shapes(book, op)
            for shapes in measured or [input_shapes(fused, types)]:
                library = _library(fused, whole, op, on) if shapes == input_shapes(fused, types) else None
                found[_cost(op, one.nodes, shapes, on, book, library)] = None
    return NodeCosts(node, tuple(found))


def _library(fused: NodeProto, model: Sized, op: FusedOp, arch: Arch) -> float | None:
    """Return what the library should take for a fused op's node; None if that is not known."""
    expanded = next((n for n in model.nodes if n.op is not None and n.proto.output == fused.output), None)
    return None if expanded is None else library_cost(expanded, model, arch, op.tf32)


def _measured_shapes(book: Book, op: FusedOp) -> list[tuple[Shape, ...]]:
    """Return the shapes at which an op was measured on any machine."""
    digest, _ = measurements.key(op.name, ())
    return [shapes for of, shapes in measurements.pooled(book) if of == digest]


def _cost(
    op: FusedOp, nodes: tuple[str, ...], shapes: tuple[Shape, ...] | None, arch: Arch, book: Book, library: float | None
) -> NodeCost:
    if shapes is None:
        return NodeCost(op.name, op.rule, nodes, (), arch.name, "rule", (), "the shapes of its inputs are not known")
    key = measurements.key(op.name, shapes)
    for machine, section in book.items():
        if (measured := section.get(key)) is not None and measured.ran:
            return NodeCost(
                op.name, op.rule, nodes, shapes, arch.name, "measured", _measured(measured), f"measured on {machine}"
            )
    refused = supports(op, lambda: arch)
    try:
        times = estimates(op, shapes, arch) if refused is None else ()
    except NoPlanError as why:
        times, refused = (), str(why)
    if refused is not None:
        return NodeCost(op.name, op.rule, nodes, shapes, arch.name, "rule", (), refused)
    by: DecidedBy = "rule" if times[0].variant is None else "estimate"
    candidates = [
        CandidateCost(_name(op, one), one.microseconds, is_measured=False, is_chosen=one.chosen) for one in times
    ]
    if library is not None:
        candidates.append(CandidateCost(LIBRARY, library, is_measured=False, is_chosen=False))
        candidates.sort(key=lambda one: one.microseconds or 0.0)
    return NodeCost(op.name, op.rule, nodes, shapes, arch.name, by, tuple(candidates), _origin(arch, by))


def _origin(arch: Arch, by: DecidedBy) -> str:
    """Say what an estimate is worth."""
    if by == "rule":
        return "template and rule choose by sizes; the time is its kind's, or the least that memory allows"
    card, measured = tables.card(arch.name), tables.measured_card(arch.name)
    scaled = f", scaled to {card.name} by its clock, tensor cores, lanes and bandwidth" if card != measured else ""
    return f"estimates measured on {measured.name}{scaled}"


def _measured(measured: MeasuredVariants) -> tuple[CandidateCost, ...]:
    """Return the candidates of a measurement, fastest first, failed ones last."""
    verdict = measurements.verdict((measured,))
    best = measured.best(verdict)
    ordered = sorted(measured.candidates, key=lambda c: (c.microseconds is None, c.microseconds or 0.0))
    return tuple(
        CandidateCost(c.name, c.microseconds, is_measured=True, is_chosen=c is best, failed=c.failed) for c in ordered
    )


def _name(op: FusedOp, estimate: Estimate) -> str:
    return op.template if estimate.variant is None else f"{op.template} {estimate.variant}"
