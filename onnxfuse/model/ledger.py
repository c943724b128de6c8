"""Rewrite ledger of an optimized file: the original nodes, and what rewrote them.

The bodies of fused ops restore the nodes that they absorbed. Nodes that were rewritten before, folded into weights or
changed in layout cannot be restored: from this ledger `--undo` lists exactly which.
"""

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from onnx import GraphProto, ModelProto, NodeProto

from onnxfuse import ops
from onnxfuse.model.fused import DOMAIN
from onnxfuse.model.metadata import entry, set_entry
from onnxfuse.model.nested import bodies
from onnxfuse.support.bounded_text import read_json
from onnxfuse.support.errors import ModelError
from onnxfuse.support.plurals import agreeing, plural

METADATA = "onnxfuse.original"
"""Key in `metadata_props`."""

BYTES = 6
"""Size of a node's hash: among 10,000 nodes no two collide by chance, and they take 80 kB."""


@dataclass(frozen=True)
class Ledger:
    """Summary of the original model."""

    operators: Mapping[str, int]
    """Number of nodes of each operator; Constant nodes count as weights and are not included."""
    nodes: tuple[str, ...]
    """A hash of each node's contents."""
    rewrites: Mapping[str, int] = field(default_factory=dict)
    """How often each rule rewrote something: undoing fused ops does not revert that."""
    made: tuple[str, ...] = ()
    """Other requested changes that stay, as text: frozen sizes, a lower precision."""
    version: str = ""
    """The version of onnxfuse that last changed the model; empty if the file does not say."""


@dataclass(frozen=True)
class Undone:
    """Result of undoing a model's fused ops, compared with the original."""

    fused: int
    """Fused nodes that were expanded."""
    known: bool = False
    """Whether the file has a ledger; files of an earlier version do not."""
    nodes: int = 0
    """Number of original nodes."""
    back: int = 0
    """Number of those that were restored, or never changed, with identical contents."""
    after: int = 0
    """Number of nodes of the result, without constants."""
    operators: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Operators whose count differs from the original, with both counts."""
    rewrites: Mapping[str, int] = field(default_factory=dict)
    made: tuple[str, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether every original node was restored, and there is no other."""
        return self.known and self.nodes == self.back == self.after

    def __str__(self) -> str:
        """One sentence."""
        if not self.known and not self.fused:
            return "nothing to undo: the file has no fused op, and no record of rewrites"
        if not self.known:
            return (
                "folded and rewritten nodes cannot be restored: the file has lost its record of them (metadata_props)"
            )
        if self.whole:
            many = "all " * (self.nodes > 1)
            return f"{many}{plural(self.nodes, 'node')} of the original {agreeing(self.nodes, 'is', 'are')} back"
        rules = ", ".join(f"{rule} {n}" for rule, n in self.rewrites.items())
        missing, added = self.nodes - self.back, self.after - self.back
        why = "; ".join((*([f"rewrites stay ({rules})"] if rules else []), *self.made))
        return (
            f"{self.back} of the original's {plural(self.nodes, 'node')} "
            f"{agreeing(self.back, 'is back as it was', 'are back as they were', of=self.nodes)}, "
            f"{missing} {agreeing(missing, 'is', 'are')} not, and {added} {agreeing(added, 'is', 'are')} in their "
            f"place: {why or 'constants were folded, equal nodes shared, or built-in passes rewrote them'}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return every fact for JSON."""
        return {
            "summary": str(self),
            "known": self.known,
            "nodes": {"original": self.nodes, "back": self.back, "after": self.after},
            "operators": {op: {"original": n, "after": m} for op, (n, m) in self.operators.items()},
            "rewrites": dict(self.rewrites),
            "made": list(self.made),
        }


def of(model: ModelProto) -> Ledger | None:
    """Return the ledger of a model before it is optimized: its own if it has one, None if that was lost."""
    recorded = read(model)
    if recorded is not None:
        return recorded
    nodes = list(_nodes(model.graph))
    if any(n.domain == DOMAIN for n in nodes):
        return None
    return Ledger(_counted(nodes), tuple(_hash(n) for n in nodes))


def write(model: ModelProto, ledger: Ledger) -> None:
    """Write the ledger into the metadata of `model`."""
    facts = {
        "operators": dict(ledger.operators),
        "nodes": "".join(ledger.nodes),
        "rewrites": dict(sorted(ledger.rewrites.items())),
        "made": list(ledger.made),
        "version": ledger.version,
    }
    set_entry(model, METADATA, json.dumps(facts))


def remove(model: ModelProto) -> None:
    """Remove the ledger from `model`."""
    set_entry(model, METADATA, None)


def read(model: ModelProto) -> Ledger | None:
    """Return the ledger in `model`, None if there is none. Raises ModelError for invalid metadata."""
    text = entry(model, METADATA)
    if text is None:
        return None
    try:
        facts = read_json(text)
        long = facts["nodes"]
        return Ledger(
            {str(op): int(n) for op, n in facts["operators"].items()},
            tuple(long[i : i + LETTERS] for i in range(0, len(long), LETTERS)),
            {str(rule): int(n) for rule, n in facts["rewrites"].items()},
            tuple(map(str, facts["made"])),
            str(facts.get("version", "")),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelError(
            f"the metadata {METADATA} is not as onnxfuse writes it: {error}",
            "A tool that rewrote the file changed it; optimize the original model again.",
        ) from None


LETTERS = BYTES * 4 // 3


def undone(model: ModelProto, fused: int) -> Undone:
    """Compare `model`, whose fused ops were undone and which still has its ledger, with the original."""
    ledger = read(model)
    if ledger is None:
        return Undone(fused)
    nodes = list(_nodes(model.graph))
    now, was = _counted(nodes), ledger.operators
    back = Counter(_hash(n) for n in nodes) & Counter(ledger.nodes)
    return Undone(
        fused, True, len(ledger.nodes), back.total(), len(nodes),
        {op: (was.get(op, 0), now[op]) for op in dict.fromkeys((*was, *now)) if was.get(op, 0) != now[op]},
        ledger.rewrites, ledger.made,
    )  # fmt: skip


def _nodes(graph: GraphProto) -> Iterable[NodeProto]:
    for node in graph.node:
        if node.op_type != ops.Constant or node.domain:
            yield node
        for body in bodies(node):
            yield from _nodes(body)


def _counted(nodes: Iterable[NodeProto]) -> Counter[str]:
    return Counter(n.op_type if n.domain in ("", "ai.onnx") else f"{n.domain}:{n.op_type}" for n in nodes)


def _hash(node: NodeProto) -> str:
    """Return a hash of a node's contents except its documentation; nested bodies have nodes of their own."""
    content = NodeProto(op_type=node.op_type, domain=node.domain.removeprefix("ai.onnx"), name=node.name)
    content.input.extend(node.input)
    content.output.extend(node.output)
    content.attribute.extend(sorted((a for a in node.attribute if not a.HasField("g")), key=lambda a: a.name))
    for attribute in content.attribute:
        attribute.doc_string = ""
    digest = hashlib.sha256(content.SerializeToString(deterministic=True)).digest()
    return base64.b64encode(digest[:BYTES]).decode()
