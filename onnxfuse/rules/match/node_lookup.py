"""Look up requested nodes: which rule took them, and the nearest attempts to fuse more."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import onnx

from onnxfuse.graph.graph import Node
from onnxfuse.graph.lost_types import Lost
from onnxfuse.model import provenance
from onnxfuse.model.display_names import as_line
from onnxfuse.model.fused import DOMAIN, fused_ops, replaced_nodes
from onnxfuse.model.nested import nodes_of
from onnxfuse.rules.match import near_misses
from onnxfuse.rules.match.cause import SPELLINGS
from onnxfuse.rules.match.match import Refusal
from onnxfuse.rules.match.report import Applied, Near, OptimizeReport
from onnxfuse.support.close_match import did_you_mean
from onnxfuse.support.errors import UsageError

FEW = 12
"""Number of operators listed one by one: a region of convolutions has hundreds."""

FAR = 3
"""Number of attempts reported if none came near."""

Rows = list[tuple[str, ...]]
"""Table rows: a number, the rule, and the remaining columns."""


@dataclass(frozen=True)
class FusedNode:
    """A fused op in the given file."""

    node: str
    """Name of the fused node."""
    op: str
    rule: str
    template: str
    original_nodes: tuple[str, ...]
    """The original nodes, as "Op name"."""
    body: tuple[str, ...]
    """The nodes of its body, as lines of ONNX text."""
    is_available: bool = True
    """Whether its rule is among those considered now."""

    @property
    def names(self) -> frozenset[str]:
        """Every name under which it can be requested."""
        return frozenset((self.node, *(name_of(n) for n in self.original_nodes)))

    @property
    def verdict(self) -> str:
        """Describe it in one line."""
        description = f"{self.op} (rule {self.rule}, kernel {self.template})"
        sentence = f"is in the fused op {description}, which replaces {operators(self.original_nodes)}"
        return (
            sentence
            if self.is_available
            else f"{sentence}; made by rule '{self.rule}', which is not given here: --rules FOLDER"
        )


@dataclass(frozen=True)
class RequestedNodes:
    """Nodes requested by one name or pattern."""

    nodes: frozenset[str]
    """Their names, as in reports."""
    inside: tuple[FusedNode, ...] = ()
    """The fused ops of the file that contain any of them."""
    is_removed: bool = False
    """Whether none of them remains although no rule took any: a built-in pass removed them."""


def fused_ops_by_node(model: onnx.ModelProto, rules: Collection[str]) -> tuple[FusedNode, ...]:
    """Return the fused ops of a model, one per node; `rules` are the names of the available rules."""
    ops = fused_ops(model)
    bodies = {name: tuple(as_line(n) for n in op.body.node) for name, op in ops.items()}
    return tuple(
        FusedNode(
            Node(n).name, n.op_type, op.rule, op.template, replaced_nodes(n, op), bodies[n.op_type], op.rule in rules
        )
        for n in nodes_of(model.graph)
        if n.domain == DOMAIN and (op := ops.get(n.op_type)) is not None
    )


def undoable(model: onnx.ModelProto) -> set[str]:
    """Return the first outputs of the fused nodes that record which nodes they replaced."""
    return {
        n.output[0] for n in nodes_of(model.graph) if n.domain == DOMAIN and provenance.names(n, "nodes") is not None
    }


class NodeNames:
    """Index of every name of a model to the nodes that it denotes: producers of a value, or readers of a graph
    input."""

    def __init__(
        self, model: onnx.ModelProto, inside: Sequence[FusedNode], source: str | Path | onnx.ModelProto
    ) -> None:
        self.source = source
        self.inside = inside
        self.known: dict[str, set[str]] = {}
        self.printed: dict[str, set[str]] = {}
        """Printed names, "Op name"; names of fused ops."""
        self.operators: dict[str, set[str]] = {}
        """The nodes of each operator."""
        read: dict[str, set[str]] = {}
        for node in map(Node, nodes_of(model.graph)):
            for word in {*node.outputs, node.name} - {""}:
                self.known.setdefault(word, set()).add(node.name)
            for word in node.reads:
                read.setdefault(word, set()).add(node.name)
            self.printed.setdefault(f"{node.op} {node.name}", set()).add(node.name)
            self.operators.setdefault(node.op, set()).add(node.name)
        for word, readers in read.items():
            self.known.setdefault(word, readers)
        for one in inside:
            self.known.setdefault(one.node, set()).update(one.names)
            self.printed.setdefault(one.op, set()).update(one.names)

    def find(self, query: str, report: OptimizeReport, remaining: Collection[str] = ()) -> RequestedNodes:
        """Return the nodes behind a name, "Op name", an operator, or a pattern with * and ?, of names if any fits, else
        of the others.

        Raises UsageError if there are none.
        `remaining` are the names of the nodes that remain in the optimized model.
        """
        printed = _printed_names(report)
        exact = {**self.operators, **printed, **self.printed, **self.known}
        if query in exact:
            nodes = set(exact[query])
        else:
            nodes = _fitting(self.known, query) or _fitting({**self.operators, **self.printed}, query)
        if not nodes:
            suggestion = did_you_mean(query, set(exact))
            where = "the model" if isinstance(self.source, onnx.ModelProto) else self.source
            raise UsageError(
                f"{where}: has no node and no value called '{query}'.{suggestion}",
                "Names are those that explain prints, those of the model, or operators; * and ? stand for any letters.",
            )
        fused = {name_of(n) for a in report.applied for n in a.nodes}
        removed = bool(remaining) and nodes.isdisjoint(remaining) and nodes.isdisjoint(fused)
        return RequestedNodes(frozenset(nodes), tuple(one for one in self.inside if nodes & one.names), removed)


def _fitting(words: Mapping[str, Collection[str]], query: str) -> set[str]:
    """Return the nodes of every word that a pattern fits."""
    return {name for word, names in words.items() if fnmatchcase(word, query) for name in names}


def took_nodes(report: OptimizeReport, request: RequestedNodes) -> list[str]:
    """Return which rules took the nodes, and with which others."""
    applied = [a for a in report.applied if any(name_of(n) in request.nodes for n in a.nodes)]
    kinds = Counter((a.rule, "alone" if len(a.nodes) == 1 else f"with {operators(a.nodes)}") for a in applied)
    return [
        f"{rule} took it {others}" if n == 1 else f"{rule} took {n} of them {others}"
        for (rule, others), n in kinds.items()
    ]


def attempts(report: OptimizeReport, request: RequestedNodes) -> list[Near]:
    """Return each rule's furthest attempt that involved a node of the request, wherever it started, nearest first."""
    return sorted(_furthest(report, request).values(), key=_rank, reverse=True)


