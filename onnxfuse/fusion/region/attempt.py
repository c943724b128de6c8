"""State of one fusion attempt: its anchor, the region grown so far, and its constraints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from onnxfuse.cuda import Growth
from onnxfuse.fusion.region.choices import Choices
from onnxfuse.fusion.region.make_op import Realization
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model.fused import FusedOp
from onnxfuse.rules.language.fuse_table import Anchor, Fuse
from onnxfuse.rules.match.cause import Cause
from onnxfuse.rules.match.match import Refusal
from onnxfuse.shapes.types import Dim, ValueType, shapes_differ


@dataclass(frozen=True)
class Surroundings:
    """What every attempt in a graph has to heed."""

    host: frozenset[str]
    """Values that live on the CPU."""
    once: frozenset[str]
    """Values that are computed before the first run."""
    choices: Choices | None
    """What was measured; None: what the rules say of cost holds."""
    heads: Mapping[str, Sequence[Anchor]]
    """Of the rules whose kernels take the pointwise work after them, by the operators that they end in."""
    ops: dict[str, FusedOp]
    """Those made so far, by their names."""
    transposes: Mapping[str, Node]
    """Transposes of weights, by the weights that stand for them."""
    alone: set[Node] = field(default_factory=set)
    """Nodes that were measured faster as they are."""


@dataclass(frozen=True)
class Start:
    """Where growth begins: what an anchor matched."""

    root: Node
    """The node that was asked."""
    value: str
    """What it computes."""
    seeds: tuple[Node, ...] = ()
    """Nodes that are in the region from the start."""
    kept: tuple[Node, ...] = ()
    """Nodes of the anchor that stay outside, for the library."""
    inputs: Mapping[str, str] = field(default_factory=dict)
    """The value that each input of the anchor stands for."""
    realization: Realization | None = None
    """The whole anchor through an op of the library, where the rule has one."""
    template: str = ""
    """The template, where it is not the rule's."""
    fallback: str = ""
    """The template where no kernel can be generated for the anchor; empty = then nothing is fused."""
    cost: str = ""
    """What the rule says against a kernel here, where measuring decides instead."""


@dataclass
class Region:
    """Nodes that become one fused op, and why it did not grow further."""

    nodes: dict[Node, None]
    work: ValueType
    """The shape that the kernel runs over: every node inside computes a value of this shape."""
    template: str
    """The kernel's template: some read operands in fewer ways than they can be broadcast."""
    reduced: list[tuple[Dim, ...] | None] = field(default_factory=list)
    """Shapes of what a reduction leaves of `work`, with axes of extent 1 or without: nodes inside may have them too."""
    axes: frozenset[int] | None = None
    """What the region reduces, where further reductions over the same axes may join; None: none may."""
    broadcast: tuple[Dim, ...] | None = None
    """The shape of a value that is broadcast to `work`: nodes inside may compute values of it, once for each place."""
    stops: dict[Node, str] = field(default_factory=dict)
    """Neighbours that stayed outside, with the reason."""
    left: dict[Node, str] = field(default_factory=dict)
    """Nodes that may not join, whatever they are, with the reason."""
    siblings: tuple[Node, ...] = ()
    """Anchors that joined the first one: each may have as many tensors as one alone."""
    uneven: tuple[ValueType, ...] = ()
    """What those compute that have other columns than the first one: nodes inside may be of these shapes, too."""

    def work_of(self, shape: tuple[Dim, ...] | None) -> ValueType | None:
        """Return the work that a node which computes a value of this shape is part of, None where of none."""
        return next((w for w in (self.work, *self.uneven) if not shapes_differ(shape, w.shape)), None)


@dataclass
class Attempt:
    """What each step of growth is given: it changes the region."""

    graph: Graph
    rule: str
    how: Fuse
    start: Start
    around: Surroundings
    region: Region
    even: bool = False
    """Whether anchors beside the first one have as many columns."""
    nodes: list[Node] = field(default_factory=list)
    """What the op is made of, in order, once the region grows no more."""
    given: list[Node] = field(default_factory=list)
    """The nodes of the model that it takes the place of."""
    extra: tuple[Node, ...] = ()
    """Nodes that join where the kernel then can be made, too."""

    def input(self, kind: Growth) -> str:
        """Return the value that this step is about."""
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
