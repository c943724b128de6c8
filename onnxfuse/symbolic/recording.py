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
from onnxfuse.symbolic.evaluation import evaluated, plain, step
from onnxfuse.symbolic.expressions import Expression, is_real
from onnxfuse.symbolic.facts import Facts
from onnxfuse.symbolic.integer import Atom, Int, of_atom
from onnxfuse.symbolic.operations import NAME, REAL, Value

T = TypeVar("T")

MOST_OUTCOMES = 96
"""Maximum execution paths of one candidate's key; beyond that, each branch is recorded."""


@dataclass
class DecisionNode:
    """A decision of the tree, or the result at a leaf."""

    condition: Expression | None = None
    """The expression whose value selects the child; None: nothing is recorded beyond."""
    children: dict[Value, DecisionNode] = field(default_factory=dict)
    answer: Any = None
    chooses: int = 0
    """Which choice of the run among candidates it is, counted from 1; 0 for a condition or a value."""


class ChangingError(AssertionError):
    """A planner branched differently on a path that it had taken before: it is not deterministic, a defect."""


@dataclass
class _Branches:
    """One path through a function, with predetermined outcomes of its conditions."""

    answers: list[bool]
    conditions: list[Atom] = field(default_factory=list)


class _TooManyError(Exception):
    """More paths than MOST_OUTCOMES, or one that raises."""


class Recording:
    """One run along a path from the root of a tree; new decisions are added to it."""

    def __init__(self, cache: dict[tuple[Any, ...], Any], root: DecisionNode, dims: Sequence[int]) -> None:
        self.cache, self.at = cache, root
        self.facts = Facts()
        self.branches: _Branches | None = None
        self.deciding = False
        self.choices = 0
        """Choices among candidates so far; not every one is a decision."""
        self.pinned: dict[Expression, Value] = {}
        self.pins: list[str] = []
        """Descriptions of specialized values."""
        self.values = extents_of(dims)

    def dim(self, index: int) -> Any:
        """Return an extent of the inputs as a traced number."""
        return traced_numbers.traced(self, extent(index))

    def value_of(self, expression: Expression) -> Value:
        """Return the value of an expression for the extents of this run; raises `UnansweredError`."""
        return evaluated(expression, self.values)

    # ---- queries by traced numbers

    def holds(self, condition: Atom) -> bool:
        """Return whether a condition holds, and assume that from here on."""
        if condition.op == "not":
            return not self.holds(condition.args[0])
        implied = self.facts.implied(condition)
        if implied is not None:
            return implied
        if self.branches is None:
            answer = bool(self.value_of(condition))
            self.decide(condition, int(answer))
        else:
            branches = self.branches
            if len(branches.conditions) == len(branches.answers):
                branches.answers.append(True)
            answer = branches.answers[len(branches.conditions)]
            branches.conditions.append(condition)
        self.facts.assume(condition, answer)
        return answer

    def canonical(self, expression: Expression) -> Expression:
        """Return an expression in the names that are left: no name that equals something else on this path."""
        return self.facts.canonical(expression)

    def pin(self, expression: Expression) -> Value:
        """Return the value in this run, and specialize everything that follows to it."""
        value = self.value_of(expression)
        if is_real(expression):
            for name in _names(expression):
                self.pin(name)
        elif expression not in self.pinned:
            if self.facts.range(expression) != (value, value):
                self.pins.append(str(expression))
                self.decide(expression, value)
            self.pinned[expression] = value
            if isinstance(expression, Int):
                self.facts.narrow(expression, (value, value))
        return value

    def decide(self, expression: Expression, value: Value, chooses: int = 0) -> None:
        """Branch on the value of an expression."""
        if self.at.condition is None:
            if self.at.answer is not None:
                raise ChangingError("asked beyond an answer")
            self.at.condition, self.at.chooses = expression, chooses
        elif self.at.condition is not expression:
            raise ChangingError(f"asked {expression}, before {self.at.condition}")
        self.at = self.at.children.setdefault(value, DecisionNode())

    # ---- choices

    def outcomes(self, work: Callable[[], T]) -> T:
        """Return the result of `work` as one expression over all its paths. It must have no side effects."""
        paths: list[tuple[list[Atom], list[bool], Any]] = []
        answers: list[bool] = []
        facts, pinned = self.facts, self.pinned
        try:
            while True:
                self.facts, self.pinned = facts.copy(), dict(pinned)
                self.branches = _Branches(list(answers))
                result = work()
                paths.append((self.branches.conditions, self.branches.answers, result))
                answers = list(self.branches.answers)
                while answers and not answers[-1]:
                    answers.pop()
                if not answers:
                    break
                answers[-1] = False
                if len(paths) > MOST_OUTCOMES:
                    raise _TooManyError
        except UnsupportedError as error:  # on a path that these numbers may never take
            raise _TooManyError from error
        finally:
            self.facts, self.pinned, self.branches = facts, pinned, None
        merged: T = self._merged(paths, 0)
        return merged

    def merged(self, work: Callable[[], T]) -> T:
        """Return the same; with too many paths, the current one."""
        if self.branches is not None:
            return work()
        try:
            return self.outcomes(work)
        except _TooManyError:
            return work()

    def _merged(self, paths: list[tuple[list[Atom], list[bool], Any]], depth: int) -> Any:
        if len(paths) == 1:
            return paths[0][2]
        condition = paths[0][0][depth]
        yes = self._merged([f for f in paths if f[1][depth]], depth + 1)
        no = self._merged([f for f in paths if not f[1][depth]], depth + 1)
        return traced_numbers.selected(traced_numbers.traced(self, condition), yes, no)

    def choose(
        self, candidates: Sequence[T], key: Callable[[T], Any], where: Callable[[T], Any] | None, most: bool
    ) -> T | None:
        """Return the first candidate with the minimum, or maximum, key among those for which `where` holds.

        One decision for any number of candidates.
        """
        self.choices += 1
        if self.at.condition is not None and self.at.chooses == self.choices:
            expression = self.at.condition  # the same candidates as before: the planner took the same path
        else:
            try:
                best = self._best(candidates, key, where, most)
            except _TooManyError:
                return choose_untraced(candidates, key, where, most)
            if isinstance(best, int):
                return candidates[best] if best >= 0 else None
            expression = best.expression
        index = int(self.value_of(expression))
        self.decide(expression, index, self.choices)
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


def extent(index: int) -> Int:
    """Return the name of an input's extent, by its index among all of them."""
    return Int.name(f"d{index}")


def extents_of(dims: Sequence[int]) -> dict[Expression, Value]:
    """Return the values of the names of extents, to evaluate expressions."""
    return {plain(extent(index)): n for index, n in enumerate(dims)}


def _names(expression: Expression) -> list[Int]:
    """Return the names that an expression depends on, in their order."""
    names: dict[str, Int] = {}
    seen, waiting = set[Expression](), [plain(expression)]
    while waiting:
        at = waiting.pop()
        if at in seen or (isinstance(at, Atom) and at.op == REAL):
            continue
        seen.add(at)
        if isinstance(at, Atom) and at.op == NAME:
            names[at.text] = of_atom(at)
        elif not isinstance(at, int):
            waiting.extend(step(at)[1])
    return [names[name] for name in sorted(names)]


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
