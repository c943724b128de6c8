"""Attempts at nodes whose surroundings are equal but for names: the first is made, the others end as it did.

An attempt depends on the answers that it gets from the graph, and asks in an order that follows from them. So the
attempts made form a tree: a question, an edge for each answer, and an outcome at the end. Values are numbered in the
order in which they are met, from the root on, and names occur neither in questions nor in answers: layers that differ
in the names of their weights share one path.
"""

import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, NamedTuple

from onnxfuse.graph.graph import Graph, Node, QueryRecord
from onnxfuse.rules.match.cause import Cause
from onnxfuse.rules.match.match import Match, Refusal
from onnxfuse.rules.pattern.pattern import PatternNode

Outcome = Match | Refusal | None

LARGEST = 100_000
"""Maximum number of questions that are kept, for memory: a thousand different nodes ask about twenty thousand."""

HUB = 16
"""Number of readers from which a value is known by its name: an answer is no longer than a pattern."""

FEW = 64
"""Number of elements up to which constants are compared by their data, and beyond by their names."""

MAYBE = frozenset({"arity", "other value"})
"""Kinds of causes whose fields may have a number in place of a name."""


class Aspect(Enum):
    """What a question asks of a value."""

    __hash__ = object.__hash__  # Enum's own is a function of Python

    DEFINITION = auto()
    """Its producer, type, and whether it is a constant or an output of the graph."""
    READERS = auto()
    DATA = auto()
    """The elements of a constant."""


@dataclass(slots=True, eq=False)
class _Question:
    """A step of an attempt: an aspect of the value with this number, and what follows each answer."""

    aspect: Aspect
    number: int
    after: "dict[Hashable, _Question | _End]" = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _End:
    """The end of an attempt, and with it of what was asked up to there: attempts of other rules go on from here."""

    outcome: "Callable[[Surroundings], Outcome] | None"
    """Returns the outcome with the names of other surroundings; None if it cannot be told apart from its names."""
    after: "dict[Hashable, _Question | _End]" = field(default_factory=dict)
    """The attempts at the same root that followed, by their key."""


class Surroundings:
    """What attempts at one root have met: values and nodes, numbered in that order."""

    def __init__(self, graph: Graph, root: Node, reach: set[str]) -> None:
        self.graph = graph
        self.version = graph.version
        self.reach = reach
        """Values that were asked about."""
        self.values: list[str] = []
        self.nodes: list[Node] = []
        self.numbers: dict[str, int] = {}
        self.asked: set[tuple[Aspect, int]] = set()
        self.end = _End(None)
        self.start = self._meet(root)

    def answer(self, aspect: Aspect, number: int) -> Hashable:
        """Return what is asked about a value, with numbers in place of names."""
        self.asked.add((aspect, number))
        graph, value = self.graph, self.values[number]
        self.reach.add(value)
        if aspect is Aspect.DEFINITION:
            maker, tensor = graph.producers.get(value), graph.initializers.get(value)
            known = None if tensor is None else (tensor.data_type, tuple(tensor.dims))
            produced = None if maker is None else self._meet(maker)
            return produced, graph.type(value), graph.is_constant(value), known, graph.is_output(value)
        if aspect is Aspect.READERS:
            readers = graph.readers(value)
            return tuple(map(self._meet, readers)) if len(readers) < HUB else (value, graph.rerouted.get(value))
        if (graph.element_count(value) or 0) > FEW:
            return value, graph.redefined.get(value)
        array = graph.constant(value)
        return None if array is None else (array.dtype.str, array.shape, array.tobytes())

    def is_current(self) -> bool:
        """Return whether all answers would be the same again."""
        graph = self.graph
        if self.version != graph.version:
            for aspect, number in self.asked:
                value = self.values[number]
                changes = graph.rerouted if aspect is Aspect.READERS else graph.redefined
                if changes.get(value, 0) > self.version:
                    return False
            self.version = graph.version
        return True

    def _meet(self, node: Node) -> Hashable:
        """Return a node as part of an answer; what it reads and computes gets numbers."""
        self.nodes.append(node)
        found, numbers = list[int](), self.numbers
        for value in (*node.outputs, *node.reads):
            number = numbers.get(value)
            if number is None:
                number = numbers[value] = len(numbers)
                self.values.append(value)
            found.append(number)
        return node.signature, tuple(found)


