"""Look up requested nodes: which rule took them, and the nearest attempts to fuse more."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import onnx

from onnxfuse.api.reasons import near_misses
from onnxfuse.api.rules.rules import as_line
from onnxfuse.files import io
from onnxfuse.graph.graph import Node
from onnxfuse.graph.lost_types import Lost
from onnxfuse.model import provenance
from onnxfuse.model.fused import DOMAIN, fused_ops, replaced_nodes
from onnxfuse.model.nested import nodes_of
from onnxfuse.rules.match.cause import SPELLINGS
from onnxfuse.rules.match.match import Refusal
from onnxfuse.rules.match.report import Applied, Near, OptimizeReport
from onnxfuse.support.close_match import did_you_mean
from onnxfuse.support.errors import OnnxfuseError, UsageError

FEW = 12
"""Number of operators listed one by one: a region of convolutions has hundreds."""

FAR = 3
"""Number of attempts reported if none came near."""

Rows = list[tuple[str, ...]]
"""Table rows: a number, the rule, and the remaining columns."""


@dataclass(frozen=True)
class Inside:
    """A fused op in the given file."""

    node: str
    """Name of the fused node."""
    op: str
    rule: str
    template: str
    came_from: tuple[str, ...]
    """The original nodes, as "Op name"."""
    body: tuple[str, ...]
    """The nodes of its body, as lines of ONNX text."""
    given: bool = True
    """Whether its rule is among those considered now."""

    @property
    def names(self) -> frozenset[str]:
        """Every name under which it can be requested."""
        return frozenset((self.node, *(name_of(n) for n in self.came_from)))

    @property
    def verdict(self) -> str:
        """Describe it in one line."""
        what = f"{self.op} (rule {self.rule}, kernel {self.template})"
        stands = f"is in the fused op {what}, which stands for {operators(self.came_from)}"
        return (
            stands if self.given else f"{stands}; made by rule '{self.rule}', which is not given here: --rules FOLDER"
        )


@dataclass(frozen=True)
class RequestedNodes:
    """Nodes requested by one name or pattern."""

    nodes: frozenset[str]
    """Their names, as in reports."""
    inside: tuple[Inside, ...] = ()
    """The fused ops of the file that contain any of them."""
    gone: bool = False
    """Whether none of them remains although no rule took any: a built-in pass removed them."""


def fused_ops_by_node(model: onnx.ModelProto, known: Collection[str]) -> tuple[Inside, ...]:
    """Return the fused ops of a model, one per node; `known` are the names of the available rules."""
    ops = fused_ops(model)
    bodies = {name: tuple(as_line(n) for n in op.body.node) for name, op in ops.items()}
    return tuple(
        Inside(
            Node(n).name, n.op_type, op.rule, op.template, replaced_nodes(n, op), bodies[n.op_type], op.rule in known
        )
        for n in nodes_of(model.graph)
        if n.domain == DOMAIN and (op := ops.get(n.op_type)) is not None
    )


def undoable(model: onnx.ModelProto) -> set[str]:
    """Return the first outputs of the fused nodes that record which nodes they replaced."""
    return {
        n.output[0] for n in nodes_of(model.graph) if n.domain == DOMAIN and provenance.names(n, "nodes") is not None
    }


class Names:
    """Index of every name of a model to the nodes that it denotes: producers of a value, or readers of a graph
    input."""

    def __init__(self, model: onnx.ModelProto, inside: Sequence[Inside], source: str | Path | onnx.ModelProto) -> None:
        self.source = source
        self.inside = inside
        self.known: dict[str, set[str]] = {}
        self.printed: dict[str, set[str]] = {}
        """Printed names, "Op name"; names of fused ops."""
        read: dict[str, set[str]] = {}
        for node in map(Node, nodes_of(model.graph)):
            for word in {*node.outputs, node.name} - {""}:
                self.known.setdefault(word, set()).add(node.name)
            for word in node.reads:
                read.setdefault(word, set()).add(node.name)
            self.printed.setdefault(f"{node.op} {node.name}", set()).add(node.name)
        for word, readers in read.items():
            self.known.setdefault(word, readers)
        for one in inside:
            self.known.setdefault(one.node, set()).update(one.names)
            self.printed.setdefault(one.op, set()).update(one.names)

    def place(self, asked: str, report: OptimizeReport, left: Collection[str] = ()) -> RequestedNodes:
        """Return the nodes behind a name, "Op name", or a pattern with * and ?; raises UsageError if there are none.

        `left` are the names of the nodes that remain in the optimized model.
        """
        told = _told(report)
        exact = {**told, **self.printed, **self.known}
        if asked in exact:
            found = set(exact[asked])
        else:
            found = {name for word, names in self.known.items() if fnmatchcase(word, asked) for name in names}
        if not found:
            near = did_you_mean(asked, set(exact))
            where = "the model" if isinstance(self.source, onnx.ModelProto) else self.source
            raise UsageError(
                f"{where}: has no node and no value called '{asked}'.{near}",
                "Names are those that explain prints, and those of the model; * and ? stand for any letters.",
            )
        taken = {name_of(n) for a in report.applied for n in a.nodes}
        gone = bool(left) and found.isdisjoint(left) and found.isdisjoint(taken)
        return RequestedNodes(frozenset(found), tuple(one for one in self.inside if found & one.names), gone)


def node_names(path: Path) -> list[str]:
    """Return the names of a model's nodes, by first output for unnamed ones; none if it cannot be read."""
    try:
        model = io.load(path, weights=False)
    except OnnxfuseError:
        return []
    return list(dict.fromkeys(Node(node).name for node in nodes_of(model.graph)))


