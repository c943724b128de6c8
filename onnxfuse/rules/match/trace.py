"""State of a match attempt: bindings so far, and the furthest point that all attempts at a node reached."""

import re
from dataclasses import dataclass, field

import numpy as np
import onnx

from onnxfuse.graph.graph import Node
from onnxfuse.model import schema
from onnxfuse.rules.match.cause import CONDITIONS, Cause
from onnxfuse.rules.match.refusal import Nearness, Refusal, nearness
from onnxfuse.rules.pattern.pattern import Pattern, PatternNode

Bound = str | np.ndarray
"""What a name of the pattern stands for: a value of the graph ("" for an absent one), or a constant that the model
holds as an attribute."""


@dataclass(slots=True)
class Match:
    """A place where a pattern stands; not frozen, which would take three times as long to fill."""

    pattern: Pattern
    """The pattern, with the spellings that stand here."""
    nodes: dict[PatternNode, Node] = field(default_factory=dict)
    values: dict[str, Bound] = field(default_factory=dict)
    """What each name of the pattern stands for."""
    labels: dict[str, schema.AttributeValue | tuple[onnx.AttributeProto, ...] | None] = field(default_factory=dict)
    """What each attribute label stands for."""

    def binding(self, name: str, operand: Bound) -> "Match":
        """Return it with one more name bound. Written out, as `copy` is: half a million are made for 5,000 nodes."""
        return Match(self.pattern, self.nodes, {**self.values, name: operand}, self.labels)

    def copy(self) -> "Match":
        """Return it with nodes and values that may be changed."""
        return Match(self.pattern, {**self.nodes}, {**self.values}, self.labels)

    def refusal(self, cause: Cause) -> Refusal:
        """Return why nothing is done at this place, where all of the pattern stands."""
        found = tuple(n.name for n in self.nodes.values())
        return Refusal(self.nodes[self.pattern.root].name, cause, len(found), len(found), found, whole=True)


class Trace:
    """Remembers the furthest point that a matching attempt reached."""

    def __init__(self, lenient: PatternNode | None = None) -> None:
        self.lenient = lenient
        """The node of the pattern whose attributes and outputs may be any: to see whether all else stands there."""
        self.unlike: tuple[PatternNode, Match] | None = None
        """Where attributes or outputs were others: the node of the pattern that was wanted, and what had matched."""
        self.steps = 0
        """Nodes that were compared with those of the pattern."""
        self.at: Node | None = None
        """Where the furthest point was."""
        self.missed: tuple[PatternNode, Match] | None = None
        """Where another operator stood: the node of the pattern that was wanted, and what had matched."""
        self._nearness: Nearness | tuple[()] = ()
        self._stopped: tuple[Cause, Match, bool, bool, int] | None = None

    def stop(
        self, node: Node, cause: Cause, match: Match, *, there: bool = False, whole: bool = False, held: int = 0
    ) -> bool:
        """Note that an attempt stopped here, with what had matched; return whether it is the furthest.

        `there`: the node's operator is right, too. `whole`: all of the pattern stood there, and so many of the
        conditions `held`.
        """
        depth = len(match.nodes) + there
        reached = nearness(depth, max(match.pattern.least - depth, 0), cause.kind, whole, held)
        if reached <= self._nearness:
            return False
        self._nearness, self._stopped = reached, (cause, match, there, whole, held)
        self.at, self.missed, self.unlike = node, None, None
        return True

    @property
    def nearness(self) -> Nearness | tuple[()]:
        """How far the furthest attempt got; less than any where there was none."""
        return self._nearness

    @property
    def furthest(self) -> Refusal | None:
        """What stopped the attempt that got furthest. It is put into words here: of ten stops one is the furthest."""
        if self._stopped is None or self.at is None:
            return None
        (cause, match, there, whole, held), at = self._stopped, self.at.name
        found = (*(n.name for n in match.nodes.values()), *([at] if there else []))
        size = max(match.pattern.least, len(found))
        names = _spoken_of(cause, match)
        return Refusal(at, cause, len(found), size, found, (at,), names, whole, held)


def _spoken_of(cause: Cause, match: Match) -> tuple[tuple[str, str], ...]:
    """Return the names of the pattern that the words of a condition have, with the values that they stand for."""
    if cause.kind not in CONDITIONS:
        return ()
    words = dict.fromkeys(
        word for call in re.findall(r"\w\(([^()]*)\)", cause.text) for word in re.findall(r"\w+", call)
    )
    bound = {word: match.values.get(word) for word in words}
    return tuple((word, value) for word, value in bound.items() if isinstance(value, str) and value not in ("", word))
