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
"""Binding of a pattern name: a graph value ("" for an absent one), or a constant that the model holds as an
attribute.
"""

Labels = dict[str, schema.AttributeValue | tuple[onnx.AttributeProto, ...] | None]
"""Bindings of attribute labels."""


@dataclass(slots=True)
class Match:
    """A match of a pattern; not frozen, which would take three times as long to construct."""

    pattern: Pattern
    """The pattern, with the matched spellings."""
    nodes: dict[PatternNode, Node] = field(default_factory=dict)
    values: dict[str, Bound] = field(default_factory=dict)
    """Bindings of the pattern's names."""
    labels: Labels = field(default_factory=dict)

    def binding(self, name: str, operand: Bound) -> "Match":
        """Return a copy with one more binding. Written out, as 5,000 nodes create half a million."""
        return Match(self.pattern, self.nodes, {**self.values, name: operand}, self.labels)

    @property
    def replaced(self) -> list[Node]:
        """The nodes that a rewrite replaces: all but those that stay."""
        staying = self.pattern.staying
        return [node for wanted, node in self.nodes.items() if wanted not in staying]

    def refusal(self, cause: Cause) -> Refusal:
        """Return a refusal of this complete match."""
        found = tuple(n.name for n in self.nodes.values())
        return Refusal(self.nodes[self.pattern.root].name, cause, len(found), len(found), found, whole=True)


class Trace:
    """Records the furthest point that a match attempt reached."""

    def __init__(self, lenient: PatternNode | None = None) -> None:
        self.lenient = lenient
        """Pattern node whose attributes and outputs are ignored, to test whether the rest matches."""
        self.unlike: tuple[PatternNode, Match] | None = None
        """On mismatched attributes or outputs: the expected pattern node, and the partial match."""
        self.steps = 0
        """Number of node comparisons."""
        self.at: Node | None = None
        """Location of the furthest point."""
        self.missed: tuple[PatternNode, Match] | None = None
        """On a mismatched operator: the expected pattern node, and the partial match."""
        self._nearness: Nearness | tuple[()] = ()
        self._stopped: tuple[Cause, Match, bool, bool, int] | None = None

    def stop(
        self, node: Node, cause: Cause, match: Match, *, there: bool = False, whole: bool = False, held: int = 0
    ) -> bool:
        """Record that an attempt stopped here, with its partial match; return whether it is the furthest.

        `there`: the node's operator matched, too. `whole`: the whole pattern matched, and `held` conditions held.
        """
        depth = len(match.nodes) + there
        reached = nearness(depth, max(match.pattern.least - depth, 0), cause.kind, whole, held)
        if reached <= self._nearness:
            return False
        self._nearness, self._stopped = reached, (cause, match, there, whole, held)
        self.at, self.missed, self.unlike = node, None, None
        return True

    def is_beaten(self, match: Match, held: int) -> bool:
        """Return whether a whole match that stops after at most `held` conditions got no further than another one."""
        depth = len(match.nodes)
        return nearness(depth, max(match.pattern.least - depth, 0), "", whole=True, held=held) <= self._nearness

    @property
    def nearness(self) -> Nearness | tuple[()]:
        """Progress of the furthest attempt; below any if there was none."""
        return self._nearness

    @property
    def furthest(self) -> Refusal | None:
        """Refusal of the furthest attempt. Its text is built here: of ten stops one is the furthest."""
        if self._stopped is None or self.at is None:
            return None
        (cause, match, there, whole, held), at = self._stopped, self.at.name
        found = (*(n.name for n in match.nodes.values()), *([at] if there else []))
        size = max(match.pattern.least, len(found))
        names = _spoken_of(cause, match)
        return Refusal(at, cause, len(found), size, found, (at,), names, whole, held)


def _spoken_of(cause: Cause, match: Match) -> tuple[tuple[str, str], ...]:
    """Return the pattern names that a condition mentions, with their values."""
    if cause.kind not in CONDITIONS:
        return ()
    words = dict.fromkeys(
        word for call in re.findall(r"\w\(([^()]*)\)", cause.text) for word in re.findall(r"\w+", call)
    )
    words.update(dict.fromkeys(re.findall(r"\bof (\w+)", cause.text) if cause.kind in ("extent", "unknown") else ()))
    words.update(dict.fromkeys(axis.value for axis in cause.axes))
    bound = {word: match.values.get(word) for word in words}
    return tuple((word, value) for word, value in bound.items() if isinstance(value, str) and value not in ("", word))
