"""Symbolic tracing of a planner: each undecided branch on a traced number becomes a node in a decision tree."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from onnxfuse.symbolic import traced_numbers
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.expressions import DIM, INTEGER, REAL, ExpressionGraph, Value

T = TypeVar("T")
LOW, HIGH = -(2**63), 2**63 - 1
"""Integer range: an evaluation outside raises."""

Range = tuple[int, int]

MOST_OUTCOMES = 96
"""Maximum execution paths of one candidate's key; beyond that, each branch is recorded."""


@dataclass
class DecisionNode:
    """A decision of the tree, or the result at a leaf."""

    asked: int | None = None
    """The expression whose value selects the child; None: nothing is recorded beyond."""
    children: dict[Value, DecisionNode] = field(default_factory=dict)
    answer: Any = None
    chooses: bool = False
    """Whether it selects among candidates."""


class ChangingError(AssertionError):
    """A planner branched differently on a path that it had taken before: it is not deterministic, a defect."""


@dataclass
class _Branches:
    """One path through a function, with predetermined outcomes of its conditions."""

    answers: list[bool]
    asked: list[int] = field(default_factory=list)


class _TooManyError(Exception):
    """More paths than MOST_OUTCOMES, or one that raises."""


class Recording:
    """One run along a path from the root of a tree; new decisions are added to it."""

    def __init__(self, graph: ExpressionGraph, root: DecisionNode, dims: Sequence[int]) -> None:
        self.graph, self.dims, self.at = graph, dims, root
        self.facts: dict[int, Range] = {}
        self.branches: _Branches | None = None
        self.deciding = False
        self.pinned: dict[int, int] = {}
        self.pins: list[str] = []
        """Descriptions of specialized values."""
        self.values: dict[int, Value] = {}

    def dim(self, place: int) -> Any:
        """Return an extent of the inputs as a traced number."""
        number = self.graph.node(DIM, place)
        self.facts.setdefault(number, (0, HIGH))
        return traced_numbers.expression(self, number, self.dims[place])

    # ---- queries by traced numbers

    def holds(self, condition: int, concrete: bool) -> bool:
        """Return whether a condition holds, and assume that from here on."""
        op, args = self.graph.nodes[condition]
        if op == "not":
            return not self.holds(int(args[0]), not concrete)
        known = self._implied(condition)
        if known is not None:
            if self.branches is None and known is not bool(concrete):
                raise ChangingError(f"{self.text(condition)} is {bool(concrete)}, and was known to be {known}")
            return known
        if self.branches is None:
            self.decide(condition, int(concrete))
            self._assume(condition, concrete)
            return concrete
        made = self.branches
        if len(made.asked) == len(made.answers):
            made.answers.append(True)
        answer = made.answers[len(made.asked)]
        made.asked.append(condition)
        self._assume(condition, answer)
        return answer

    def pin(self, number: int, concrete: Value) -> None:
        """Specialize everything that follows to this value."""
        if isinstance(concrete, float):  # pin the extents that it depends on
            for dim in self._dims_of(number):
                self.pin(dim, int(self.value_of(dim)))
            return
        if number in self.pinned:
            return
        if self._range(number) != (concrete, concrete):
            self.pins.append(self.text(number))
            self.decide(number, concrete)
        self.pinned[number] = int(concrete)

    def _dims_of(self, number: int) -> list[int]:
        found: dict[int, None] = {}
        waiting = [number]
        while waiting:
            op, args = self.graph.nodes[waiting.pop()]
            if op == DIM:
                found[self.graph.node(op, *args)] = None
            elif op not in (INTEGER, REAL):
                waiting.extend(int(a) for a in args)
        return sorted(found)

    def decide(self, number: int, value: Value, chooses: bool = False) -> None:
        """Branch on the value of an expression."""
        if self.at.asked is None:
            if self.at.answer is not None:
                raise ChangingError("asked beyond an answer")
            self.at.asked, self.at.chooses = number, chooses
        elif self.at.asked != number:
            raise ChangingError(f"asked {self.text(number)}, before {self.text(self.at.asked)}")
        self.at = self.at.children.setdefault(value, DecisionNode())

    # ---- known facts

    def _range(self, number: int, depth: int = 6) -> Range:
        """Return the known minimum and maximum of an integer."""
        op, args = self.graph.nodes[number]
        constant = self.graph.constant(number)
        if constant is not None:
            return (int(constant), int(constant))
        if number in self.pinned:
            return self.pinned[number], self.pinned[number]
        low, high = self.facts.get(number, (LOW, HIGH))
        if depth and op in _RANGES:
            found = _RANGES[op](*(self._range(int(a), depth - 1) for a in args))
            low, high = max(low, found[0]), min(high, found[1])
        return low, high

    def _implied(self, condition: int) -> bool | None:
        """Return a condition's value if it is implied, else None."""
        if condition in self.facts:
            low, high = self.facts[condition]
            if low == high:
                return bool(low)
        op, args = self.graph.nodes[condition]
        if op == "not":
            inner = self._implied(int(args[0]))
            return None if inner is None else not inner
        if op in ("and", "or"):
            sides = [self._implied(int(a)) for a in args]
            if (op == "or") in sides:
                return op == "or"
            return None if None in sides else op == "and"
        if op not in ("lt", "eq"):
            return None
        (a, b), (c, d) = self._range(int(args[0])), self._range(int(args[1]))
        if op == "lt":
            return True if b < c else False if a >= d else None
        if a == b == c == d:
            return True
        return False if b < c or d < a else None

    def _assume(self, condition: int, holds: bool) -> None:
        self.facts[condition] = (int(holds), int(holds))
        op, args = self.graph.nodes[condition]
        if op == "not":
            self._assume(int(args[0]), not holds)
        if (op == "and" and holds) or (op == "or" and not holds):
            for part in args:
                self._assume(int(part), holds)
        if op not in ("lt", "eq"):
            return
        x, y = (int(a) for a in args)
        (a, b), (c, d) = self._range(x), self._range(y)
        if op == "lt" and holds:
            self._narrow(x, LOW, d - 1)
            self._narrow(y, a + 1, HIGH)
        elif op == "lt":
            self._narrow(x, c, HIGH)
            self._narrow(y, LOW, b)
        elif holds:
            self._narrow(x, c, d)
            self._narrow(y, a, b)
        else:
            for number, (low, high), (other, same) in ((x, (a, b), (c, d)), (y, (c, d), (a, b))):
                if other == same:
                    self._narrow(number, low + (low == other), high - (high == other))

    def _narrow(self, number: int, low: int, high: int) -> None:
        if self.graph.constant(number) is None:
            had = self.facts.get(number, (LOW, HIGH))
            self.facts[number] = (max(had[0], low), min(had[1], high))

    # ---- choices

    def outcomes(self, work: Callable[[], T]) -> T:
        """Return the result of `work` as one expression over all its paths. It must have no side effects."""
        found: list[tuple[list[int], list[bool], Any]] = []
        answers: list[bool] = []
        facts = self.facts
        try:
            while True:
                self.facts, self.branches = dict(facts), _Branches(list(answers))
                result = work()
                found.append((self.branches.asked, self.branches.answers, result))
                answers = list(self.branches.answers)
                while answers and not answers[-1]:
                    answers.pop()
                if not answers:
                    break
                answers[-1] = False
                if len(found) > MOST_OUTCOMES:
                    raise _TooManyError
        except UnsupportedError as error:  # on a path that these numbers may never take
            raise _TooManyError from error
        finally:
            self.facts, self.branches = facts, None
        merged: T = self._merged(found, 0)
        return merged

    def merged(self, work: Callable[[], T]) -> T:
        """Return the same; with too many paths, the current one."""
        if self.branches is not None:
            return work()
        try:
            return self.outcomes(work)
        except _TooManyError:
            return work()

    def _merged(self, found: list[tuple[list[int], list[bool], Any]], depth: int) -> Any:
        if len(found) == 1:
            return found[0][2]
        condition = found[0][0][depth]
        value = self.value_of(condition)
        yes = self._merged([f for f in found if f[1][depth]], depth + 1)
        no = self._merged([f for f in found if not f[1][depth]], depth + 1)
        return traced_numbers.selected(traced_numbers.expression(self, condition, value), yes, no)

    def value_of(self, number: int) -> Value:
        """Return the value of an expression for the extents of this run."""
        return self.graph.evaluated(number, self.dims, self.values)

    def choose(
        self, candidates: Sequence[T], key: Callable[[T], Any], where: Callable[[T], Any] | None, most: bool
    ) -> T | None:
        """Return the first candidate with the minimum, or maximum, key among those for which `where` holds.

        One decision for any number of candidates.
        """
        if self.at.asked is not None and self.at.chooses:
            asked = self.at.asked  # the same candidates as before: the planner took the same path
        else:
            try:
                best = self._best(candidates, key, where, most)
            except _TooManyError:
                return choose_untraced(candidates, key, where, most)
            if isinstance(best, int):
                return candidates[best] if best >= 0 else None
            asked = best.number
        index = int(self.value_of(asked))
        self.decide(asked, index, chooses=True)
        return candidates[index] if index >= 0 else None

    def _best(
        self, candidates: Sequence[T], key: Callable[[T], Any], where: Callable[[T], Any] | None, most: bool
    ) -> Any:
        best_key: Any = None
        best: Any = -1
        any_yet: Any = False
        for index, candidate in enumerate(candidates):
            able = True if where is None else self.outcomes(partial(where, candidate))
            if able is False:
                continue
            cost = self.outcomes(partial(key, candidate))
            if best_key is None:
                best_key, best, any_yet = cost, traced_numbers.selected(able, index, -1), able
                continue
            better = traced_numbers.less(best_key, cost) if most else traced_numbers.less(cost, best_key)
            takes = traced_numbers.both(able, traced_numbers.either(traced_numbers.negated(any_yet), better))
            best_key = traced_numbers.selected(takes, cost, best_key)
            best = traced_numbers.selected(takes, index, best)
            any_yet = traced_numbers.either(any_yet, able)
        return best

    def text(self, number: int, depth: int = 4) -> str:
        """Return an expression as readable text."""
        op, args = self.graph.nodes[number]
        if op == DIM:
            return f"d{args[0]}"
        if self.graph.constant(number) is not None:
            return str(args[0])
        return f"{op}({', '.join(self.text(int(a), depth - 1) for a in args)})" if depth else "..."