def took(report: OptimizeReport, place: RequestedNodes) -> list[str]:
    """Return which rules took the nodes, and with which others."""
    took = [a for a in report.applied if any(name_of(n) in place.nodes for n in a.nodes)]
    kinds = Counter((a.rule, operators(a.nodes)) for a in took)
    return [
        f"{rule} took it with {what}" if n == 1 else f"{rule} took {n} of them with {what}"
        for (rule, what), n in kinds.items()
    ]


def attempts(report: OptimizeReport, place: RequestedNodes) -> list[Near]:
    """Return each rule's furthest attempt that involved a node of the request, wherever it started, nearest first."""
    return sorted(_furthest(report, place).values(), key=_rank, reverse=True)


def rows(report: OptimizeReport, place: RequestedNodes, lost: Sequence[Lost], *, everything: bool) -> Rows:
    """Return table rows of the rules' furthest attempts that involved requested nodes, wherever they started, nearest
    first.

    Of each: matched part, rule, node that stopped it, reason and advice. Without `everything` uninformative attempts
    are omitted; if there are no others, some of them are included.
    """
    found = attempts(report, place)
    telling = [n for n in found if near_misses.telling(n)]
    if any(n.refusal.depth > 1 for n in telling):
        # If a block nearly matches, attempts of other rules at one of its operators are irrelevant.
        telling = [n for n in telling if n.refusal.depth > 1 or n.refusal.cause.kind not in SPELLINGS]
    beside = [
        ("beside", a.rule, s.node, f"{a.op or a.rule}: {near_misses.miss_text(s)}") for a, s in _stops(report, place)
    ]
    shown = found if everything else telling
    if not shown and not beside and not took(report, place):
        shown = found[:FAR]
    return [*((matched(n), n.rule, n.refusal.node, why(n, lost)) for n in shown), *beside]


def why(near: Near, lost: Sequence[Lost]) -> str:
    """Return why an attempt stopped, with advice: if types are lost before it, that."""
    if near.refusal.cause.kind in ("unknown", "untyped"):
        loss = next((one for one in lost if near.refusal.node in one.after), None)
        if loss is not None:
            where = "" if f"'{loss.value}'" in near.refusal.reason else f" types are lost at '{loss.value}',"
            return f"{near.refusal.reason}:{where} {loss.maker}\n-> {loss.mend}"
    return near_misses.miss_text(near.refusal)


def name_of(node: str) -> str:
    """Return the name in "Op name"."""
    return node.partition(" ")[2]


def matched(near: Near) -> str:
    """Return how much of the pattern was matched."""
    return f"{near.refusal.depth} of {near.refusal.size}"


def operators(nodes: Sequence[str]) -> str:
    """Return the operators in order; if there are many, their counts."""
    ops = [n.split()[0] for n in nodes]
    if len(ops) <= FEW:
        return " + ".join(ops)
    return ", ".join(f"{n} {op}" for op, n in Counter(ops).items())


def _furthest(report: OptimizeReport, place: RequestedNodes) -> Mapping[str, Near]:
    """Return, by rule, the furthest attempt that involved a node of the request.

    Attempts at surrounding nodes may belong to another block: they count if the matched part exceeds the missing part.
    """
    found: dict[str, Near] = {}
    for near in report.attempts():
        refusal = near.refusal
        rest = refusal.around if refusal.depth > refusal.missing else ()
        part = {name_of(near.root), refusal.node, *refusal.nodes, *rest}
        if not place.nodes.isdisjoint(part) and (near.rule not in found or _rank(near) > _rank(found[near.rule])):
            found[near.rule] = near
    return found


def _rank(near: Near) -> tuple[object, ...]:
    refusal = near.refusal
    return refusal.alone and refusal.size > 1, refusal.nearness


def _stops(report: OptimizeReport, place: RequestedNodes) -> Iterable[tuple[Applied, Refusal]]:
    """Return the fused ops that grew up to a requested node and could not include it."""
    return ((a, s) for a in report.applied for s in a.stops if s.node in place.nodes)


def _told(report: OptimizeReport) -> dict[str, set[str]]:
    """Return every name that the report prints: nodes as "Op name" and by name, fused ops, values in reasons."""
    found: dict[str, set[str]] = {}
    for applied in report.applied:
        names = {name_of(n) for n in applied.nodes}
        found.setdefault(applied.op or applied.rule, set()).update(names)
        for node in applied.nodes:
            found.setdefault(node, set()).add(name_of(node))
    for near in report.attempts():
        for node in (near.root, f" {near.refusal.node}"):
            found.setdefault(node.strip(), set()).add(name_of(node))
        for value in re.findall(r"'([^']+)'", near.refusal.reason):
            found.setdefault(value, {near.refusal.node})
    return {**{name: {name} for names in found.values() for name in names}, **found}
