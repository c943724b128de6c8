"""What became of nodes that somebody asks about: who took them, and the attempts that came nearest to more."""

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
"""Operators that are told one by one: a region of convolutions has hundreds."""

FAR = 3
"""Attempts that are told where none came near."""

Rows = list[tuple[str, ...]]
"""Of a table: a number, the rule, and what the rest of the columns say."""


@dataclass(frozen=True)
class Inside:
    """A fused op that stands in the file."""

    node: str
    """The fused node's name."""
    op: str
    rule: str
    template: str
    came_from: tuple[str, ...]
    """The original nodes, as "Op name"."""
    body: tuple[str, ...]
    """What is inside, lines of ONNX's text."""
    given: bool = True
    """Whether its rule is among those that are looked at now."""

    @property
    def names(self) -> frozenset[str]:
        """Every name by which it may be asked for."""
        return frozenset((self.node, *(name_of(n) for n in self.came_from)))

    @property
    def verdict(self) -> str:
        """What it is, in one line."""
        what = f"{self.op} (rule {self.rule}, kernel {self.template})"
        stands = f"is in the fused op {what}, which stands for {operators(self.came_from)}"
        return (
            stands if self.given else f"{stands}; made by rule '{self.rule}', which is not given here: --rules FOLDER"
        )


@dataclass(frozen=True)
class RequestedNodes:
    """Nodes that were asked about by one name or pattern."""

    nodes: frozenset[str]
    """Their names, as reports call them."""
    inside: tuple[Inside, ...] = ()
    """The fused ops of the file that hold any of them."""
    gone: bool = False
    """Whether none of them is left, and no rule took any: a built-in step did."""


def fused_ops_by_node(model: onnx.ModelProto, known: Collection[str]) -> tuple[Inside, ...]:
    """Return the fused ops that stand in a model, one for each node; `known` are the names of the rules there are."""
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
    """Return the first outputs of the fused nodes that remember which nodes they replaced."""
    return {
        n.output[0] for n in nodes_of(model.graph) if n.domain == DOMAIN and provenance.names(n, "nodes") is not None
    }


class Names:
    """Every name of a model, and the nodes that it means: those that compute a value, or that read a given one."""

    def __init__(self, model: onnx.ModelProto, inside: Sequence[Inside], source: str | Path | onnx.ModelProto) -> None:
        self.source = source
        self.inside = inside
        self.known: dict[str, set[str]] = {}
        self.printed: dict[str, set[str]] = {}
        """Names as they are printed, "Op name"; names of fused ops."""
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
        """Return the nodes behind a name, "Op name", or a pattern with * and ?; raises UsageError for none.

        `left` are the names of the nodes that the optimized model still has.
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
    """Return the names of a model's nodes, those without one by their first output; none where it cannot be read."""
    try:
        model = io.load(path, weights=False)
    except OnnxfuseError:
        return []
    return list(dict.fromkeys(Node(node).name for node in nodes_of(model.graph)))


def took(report: OptimizeReport, place: RequestedNodes) -> list[str]:
    """Return who took the nodes, with what."""
    took = [a for a in report.applied if any(name_of(n) in place.nodes for n in a.nodes)]
    kinds = Counter((a.rule, operators(a.nodes)) for a in took)
    return [
        f"{rule} took it with {what}" if n == 1 else f"{rule} took {n} of them with {what}"
        for (rule, what), n in kinds.items()
    ]


def attempts(report: OptimizeReport, place: RequestedNodes) -> list[Near]:
    """Return each rule's furthest attempt that a node of the place had part in, wherever it began, nearest first."""
    return sorted(_furthest(report, place).values(), key=_rank, reverse=True)


def rows(report: OptimizeReport, place: RequestedNodes, lost: Sequence[Lost], *, everything: bool) -> Rows:
    """Return the rules' furthest attempts that nodes of the place had part in, wherever they began, nearest first.

    Of each: matched, rule, stopped at, why and what would help. Without `everything` what tells hardly anything is left
    out: where nothing else was tried, some of it.
    """
    found = attempts(report, place)
    telling = [n for n in found if near_misses.telling(n)]
    if any(n.refusal.depth > 1 for n in telling):
        # Where a block is nearly there, any one operator that another rule begins with has nothing to do with it.
        telling = [n for n in telling if n.refusal.depth > 1 or n.refusal.cause.kind not in SPELLINGS]
    beside = [
        ("beside", a.rule, s.node, f"{a.op or a.rule}: {near_misses.miss_text(s)}") for a, s in _stops(report, place)
    ]
    shown = found if everything else telling
    if not shown and not beside and not took(report, place):
        shown = found[:FAR]
    return [*((matched(n), n.rule, n.refusal.node, why(n, lost)) for n in shown), *beside]


def why(near: Near, lost: Sequence[Lost]) -> str:
    """Return why an attempt stopped, and what would help: where types are lost before it, that."""
    if near.refusal.cause.kind in ("unknown", "untyped"):
        loss = next((one for one in lost if near.refusal.node in one.after), None)
        if loss is not None:
            where = "" if f"'{loss.value}'" in near.refusal.reason else f" types are lost at '{loss.value}',"
            return f"{near.refusal.reason}:{where} {loss.maker}\n-> {loss.mend}"
    return near_misses.miss_text(near.refusal)


def name_of(node: str) -> str:
    """Return the name of what is told as "Op name"."""
    return node.partition(" ")[2]


def matched(near: Near) -> str:
    """Return how much of the pattern was there."""
    return f"{near.refusal.depth} of {near.refusal.size}"


def operators(nodes: Sequence[str]) -> str:
    """Return the operators in order; of more than a few, how many there are of each."""
    ops = [n.split()[0] for n in nodes]
    if len(ops) <= FEW:
        return " + ".join(ops)
    return ", ".join(f"{n} {op}" for op, n in Counter(ops).items())


def _furthest(report: OptimizeReport, place: RequestedNodes) -> Mapping[str, Near]:
    """Return, by rule, the furthest attempt that a node of the place had part in.

    On what else stands around, another block may as well begin: it counts where more was there than was missing.
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
    """Return the fused ops that grew up to a node of the place and could not take it."""
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
