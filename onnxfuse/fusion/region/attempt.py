"""State of one fusion attempt: its anchor, the region grown so far, and its constraints."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from onnxfuse import ops
from onnxfuse.cuda import Growth
from onnxfuse.fusion.region.choices import Choices
from onnxfuse.fusion.region.make_op import Made, Realization
from onnxfuse.fusion.region.weight_index import WeightIndex
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model.fused import DOMAIN, FusedOp, replaced_nodes
from onnxfuse.rules.language.fuse_table import Anchor, Fuse
from onnxfuse.rules.match.cause import Cause
from onnxfuse.rules.match.equal_attempts import EqualAttempts, Surroundings
from onnxfuse.rules.match.match import Refusal
from onnxfuse.shapes.types import Dim, ValueType, shapes_differ

FUSED = "already fused"
"""Why a fused op joins no region; `Attempt.stop` says which node of it is beside the region, and which rule took it."""


@dataclass(frozen=True)
class GraphContext:
    """Facts about the graph that every attempt must respect."""

    host: frozenset[str]
    """Values placed on the CPU."""
    once: frozenset[str]
    """Values that are folded when the session is created."""
    choices: Choices | None
    """Decisions from measurements; None to use the rules' cost conditions."""
    heads: Mapping[str, Sequence[Anchor]]
    """Anchors of rules whose kernels absorb the pointwise work after them, by root operator."""
    ops: dict[str, FusedOp]
    """Fused ops so far, by name."""
    transposes: Mapping[str, Node]
    """Transposes of weights, by their substitute weights."""
    weights: WeightIndex
    """The graph's weights by their transposes."""
    equal: EqualAttempts
    """Matches of anchors, and refusals: found once for equal surroundings."""
    decodes: bool
    """Whether the graph keeps a cache: an open number of tokens is one in most of its runs."""
    alone: set[Node] = field(default_factory=set)
    """Nodes that measured faster unfused."""
    siblings: dict[str, dict[tuple[tuple[Dim, ...] | None, bool], dict[Node, Surroundings | None]]] = field(
        default_factory=dict
    )
    """While one rule is tried: unfused anchors that read a value, by that value, then by the shape of the first one's
    result and whether all must have it; each with what its match met.
    """

    failed: dict[Hashable, str] = field(default_factory=dict)
    """Why regions of sibling anchors have no kernel, by rule and outline: the next anchor often grows an equal one.

    That stays so when an op is made: an op that is there already would be planned for fewer GPUs at its next location,
    but one that has no plan for some has none there either.
    """
    made: Made = field(default_factory=dict)
    """What regions became: equal layers of a model are written as an op once."""

    @cached_property
    def off_gpu(self) -> frozenset[str]:
        """Values that are placed on the CPU, or folded when the session is created."""
        return self.host | self.once

    def fused(self, nodes: Sequence[Node]) -> None:
        """Drop nodes that are fused now from the anchors that may still join another one."""
        for node in nodes:
            for candidates in (c for v in node.reads for c in self.siblings.get(v, {}).values()):
                candidates.pop(node, None)


@dataclass(frozen=True)
class Start:
    """The matched anchor from which a region grows."""

    root: Node
    """The node tried as anchor."""
    value: str
    """Its output."""
    seeds: tuple[Node, ...] = ()
    """Initial nodes of the region."""
    kept: tuple[Node, ...] = ()
    """Nodes of the anchor that stay with the library."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Values bound to the anchor's inputs."""
    realization: Realization | None = None
    """The library form of the whole anchor, if the rule has one."""
    template: str = ""
    """The template, if different from the rule's."""
    fallback: str = ""
    """Template if no kernel can be generated for the anchor; empty: then nothing is fused."""
    cost: str = ""
    """The rule's failed cost condition, where measuring decides instead."""