class EqualAttempts:
    """The attempts at the nodes of one graph so far."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._starts: dict[Hashable, _End] = {}
        self._around: dict[Node, Surroundings] = {}
        self._kept = 0

    def restart(self) -> None:
        """Begin anew at every root; what is known of equal ones stays."""
        self._around.clear()

    def state(self, root: Node) -> Surroundings | None:
        """Return what attempts at `root` have met: while it is the same object, they would end as they did."""
        around = self._around.get(root)
        return around if around is not None and around.is_current() else None

    def find(self, key: Hashable, root: Node, search: Callable[[], Outcome], reach: set[str] | None = None) -> Outcome:
        """Return the outcome of `search`, an attempt at `root` that depends on `key` and on the graph alone.

        The values that it depends on are added to `reach`.
        """
        around = self._around.get(root)
        if around is None or (around.version != self.graph.version and not around.is_current()):
            around = self._around[root] = Surroundings(self.graph, root, set() if reach is None else reach)
            around.end = self._starts.setdefault(around.start, _End(None))
        branches, at = around.end.after, key
        step = branches.get(at)
        while isinstance(step, _Question):
            branches, at = step.after, around.answer(step.aspect, step.number)
            step = branches.get(at)
        if step is not None and step.outcome is not None:
            around.end = step
            return step.outcome(around)
        outcome, queries = self._recorded(search)
        around.reach.update(queries.values, queries.readers)
        if step is None:
            step = self._insert(branches, at, around, queries, outcome)
        if step is None:
            del self._around[root]
        else:
            around.end = step
        return outcome

    def _recorded(self, search: Callable[[], Outcome]) -> tuple[Outcome, QueryRecord]:
        """Return the outcome of an attempt, and what it asked."""
        queries = self.graph.record()
        try:
            return search(), queries
        finally:
            self.graph.record()

    def _insert(
        self, branches: dict[Hashable, _Question | _End], at: Hashable, around: Surroundings, queries: QueryRecord,
        outcome: Outcome,
    ) -> _End | None:  # fmt: skip
        """Add what an attempt asked, and its outcome; return None if there is no room, or it went elsewhere."""
        waiting = [
            *((Aspect.DEFINITION, v) for v in queries.values),
            *((Aspect.READERS, v) for v in queries.readers),
            *((Aspect.DATA, v) for v in queries.data),
        ]
        while waiting and self._kept < LARGEST:
            # What has no number yet is met by an answer to another question.
            met = next((i for i, (_, v) in enumerate(waiting) if v in around.numbers), None)
            if met is None:
                return None
            aspect, value = waiting.pop(met)
            number = around.numbers[value]
            if (aspect, number) not in around.asked:
                question = branches[at] = _Question(aspect, number)
                branches, at = question.after, around.answer(aspect, number)
                self._kept += 1
        if waiting:
            return None
        self._kept += 1
        end = branches[at] = _End(_nameless(outcome, around))
        return end


# ---- outcomes with numbers in place of names


def _nameless(outcome: Outcome, around: Surroundings) -> Callable[[Surroundings], Outcome] | None:
    """Return the function that makes an outcome for equal surroundings, None if it cannot be made."""
    if outcome is None:
        return _nothing
    return _match(outcome, around) if isinstance(outcome, Match) else _refusal(outcome, around)


def _nothing(around: Surroundings) -> None:
    """The outcome of an attempt that is not worth a report."""


def _match(match: Match, around: Surroundings) -> Callable[[Surroundings], Match] | None:
    index = {node: i for i, node in enumerate(around.nodes)}
    bound = {name: v for name, v in match.values.items() if isinstance(v, str) and v}
    if any(n not in index for n in match.nodes.values()) or any(v not in around.numbers for v in bound.values()):
        return None
    nodes: list[tuple[PatternNode, int]] = [(wanted, index[n]) for wanted, n in match.nodes.items()]
    values = [(name, around.numbers[v] if name in bound else -1) for name, v in match.values.items()]  # type: ignore[index]  # bound ones are names

    def made(there: Surroundings) -> Match:
        return Match(
            match.pattern,
            {wanted: there.nodes[i] for wanted, i in nodes},
            {name: match.values[name] if n < 0 else there.values[n] for name, n in values},
            dict(match.labels),
        )

    return made


class _Named(NamedTuple):
    """A text that names a value or a node."""

    before: str
    number: int
    after: str
    of_node: bool

    def of(self, around: Surroundings) -> str:
        """Return the text with the name at another place."""
        name = around.nodes[self.number].name if self.of_node else around.values[self.number]
        return f"{self.before}{name}{self.after}"


def _refusal(refusal: Refusal, around: Surroundings) -> Callable[[Surroundings], Refusal] | None:
    index = _by_name(around)
    fields = _fields(refusal.cause, around, index)
    named = (refusal.node, *refusal.nodes, *refusal.around)
    if fields is None or any(n not in index for n in named) or any(v not in around.numbers for _, v in refusal.names):
        return None
    node, nodes, rest = index[refusal.node], [index[n] for n in refusal.nodes], [index[n] for n in refusal.around]
    values = [(name, around.numbers[value]) for name, value in refusal.names]
    _, known, depth, size, *_, whole, held = refusal

    def made(there: Surroundings) -> Refusal:
        at = there.nodes
        cause = _at_place(known, fields, there) if fields else known
        return Refusal(
            at[node].name,
            cause,
            depth,
            size,
            tuple([at[i].name for i in nodes]) if nodes else (),
            tuple([at[i].name for i in rest]) if rest else (),
            tuple([(name, there.values[i]) for name, i in values]) if values else (),
            whole,
            held,
        )

    return made


def _at_place(cause: Cause, fields: Mapping[str, _Named], around: Surroundings) -> Cause:
    """Return a cause with the names of other surroundings."""
    texts: dict[str, Any] = {name: text.of(around) for name, text in fields.items()}
    return cause._replace(**texts)


def _by_name(around: Surroundings) -> dict[str, int]:
    """Return the nodes that were met by their names, but for names that two of them have."""
    called: dict[str, Node] = {}
    unclear = {n.name for n in around.nodes if called.setdefault(n.name, n) is not n}
    return {n.name: i for i, n in enumerate(around.nodes) if n.name not in unclear}


_QUOTED = re.compile("(.*?')(.*)(')")


def _fields(cause: Cause, around: Surroundings, nodes: Mapping[str, int]) -> dict[str, _Named] | None:
    """Return the fields of a cause that name something of the model; None if one is not known from here."""
    if any(part.naming for part in cause.parts):
        return None
    found = dict[str, _Named]()
    for name in cause.naming:
        text = getattr(cause, name)
        quoted = _QUOTED.fullmatch(text)
        before, inner, after = quoted.groups() if quoted is not None else ("", text, "")
        operator, _, node = text.partition(" ")
        if inner in around.numbers:
            found[name] = _Named(before, around.numbers[inner], after, of_node=False)
        elif node in nodes:
            found[name] = _Named(f"{operator} ", nodes[node], "", of_node=True)
        elif quoted is not None or cause.kind not in MAYBE:
            return None
    return found
