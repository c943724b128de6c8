"""State of one fusion attempt: its anchor, the region grown so far, and its constraints."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from onnxfuse.cuda import Growth
from onnxfuse.fusion.region.choices import Choices
from onnxfuse.fusion.region.make_op import Made, Realization
from onnxfuse.fusion.region.weight_index import WeightIndex
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model.fused import FusedOp
from onnxfuse.rules.language.fuse_table import Anchor, Fuse
from onnxfuse.rules.match.cause import Cause
from onnxfuse.rules.match.equal_attempts import EqualAttempts, Surroundings
from onnxfuse.rules.match.match import Refusal
from onnxfuse.shapes.types import Dim, ValueType, shapes_differ


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
        return tuple(
            Refusal(n.name, Cause("outside", seen=reason), len(self.region.nodes))
            for n, reason in self.region.stops.items()
        )

    def refusal(self, reason: str, kind: str) -> Refusal:
        """Return why nothing is fused here."""
        size = len(self.seeds) + max(min(self.how.least, self.how.between), 1)
        nodes = dict.fromkeys(n.name for n in (*self.start.kept, *self.region.nodes))
        return Refusal(self.start.root.name, Cause(kind, seen=reason), len(self.region.nodes), size, tuple(nodes))
