"""Device-memory traffic and operations of a whole model, node by node, and the traffic eliminated by fusion."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import onnx

from onnxfuse import ops
from onnxfuse.measure.profile.sizes import ExpandedNode, Shapes, Sized, sized
from onnxfuse.measure.profile.work import ON_HOST, VIEWS, TrafficEstimate, product_type, traffic_estimate
from onnxfuse.model.display_names import short
from onnxfuse.model.fused import replaced_nodes


@dataclass(frozen=True)
class NodeTraffic:
    """Traffic of one node in one run."""

    name: str
    """The node's name; that of its first output if it has none."""
    kind: str
    """The operator; for a fused op its rule and its operators: `linear: Add + Gelu`."""
    op: str
    """`op_type`."""
    nodes: tuple[str, ...]
    """The original nodes of a fused op, as "Op name"; empty for an operator."""
    work: TrafficEstimate
    element: str = ""
    """Element type of its matrix product or convolution, such as float16; empty if it has none."""

    @property
    def label(self) -> str:
        """The node in the form used in `nodes` of a fused op."""
        return f"{self.op} {self.name}"


@dataclass(frozen=True)
class ModelTraffic:
    """Traffic of one run of a model."""

    nodes: tuple[NodeTraffic, ...]
    intermediates: Mapping[str, int]
    """Bytes of each value passed between nodes; views of another value are excluded."""

    @property
    def reads(self) -> int:
        return sum(n.work.reads for n in self.nodes)

    @property
    def writes(self) -> int:
        return sum(n.work.writes for n in self.nodes)

    @property
    def bytes(self) -> int:
        return self.reads + self.writes

    @property
    def flops(self) -> int:
        return sum(n.work.flops for n in self.nodes)

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be counted, each once."""
        return tuple(dict.fromkeys(n.work.note for n in self.nodes if n.work.note))

    def as_dict(self) -> dict[str, Any]:
        """Return every fact for JSON."""
        return {
            "reads": self.reads,
            "writes": self.writes,
            "bytes": self.bytes,
            "flops": self.flops,
            "intermediates": {"count": len(self.intermediates), "bytes": sum(self.intermediates.values())},
            "notes": list(self.notes),
            "nodes": [
                {"name": n.name, "kind": n.kind, "op": n.op, "nodes": list(n.nodes), "reads": n.work.reads,
                 "writes": n.work.writes, "flops": n.work.flops, "note": n.work.note}
                for n in self.nodes
            ],
        }  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """A node of the fused model paired with the original nodes that it replaces; one of the two may be missing."""

    before: tuple[NodeTraffic, ...]
    after: NodeTraffic | None


@dataclass(frozen=True)
class TrafficRow:
    """All pairs of one kind."""

    count: int
    after: str
    """The kind of the node that runs now; empty if none does."""
    before: str
    """The operators that ran before, if different."""
    bytes_before: int
    bytes_after: int
    flops: int
    """Operations after fusion; eliminated operations appear in the totals only."""

    @property
    def saved(self) -> int:
        return self.bytes_before - self.bytes_after


@dataclass(frozen=True)
class Removed:
    """The intermediate values eliminated by fusion."""

    count: int
    of: int
    """Number of intermediate values in the original."""
    bytes: int
    """Their total size; each was written once and read at least once."""


def count(model: onnx.ModelProto, shapes: Shapes) -> ModelTraffic:
    """Return the traffic of one run of `model` on inputs of `shapes`. Raises ModelError."""
    sizes = sized(model, shapes)
    nodes = tuple(_node(n, sizes) for n in sizes.nodes)
    return ModelTraffic(nodes, _intermediates(sizes))


def pairs(before: ModelTraffic, after: ModelTraffic) -> tuple[Pair, ...]:
    """Pair each node of `after` with the nodes of `before` that it replaces, followed by unpaired ones."""
    waiting: dict[str, deque[NodeTraffic]] = {}
    for node in before.nodes:
        waiting.setdefault(node.label, deque()).append(node)
    paired = []
    for node in after.nodes:
        labels = node.nodes or (node.label,)
        paired.append(Pair(tuple(waiting[label].popleft() for label in labels if waiting.get(label)), node))
    unpaired = [node for queue in waiting.values() for node in queue]
    return (*paired, *(Pair((node,), None) for node in unpaired))


def rows(node_pairs: Iterable[Pair], *, one_by_one: bool = False) -> tuple[TrafficRow, ...]:
    """Return the pairs summed by kind, by descending bytes before or after; pairs without traffic are omitted.

    `one_by_one`: a row for each node, by its name.
    """
    groups: dict[tuple[str, str], list[Pair]] = {}
    for pair in node_pairs:
        after = "" if pair.after is None else pair.after.kind
        before = short([n.kind for n in pair.before])
        same = before in (after, after.partition(": ")[2])
        named = f"{pair.after.name} ({after})" if one_by_one and pair.after is not None else after
        groups.setdefault((named, "" if same else before), []).append(pair)
    table_rows = [
        TrafficRow(
            len(members),
            after,
            before,
            sum(n.work.bytes for p in members for n in p.before),
            sum(p.after.work.bytes for p in members if p.after is not None),
            sum(p.after.work.flops for p in members if p.after is not None),
        )
        for (after, before), members in groups.items()
    ]
    return tuple(sorted((r for r in table_rows if r.bytes_before or r.bytes_after or r.flops), key=_weight))


def removed(before: ModelTraffic, after: ModelTraffic) -> Removed:
    """Return the intermediate values of `before` that no node of `after` writes."""
    eliminated = {v: size for v, size in before.intermediates.items() if v not in after.intermediates}
    return Removed(len(eliminated), len(before.intermediates), sum(eliminated.values()))


def _weight(row: TrafficRow) -> tuple[int, int, str]:
    return -max(row.bytes_before, row.bytes_after), -row.flops, row.after + row.before


def _node(expanded: ExpandedNode, model: Sized) -> NodeTraffic:
    node, op = expanded.proto, expanded.op
    name = node.name or next((v for v in node.output if v), node.op_type)
    if op is None:
        return NodeTraffic(
            name, node.op_type, node.op_type, (), traffic_estimate(expanded, model), product_type(expanded, model)
        )
    kind = f"{op.rule}: {short([n.op_type for n in op.body.node if n.op_type != ops.Constant])}"
    replaced = replaced_nodes(node, op)
    return NodeTraffic(
        name, kind, node.op_type, replaced, traffic_estimate(expanded, model), product_type(expanded, model)
    )


def _intermediates(model: Sized) -> dict[str, int]:
    """Return the bytes of the values between nodes. Reading a view counts as reading its source."""
    source: dict[str, str] = {}
    sizes: dict[str, int] = {}
    read: set[str] = set()
    for expanded in model.nodes:
        node = expanded.proto
        if (node.op_type in ON_HOST and not node.domain) or model.on_host.issuperset(node.output):
            continue
        if node.op_type in VIEWS and not node.domain:
            source[node.output[0]] = source.get(node.input[0], node.input[0])
            continue
        read |= {source.get(v, v) for v in node.input if v}
        sizes.update((v, model.bytes_of(v) or 0) for v in node.output if v and v not in model.outputs)
    return {v: size for v, size in sizes.items() if v in read and size}