def _product(a: Range, b: Range) -> Range:
    ends = [x * y for x in a for y in b]
    return min(ends), max(ends)


def _quotient(a: Range, b: Range) -> Range:
    if b[0] <= 0:
        return LOW, HIGH
    ends = [x // y for x in a for y in b]
    return min(ends), max(ends)


_RANGES: dict[str, Callable[..., Range]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _product,
    "floordiv": _quotient,
    "mod": lambda a, b: (0, b[1] - 1) if b[0] > 0 else (LOW, HIGH),
    "gcd": lambda a, b: (1 if a[0] > 0 or b[0] > 0 else 0, HIGH if a[0] <= 0 or b[0] <= 0 else min(a[1], b[1])),
    "bit_length": lambda a: (0, max(abs(a[0]), abs(a[1])).bit_length()),
    "shl": lambda a, b: (a[0] << b[0], a[1] << min(b[1], 64)) if a[0] >= 0 and 0 <= b[0] < 64 else (LOW, HIGH),
    "multiplier": lambda a, b: (0, 2**32 - 1) if b == (32, 32) else (LOW, HIGH),
    "select": lambda c, a, b: (min(a[0], b[0]), max(a[1], b[1])),
    **dict.fromkeys(("lt", "eq", "and", "or", "real_lt", "real_eq"), lambda a, b: (0, 1)),
    "not": lambda a: (0, 1),
}
"""Range of an operation's result."""


def choose_untraced(
    candidates: Sequence[T], key: Callable[[T], Any], where: Callable[[T], Any] | None, most: bool
) -> T | None:
    """Return the same as `Recording.choose` by comparing candidates one by one."""
    able = [c for c in candidates if where is None or where(c)]
    return (max if most else min)(able, key=key) if able else None


_current = threading.local()


def active() -> Recording | None:
    """Return this thread's recording."""
    return getattr(_current, "recording", None)


@contextmanager
def recorded(recording: Recording) -> Iterator[None]:
    """Record the planners of this thread, so that each choice is one decision."""
    before, _current.recording = active(), recording
    try:
        yield
    finally:
        _current.recording = before