def rows(report: OptimizeReport, request: RequestedNodes, lost_types: Sequence[Lost], *, everything: bool) -> Rows:
    """Return table rows of the rules' furthest attempts that involved requested nodes, wherever they started, nearest
    first.

    Of each: matched part, rule, node that stopped it, reason and advice. Without `everything` uninformative attempts
    are omitted; if there are no others, some of them are included.
    """
    furthest = attempts(report, request)
    telling = [n for n in furthest if near_misses.telling(n)]
    if any(n.refusal.depth > 1 for n in telling):
        # If a block nearly matches, attempts of other rules at one of its operators are irrelevant.
        telling = [n for n in telling if n.refusal.depth > 1 or n.refusal.cause.kind not in SPELLINGS]
    grown_up_to = [
        ("beside", a.rule, s.node, f"{a.op or a.rule}: {near_misses.miss_text(s)}") for a, s in _stops(report, request)
    ]
    attempts_shown = furthest if everything else telling
    if not attempts_shown and not grown_up_to and not took_nodes(report, request):
        attempts_shown = furthest[:FAR]
    return [*((matched(n), n.rule, n.refusal.node, why(n, lost_types)) for n in attempts_shown), *grown_up_to]


def why(attempt: Near, lost_types: Sequence[Lost]) -> str:
    """Return why an attempt stopped, with advice: if types are lost before it, that."""
    if attempt.refusal.cause.kind in ("unknown", "untyped"):
        loss = next((one for one in lost_types if attempt.refusal.node in one.after), None)
        if loss is not None:
            where = "" if f"'{loss.value}'" in attempt.refusal.reason else f" types are lost at '{loss.value}',"
            return f"{attempt.refusal.reason}:{where} {loss.maker}\n-> {loss.mend}"
    return near_misses.miss_text(attempt.refusal)


def name_of(node: str) -> str:
    """Return the name in "Op name"."""
    return node.partition(" ")[2]


def matched(attempt: Near) -> str:
    """Return how much of the pattern was matched."""
    return f"{attempt.refusal.depth} of {attempt.refusal.size}"


def operators(nodes: Sequence[str]) -> str:
    """Return the operators in order; if there are many, their counts."""
    ops = [n.split()[0] for n in nodes]
    if len(ops) <= FEW:
        return " + ".join(ops)
    return ", ".join(f"{n} {op}" for op, n in Counter(ops).items())


def _furthest(report: OptimizeReport, request: RequestedNodes) -> Mapping[str, Near]:
    """Return, by rule, the furthest attempt that involved a node of the request.

    Attempts at surrounding nodes may belong to another block: they count if the matched part exceeds the missing part.
    """
    furthest: dict[str, Near] = {}
    for attempt in report.attempts():
        refusal = attempt.refusal
        rest = refusal.around if refusal.depth > refusal.missing else ()
        part = {name_of(attempt.root), refusal.node, *refusal.nodes, *rest}
        if not request.nodes.isdisjoint(part) and (
            attempt.rule not in furthest or _rank(attempt) > _rank(furthest[attempt.rule])
        ):
            furthest[attempt.rule] = attempt
    return furthest


def _rank(attempt: Near) -> tuple[object, ...]:
    refusal = attempt.refusal
    return refusal.alone and refusal.size > 1, refusal.nearness


def _stops(report: OptimizeReport, request: RequestedNodes) -> Iterable[tuple[Applied, Refusal]]:
    """Return the fused ops that grew up to a requested node and could not include it."""
    return ((a, s) for a in report.applied for s in a.stops if s.node in request.nodes)


def _printed_names(report: OptimizeReport) -> dict[str, set[str]]:
    """Return every name that the report prints: nodes as "Op name" and by name, fused ops, values in reasons."""
    nodes_by_name: dict[str, set[str]] = {}
    for applied in report.applied:
        names = {name_of(n) for n in applied.nodes}
        nodes_by_name.setdefault(applied.op or applied.rule, set()).update(names)
        for node in applied.nodes:
            nodes_by_name.setdefault(node, set()).add(name_of(node))
    for attempt in report.attempts():
        for node in (attempt.root, f" {attempt.refusal.node}"):
            nodes_by_name.setdefault(node.strip(), set()).add(name_of(node))
        for value in re.findall(r"'([^']+)'", attempt.refusal.reason):
            nodes_by_name.setdefault(value, {attempt.refusal.node})
    return {**{name: {name} for names in nodes_by_name.values() for name in names}, **nodes_by_name}
