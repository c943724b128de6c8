"""What fuses in a model, what does not, and the node and the reason where each attempt stopped."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx

from onnxfuse.api import misses, tuning
from onnxfuse.api.compiling import Inspected, inspect
from onnxfuse.api.lowering import Lowered, converted
from onnxfuse.api.misses import reason, told
from onnxfuse.api.options import Options, Progress, silent
from onnxfuse.api.source import Model, Origin, plain
from onnxfuse.api.way import Way
from onnxfuse.model.errors import UsageError
from onnxfuse.model.graph import Node, bodies
from onnxfuse.rewrite.language.pattern import did_you_mean
from onnxfuse.rewrite.report import Near, Report

if TYPE_CHECKING:
    from onnxfuse.tuning import Tuned

FEW = 12
"""Operators that are told one by one: a region of convolutions has hundreds."""

Rows = list[tuple[str, ...]]
"""Of a table: a number, the rule, and what the rest of the columns say."""


@dataclass(frozen=True)
class Explained:
    """What `optimize` would do to a model, and what it would not."""

    report: Report
    places: dict[str, str] = field(default_factory=dict)
    """The nodes that were asked about, as reports call them, by the names that were given."""
    tuned: "Tuned | None" = None
    file: Path | None = None
    """Where the times are; None where the model carries them."""
    pack: Inspected | None = None
    """What the kernel pack beside the model covers, where there is one."""
    lowered: Lowered | None = None
    """How the model was converted to lower precision, or would be."""

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data; with `places` only what is about these nodes, however little it tells."""
        report, places = self.report, set(self.places.values())
        applied = [a for a in report.applied if not places or any(_name(n) in places for n in a.nodes)]
        stopped = [n for n in report.stopped if _name(n.root) in places] if places else misses.ranked(report)
        facts = {
            "ok": True,
            "nodes": {"before": report.before.total(), "after": report.after.total()},
            "notes": report.notes,
            "applied": [
                {
                    "rule": a.rule,
                    "op": a.op,
                    "nodes": list(a.nodes),
                    "stops": [{"node": s.node, "reason": s.reason} for s in a.stops],
                }
                for a in applied
            ],
            "near": misses.facts(stopped, report),
        }
        if self.pack is not None:
            facts["kernels"] = self.pack.as_dict()
        if self.lowered is not None:
            facts["precision"] = self.lowered.as_dict()
        return facts if self.tuned is None else {**facts, "tuning": tuning.facts(self.tuned, self.file)}

    def fused(self) -> Rows:
        """Return the fusions, equal ones as one row: how many, rule, nodes, the first, why it grew no further."""
        kinds = [(a.rule, _operators(a.nodes), reason(a.stops[:1])) for a in self.report.applied]
        first = {kind: a.nodes[0] for kind, a in reversed([*zip(kinds, self.report.applied, strict=True)])}
        return [(str(n), rule, what, first[rule, what, why], why) for (rule, what, why), n in Counter(kinds).items()]

    def not_fused(self) -> Rows:
        """Return the attempts that stopped, equal ones as one row: how many, rule, from, first stopped at, why."""
        deepest = sorted(self.report.near, key=lambda n: -n.refusal.depth)
        kinds = [_kind(n) for n in deepest]
        first = {kind: n.refusal.node for kind, n in reversed([*zip(kinds, deepest, strict=True)])}
        return [(str(n), rule, what, first[rule, what, why], why) for (rule, what, why), n in Counter(kinds).items()]

    def nearest(self, *, everything: bool) -> tuple[int, Rows]:
        """Return how many places nearly fused and are in no fused op now, and the kinds of them, nearest first.

        Of each: how many, rule, matched, first stopped at, why and what would help. Those that tell little are left
        out unless `everything` is wanted.
        """
        taken = misses.fused_nodes(self.report)
        near = [n for n in misses.ranked(self.report) if n.root not in taken and (everything or misses.telling(n))]
        kinds: dict[tuple[str, str, str], list[Near]] = {}
        for one in near:
            kinds.setdefault(_kind(one), []).append(one)
        found = sorted(kinds.values(), key=lambda ns: (misses.missing(ns[0]), -len(ns)))
        rows = [(str(len(ns)), ns[0].rule, _matched(ns[0]), ns[0].refusal.node, told(ns[0].refusal)) for ns in found]
        return len(near), [*rows]

    def at(self, place: str) -> tuple[list[str], Rows]:
        """Return who took a node with what, and every rule's furthest attempt that began there.

        Of each attempt: matched, rule, stopped at, why and what would help.
        """
        took = [a for a in self.report.applied if any(_name(n) == place for n in a.nodes)]
        tried = [n for n in self.report.stopped if _name(n.root) == place]
        rows = [
            (_matched(n), n.rule, n.refusal.node, told(n.refusal))
            for n in sorted(tried, key=lambda n: (misses.missing(n), n.rule))
        ]
        return [f"{a.rule} took it with {_operators(a.nodes)}" for a in took], [*rows]


def explain(
    model: Model, options: Options | None = None, at: Sequence[str] = (), progress: Progress = silent
) -> Explained:
    """Return what `optimize` would do to the model, what it would not, and why; the model is left as it is.

    What was measured decides: by `options.tuning`, else by what the model carries. `at`: names of nodes or computed
    values that are asked about. Raises UsageError for one that there is not.
    """
    options = options or Options()
    rules = options.chosen()
    origin = Origin(plain(model), options.strict_fp32)
    ours = origin.fresh()
    origin, done = converted(ours, origin, options, progress)
    places = {name: _place(ours, name, origin) for name in at}
    asked = options.tuning
    found = tuning.carried(ours, rules, progress) if asked is None else tuning.find(ours, asked, rules, progress)
    report = Way(origin, options.freeze_initializers, found).run(ours, rules, progress)
    pack = inspect(Path(origin.source)) if isinstance(origin.source, str | Path) else None
    return Explained(report, places, found, None if asked is None else asked.file, pack, done)


def _place(model: onnx.ModelProto, name: str, origin: Origin) -> str:
    """Return the name that reports use for the node called `name`, or that computes the value `name`."""
    known: dict[str, str] = {}
    waiting = [model.graph]
    while waiting:
        for proto in waiting.pop().node:
            node = Node(proto)
            for word in (*node.outputs, node.name):
                known[word] = node.name
            waiting.extend(bodies(proto))
    if name not in known:
        near = did_you_mean(name, set(known))
        where = "the model" if isinstance(origin.source, onnx.ModelProto) else origin.source
        raise UsageError(f"{where}: has no node and no computed value called '{name}'.{near}")
    return known[name]


def _name(node: str) -> str:
    """Return the name of what is told as "Op name"."""
    return node.partition(" ")[2]


def _kind(near: Near) -> tuple[str, str, str]:
    return near.rule, near.root.split()[0], reason((near.refusal,))


def _matched(near: Near) -> str:
    return f"{near.refusal.depth} of {near.refusal.size}"


def _operators(nodes: tuple[str, ...]) -> str:
    """Return the operators in order; of more than a few, how many there are of each."""
    ops = [n.split()[0] for n in nodes]
    if len(ops) <= FEW:
        return " + ".join(ops)
    return ", ".join(f"{n} {op}" for op, n in Counter(ops).items())
