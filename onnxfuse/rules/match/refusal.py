"""Refusals: why a rule did not apply at a node, and how close it came."""

from dataclasses import dataclass

from onnxfuse.rules.match.cause import CONDITIONS, SPELLINGS, Cause

Nearness = tuple[bool, int, int, int]


def nearness(depth: int, missing: int, kind: str, whole: bool, held: int) -> Nearness:
    """Return what attempts compare by: more than the root's operator, then how much more is there than is missing.

    Of two alike, what the rule asks of all that stands there says more than a spelling that does not fit, the more the
    later it is asked, and a value that is not the one wanted says least: where operands go in any order, the wrong
    order ends so.
    """
    return depth > 1 or not missing, depth - missing, depth, 2 + held if whole else int(kind != "other value")


@dataclass(frozen=True)
class Refusal:
    """Why a rule did not apply, at the point where the attempt got furthest."""

    node: str
    """Name of the graph node at which it stopped."""
    cause: Cause
    """What stopped it."""
    depth: int
    """How many nodes of the pattern had matched before."""
    size: int = 0
    """How many nodes the pattern has, at the least, 0 where no pattern is behind it."""
    nodes: tuple[str, ...] = ()
    """Names of the graph nodes that had matched."""
    around: tuple[str, ...] = ()
    """Names of the node where it stopped and of those near it that would have joined next."""
    names: tuple[tuple[str, str], ...] = ()
    """Of the names of the pattern that the cause speaks of: the value of the model that each stands for."""
    whole: bool = False
    """Whether all of the pattern stood there, and what it computes inside, or the rule's conditions, stopped it."""
    held: int = 0
    """How many of the conditions held before that one."""

    @property
    def reason(self) -> str:
        """What stopped it, in words."""
        called = ", ".join(f"{name} is '{value}'" for name, value in self.names)
        return f"{self.cause.text} ({called})" if called else self.cause.text

    @property
    def missing(self) -> int:
        """How many nodes of the pattern had not matched."""
        return max(self.size - self.depth, 0)

    @property
    def alone(self) -> bool:
        """Whether it is the only thing in the way: all else of the pattern stood there."""
        return not self.missing or len(self.nodes) >= self.size

    @property
    def nearness(self) -> Nearness:
        """What attempts compare by."""
        return nearness(self.depth, self.missing, self.cause.kind, self.whole, self.held)

    @property
    def far(self) -> bool:
        """Whether hardly anything was there: nothing but the root's operator of a pattern of three nodes and more."""
        return self.size > 2 and self.depth <= (self.cause.kind in SPELLINGS)

    @property
    def near(self) -> bool:
        """Whether it is about the place at all: where another operator stands, as much was there as was missing; where
        another number or value does, more than one node.
        """
        if self.size == 1 or self.alone or self.cause.kind not in SPELLINGS | CONDITIONS:
            return True
        another = self.cause.kind in ("operator", "between", "operand", "not constant")
        return self.depth >= self.missing if another else self.depth > 1

    @property
    def trivial(self) -> bool:
        """Whether it tells nothing: hardly more than the root's operator was there."""
        return self.cause.kind in ("operator", "operand") and self.depth <= 1
