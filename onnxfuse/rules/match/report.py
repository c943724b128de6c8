"""Report of an optimization: applied rules, refusals, and their reasons, as plain data for the command line, JSON and
tests.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from onnxfuse.graph.graph import Node
from onnxfuse.rules.match.match import Refusal
from onnxfuse.support.plurals import plural
from onnxfuse.support.text_tables import Table, Tabled


@dataclass(frozen=True)
class Applied:
    """One place where a rule was applied."""

    rule: str
    op: str
    """The fused op, or "" for a rewrite."""
    nodes: tuple[str, ...]
    """The original nodes, as "Op name"."""
    stops: tuple[Refusal, ...] = ()
    """Why it did not grow further: its neighbours that stayed outside."""
    outputs: tuple[str, ...] = ()
    """The values that the fused op computes: with its name, its place in the model."""
    kept: tuple[str, ...] = ()
    """The values that the library computes for it: its anchor, where a rule leaves that to the library."""
    cost: str = ""
    """Why the rule would not have applied without measuring: what it says of the kernel's cost there."""
    library: bool = False
    """Whether the rule's own form through the library's op is another way to compute it."""


@dataclass(frozen=True)
class Near:
    """One place where a rule did not apply, at the point where the attempt got furthest."""

    rule: str
    root: str
    """The node that the attempt started from, as "Op name"."""
    refusal: Refusal


@dataclass(repr=False)
class OptimizeReport(Tabled):
    """What was done to a model, and what was not, and why."""

    applied: list[Applied] = field(default_factory=list)
    stopped: list[Near] = field(default_factory=list)
    """The furthest attempt of each rule at each root that it did not take, those that tell hardly anything included."""
    earlier: dict[tuple[str, str], Near] = field(default_factory=dict)
    """Those of rounds of rewriting before the last one, by rule and root: of nodes that are others since, too."""
    before: Counter[str] = field(default_factory=Counter)
    """Operators of the model as it came, bodies of If, Loop and Scan included."""
    after: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    """Time of each phase."""
    notes: list[str] = field(default_factory=list)
    """What a user should know of it: what was left alone for another reason than a rule's, and what would help."""

    def forget(self) -> None:
        """Begin anew to say what stopped; what was said becomes what stopped earlier."""
        self.earlier.update({(n.rule, n.root): n for n in self.stopped})
        self.stopped.clear()

    def add(self, later: "OptimizeReport") -> None:
        """Go on with what was done to the same model after all that is said here."""
        self.forget()
        self.applied += later.applied
        self.stopped += later.stopped
        self.earlier.update(later.earlier)
        self.notes += later.notes

    def attempts(self) -> list[Near]:
        """Return the last attempt of each rule at each root that it did not take, those at nodes that are others since
        included.
        """
        done = {(a.rule, node) for a in self.applied for node in a.nodes}
        last = {at: n for at, n in self.earlier.items() if at not in done}
        last.update({(n.rule, n.root): n for n in self.stopped})
        return list(last.values())

    def table(self) -> Table:
        """Return how often each rule applied, and where first."""
        first = {a.rule: a.nodes for a in reversed(self.applied)}
        rows = [(rule, str(n), ", ".join(first[rule][:1])) for rule, n in self.by_rule().items()]
        verdict = f"{plural(self.applied, 'fusion')}: {plural(self.before.total(), 'node')} -> {self.after.total()}"
        return Table(verdict, ("rule", "applied", "first at"), rows, list(self.by_rule().values()))

    @property
    def near(self) -> list[Near]:
        """The attempts that got further than the root's operator."""
        return [n for n in self.stopped if not n.refusal.trivial]

    def by_rule(self) -> Counter[str]:
        """Return how often each rule was applied."""
        return Counter(a.rule for a in self.applied)


def names(nodes: Sequence[Node]) -> tuple[str, ...]:
    """Return the nodes as a person reads them: "Op name"."""
    return tuple(f"{n.op} {n.name}" for n in nodes)
