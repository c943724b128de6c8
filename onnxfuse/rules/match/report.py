"""Report of an optimization: applied rules, refusals and reasons, as plain data for the CLI, JSON and tests."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rich.markup import escape

from onnxfuse.graph.graph import Node
from onnxfuse.model.fused import DOMAIN
from onnxfuse.rules.match.match import Refusal
from onnxfuse.support.plurals import fused_ops_text, plural
from onnxfuse.support.screen import Blocks, Line, Rows, Screen, plain_table


@dataclass(frozen=True)
class Applied:
    """One application of a rule."""

    rule: str
    op: str
    """The fused op, "" for a rewrite."""
    nodes: tuple[str, ...]
    """The original nodes, as "Op name"."""
    stops: tuple[Refusal, ...] = ()
    """Adjacent nodes that stayed outside, with the reason."""
    outputs: tuple[str, ...] = ()
    """Values that the fused op computes: with its name, they identify it in the model."""
    kept: tuple[str, ...] = ()
    """Values that the library computes: the anchor's, if the rule leaves the anchor to the library."""
    cost: str = ""
    """The rule's cost condition that failed, if measuring overrode it."""
    library: bool = False
    """Whether the rule's library form is an alternative implementation."""
    integers: bool = False
    """Whether the kernel multiplies 8-bit integers that the nodes dequantize."""
    root: str = ""
    """The node at which it began, as "Op name": that of `Near`, if the same attempt fails in another model."""


BY_NO_RULE = "none"
"""In place of the rule of an attempt: the operator's entry says why it stays."""


class Near(NamedTuple):
    """One near miss: the attempt of a rule that got furthest."""

    rule: str
    root: str
    """The node at the attempt's root, as "Op name"."""
    refusal: Refusal


@dataclass(frozen=True)
class QuantizedProduct:
    """What became of a product or a convolution whose activations the file quantizes."""

    node: str
    """The node as the file has it, as "Op name"."""
    is_integer: bool | None = None
    """Whether it sums integers now; None if it is gone: folded, shared with an equal one, or rewritten otherwise."""
    rule: str = ""
    """The rule that would have made integers of it, and refused; empty if there is none."""
    reason: str = ""
    """Why it stays floating-point."""
    dequantizes_once: bool = False
    """Whether its weight is dequantized when the model is optimized, not in every run."""


@dataclass(repr=False)
class OptimizeReport(Screen):
    """What an optimization changed, what it did not, and why."""

    applied: list[Applied] = field(default_factory=list)
    stopped: list[Near] = field(default_factory=list)
    """The furthest attempt of each rule at each root where it did not apply, uninformative ones included."""
    earlier: dict[tuple[str, str], Near] = field(default_factory=dict)
    """Those of earlier rewrite rounds, by rule and root: including nodes that were replaced since."""
    products: dict[str, QuantizedProduct] = field(default_factory=dict)
    """Products and convolutions of quantized activations, by name."""
    before: Counter[str] = field(default_factory=Counter)
    """Operators of the original model, bodies of If, Loop and Scan included."""
    after: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    """Time of each phase."""
    notes: list[str] = field(default_factory=list)
    """Notes for the user: what was not optimized for reasons other than a rule's, and what would help."""

    def forget(self) -> None:
        """Start a new round: refusals so far become earlier ones."""
        self.earlier.update({(n.rule, n.root): n for n in self.stopped})
        self.stopped.clear()

    def add(self, later: "OptimizeReport") -> None:
        """Append the report of a later optimization of the same model."""
        self.forget()
        self.applied += later.applied
        self.stopped += later.stopped
        self.earlier.update(later.earlier)
        # What stayed floating-point is read without its quantization later: the first reason is the right one.
        self.products.update(
            {name: p for name, p in later.products.items() if p.is_integer or name not in self.products}
        )
        self.notes += later.notes

    def attempts(self) -> list[Near]:
        """Return the last attempt of each rule at each root where it did not apply, replaced nodes included."""
        done = {(a.rule, node) for a in self.applied for node in a.nodes}
        last = {at: n for at, n in self.earlier.items() if at not in done}
        last.update({(n.rule, n.root): n for n in self.stopped})
        return list(last.values())

    @property
    def verdict(self) -> str:
        """Numbers of nodes before and after, and of fused ops after, in one line."""
        counts = f"{plural(self.before.total(), 'node')} -> {self.after.total()}"
        return f"{counts}, including {fused_ops_text(*fused_counts(self.after))}"

    def screen(self) -> Blocks:
        """Return how often each rule applied, and where first."""
        first, counts = {a.rule: a.nodes for a in reversed(self.applied)}, self.by_rule()
        yield Line(f"[bold]{self.verdict}[/]")
        table = plain_table("rule", "applied", "first at")
        for rule, count in counts.items():
            table.add_row(escape(rule), str(count), escape(", ".join(first[rule][:1])))
        if counts:
            yield Rows(table, bars=[*counts.values()])

    @property
    def near(self) -> list[Near]:
        """Attempts that got further than the root's operator."""
        return [n for n in self.stopped if not n.refusal.trivial]

    def by_rule(self) -> Counter[str]:
        """Return how often each rule applied."""
        return Counter(a.rule for a in self.applied)


def fused_counts(operators: Mapping[str, int]) -> tuple[int, int]:
    """Return the number of fused ops among counted operators, each node counted, and how many are distinct."""
    fused = [n for op, n in operators.items() if op.startswith(f"{DOMAIN}:")]
    return sum(fused), len(fused)


def names(nodes: Sequence[Node]) -> tuple[str, ...]:
    """Return display names of nodes: "Op name"."""
    return tuple(map(label, nodes))


def label(node: Node) -> str:
    """Return the display name of a node: "Op name"."""
    return f"{node.op} {node.name}"