@dataclass
class Region:
    """Nodes that become one fused op, and why it did not grow further."""

    nodes: dict[Node, None]
    work: ValueType
    """Iteration shape of the kernel: every interior node computes a value of this shape."""
    template: str
    """The kernel's template: some read operands with fewer kinds of broadcasting than ONNX allows."""
    reduced: list[tuple[Dim, ...] | None] = field(default_factory=list)
    """Shapes after the reduction of `work`, with or without unit axes: interior nodes may have them too."""
    axes: frozenset[int] | None = None
    """Reduced axes, if further reductions over the same axes may join; None if none may."""
    broadcast: tuple[Dim, ...] | None = None
    """Shape of a value that is broadcast to `work`: interior nodes may compute values of it, redundantly per
    element.
    """
    stops: dict[Node, str] = field(default_factory=dict)
    """Adjacent nodes that stayed outside, with the reason."""
    left: dict[Node, str] = field(default_factory=dict)
    """Nodes that must not join, with the reason."""
    siblings: tuple[Node, ...] = ()
    """Further anchors that joined: each may have as many tensors as a single anchor."""
    uneven: tuple[ValueType, ...] = ()
    """Output shapes of siblings with another number of columns: interior nodes may have these shapes, too."""

    def work_of(self, shape: tuple[Dim, ...] | None) -> ValueType | None:
        """Return the iteration shape to which a node with this output shape belongs, None if there is none."""
        return next((w for w in (self.work, *self.uneven) if not shapes_differ(shape, w.shape)), None)


@dataclass
class Attempt:
    """State passed to each growth step, which modifies the region."""

    graph: Graph
    rule: str
    how: Fuse
    start: Start
    around: GraphContext
    region: Region
    even: bool
    """Whether sibling anchors must have equal columns."""
    nodes: list[Node] = field(default_factory=list)
    """The nodes of the op's body in order, once growth is complete."""
    given: list[Node] = field(default_factory=list)
    """The nodes of the graph that it replaces: some of the body read weights in another layout."""
    extra: tuple[Node, ...] = ()
    """Nodes that join if the kernel can still be made with them."""

    def input(self, kind: Growth) -> str:
        """Return the value that this step applies to."""
        step = self.how.step(kind)
        assert step is not None
        return self.start.inputs[step.input]

    @property
    def seeds(self) -> tuple[Node, ...]:
        """The anchors' nodes."""
        return (*self.start.seeds, *self.region.siblings)

    def stops(self) -> tuple[Refusal, ...]:
        """Return why the region did not grow further."""
        return tuple(self.stop(n, reason) for n, reason in self.region.stops.items())

    def stop(self, node: Node, reason: str) -> Refusal:
        """Return why the region did not grow by a neighbour: of a fused op, which node is beside it, and who took it.

        That node is named as in the original model.
        """
        depth = len(self.region.nodes)
        op = self.around.ops.get(node.op) if node.domain == DOMAIN and reason == FUSED else None
        if op is None:
            return Refusal(node.name, Cause("outside", seen=reason), depth)
        operator, _, name = self._adjacent(node, op).partition(" ")
        return Refusal(name, Cause("fused", subject=operator, seen=op.name, wanted=op.rule), depth)

    def _adjacent(self, node: Node, op: FusedOp) -> str:
        """Return the replaced node of a fused op that reads a value of the region or computes one for it, as "Op name";
        its first one if views lie between."""
        inside = (*self.start.kept, *self.region.nodes)
        made, read = {o for n in inside for o in n.outputs if o}, {v for n in inside for v in n.reads}
        inputs = {formal for formal, v in zip(op.body.input, node.inputs, strict=False) if v in made}
        outputs = {formal for formal, v in zip(op.body.output, node.outputs, strict=False) if v in read}
        inner = [n for n in op.body.node if n.op_type != ops.Constant]
        called = replaced_nodes(node.proto, op)
        beside = (c for n, c in zip(inner, called, strict=True) if inputs & {*n.input} or outputs & {*n.output})
        return next(beside, called[0])

    def too_little(self, reason: str, stop: Refusal | None = None, of: str = "") -> Refusal:
        """Return that fusing here would save too little; `stop` is the neighbour at which growth ended.

        `of` says why for the hint: "movement" only moves data, "alone" has nothing pointwise next to it.
        """
        refusal = self.refusal(reason, "too little")
        if stop is not None and stop.cause.kind == "fused" and of != "movement":
            return refusal._replace(cause=stop.cause._replace(kind="too little", seen=reason, of="fused"))
        return refusal._replace(cause=refusal.cause._replace(of=of))

    def refusal(self, reason: str, kind: str) -> Refusal:
        """Return why nothing is fused here."""
        size = len(self.seeds) + max(min(self.how.least, self.how.between), 1)
        nodes = dict.fromkeys(n.name for n in (*self.start.kept, *self.region.nodes))
        return Refusal(self.start.root.name, Cause(kind, seen=reason), len(self.region.nodes), size, tuple(nodes))
