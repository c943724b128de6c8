"""Refusals: why a rule did not apply at a node, and how close it came."""

from typing import NamedTuple

from onnxfuse.rules.match.cause import CONDITIONS, SPELLINGS, Cause

Nearness = tuple[bool, int, int, int]


def nearness(depth: int, missing: int, kind: str, whole: bool, held: int) -> Nearness:
    """Return the sort key of attempts: whether more than the root matched, then matched minus missing nodes.

    Between equal ones, a failed condition ranks above a structural mismatch, later conditions above earlier ones, and a
    wrong constant lowest: with commutative operands, the wrong order ends that way.
    """
    return depth > 1 or not missing, depth - missing, depth, 2 + held if whole else int(kind != "other value")


class Refusal(NamedTuple):
    """Why a rule did not apply: the attempt that got furthest. A tuple, as hundreds of thousands are made."""

    node: str
    """Name of the graph node at which it stopped."""
    cause: Cause
    """The cause."""
    depth: int
    """Number of pattern nodes matched before."""
    size: int = 0
    """Minimum number of nodes of the pattern, 0 if no pattern is involved."""
    nodes: tuple[str, ...] = ()
    """Names of the matched graph nodes."""
    around: tuple[str, ...] = ()
    """Names of the node where it stopped and of adjacent nodes that would have joined next."""
    names: tuple[tuple[str, str], ...] = ()
    """Model values bound to the pattern names that the cause mentions."""
    whole: bool = False
    """Whether the whole pattern matched, and a leaking value or a condition stopped it."""
    held: int = 0
    """Number of conditions that held before that one."""

    @property
    def reason(self) -> str:
        """The cause as text."""
        axes = [f"{a} is dim({a.value}, {a.index})" for a in self.cause.axes]
        called = ", ".join([*axes, *(f"{name} is '{value}'" for name, value in self.names)])
        return f"{self.cause.text} ({called})" if called else self.cause.text

    @property
    def missing(self) -> int:
        """Number of unmatched pattern nodes."""
        return max(self.size - self.depth, 0)

    @property
    def alone(self) -> bool:
        """Whether this is the only obstacle: the rest of the pattern matched."""
        return not self.missing or len(self.nodes) >= self.size

    @property
    def nearness(self) -> Nearness:
        """Sort key of attempts."""
        return nearness(self.depth, max(self.size - self.depth, 0), self.cause.kind, self.whole, self.held)

    @property
    def far(self) -> bool:
        """Whether hardly anything matched: only the root's operator of a pattern of three or more nodes."""
        return self.size > 2 and self.depth <= (self.cause.kind in SPELLINGS)

    @property
    def near(self) -> bool:
        """Whether the attempt is worth reporting: for a wrong operator, at least as many nodes matched as are missing;
        for a wrong number or value, more than one node.
        """
        if self.size == 1 or self.alone or self.cause.kind not in SPELLINGS | CONDITIONS:
            return True
        another = self.cause.kind in ("operator", "between", "operand", "not constant")
        return self.depth >= self.missing if another else self.depth > 1

    @property
    def trivial(self) -> bool:
        """Whether it is uninformative: hardly more than the root's operator matched."""
        return self.cause.kind in ("operator", "operand") and self.depth <= 1
