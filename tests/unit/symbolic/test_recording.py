"""A recording of traced numbers: its decisions, and what follows from them."""

import operator
import random
from collections.abc import Callable
from typing import Any

from onnxfuse.symbolic.branching import larger, least, most, smaller
from onnxfuse.symbolic.evaluation import evaluated
from onnxfuse.symbolic.facts import Facts
from onnxfuse.symbolic.integer import Atom, Int
from onnxfuse.symbolic.operations import UnansweredError
from onnxfuse.symbolic.recording import DecisionNode, Recording, extents_of, recorded
from onnxfuse.symbolic.traced_numbers import selected

OPERATORS: list[Callable[[Any, Any], Any]] = [
    operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod, smaller, larger,
    lambda x, y: selected(x < y, x + 1, y), lambda x, y: selected(x == y, 3, y - x), lambda x, y: (x <= y) + y,
    lambda x, y: -(-x // larger(y, 1)), lambda x, y: (x + y).bit_length(),
]  # fmt: skip


def value(chance: random.Random, names: list[Any], depth: int) -> Any:
    """Return a number that is computed at random from these."""
    if depth == 0:
        return chance.choice([*names, chance.randint(-3, 9)])
    return chance.choice(OPERATORS)(value(chance, names, depth - 1), value(chance, names, depth - 1))


def recording(*dims: int) -> tuple[Recording, list[Any]]:
    """Return a run for these extents, and them as the planner has them."""
    made = Recording({}, DecisionNode(), dims)
    return made, [made.dim(n) for n in range(len(dims))]


def test_a_recorded_number_has_the_value_that_python_gives() -> None:
    """Whatever is computed, however large it becomes, for other extents than those of the run, too."""
    checked = 0
    for seed in range(1500):
        dims = [random.Random(seed).randint(0, 9) for _ in range(3)]
        try:
            traced = value(random.Random(seed), recording(5, 6, 7)[1], 1 + seed % 5)
            plain = value(random.Random(seed), list(dims), 1 + seed % 5)
            if hasattr(traced, "expression"):
                assert evaluated(traced.expression, extents_of(dims)) == plain, (seed, str(traced.expression))
                checked += 1
        except (ZeroDivisionError, UnansweredError):
            continue
    assert checked > 700


def test_what_follows_from_a_path_holds() -> None:
    """A range has the value in it, and an implied condition the truth, after any conditions that were assumed."""
    implied = 0
    for seed in range(1000):
        chance = random.Random(seed)
        names = recording(*(chance.randint(0, 9) for _ in range(3)))[1]
        facts = Facts()
        for _ in range(8):
            try:
                x, y = (value(chance, names, chance.randint(0, 2)) for _ in range(2))
                condition = chance.choice([operator.lt, operator.eq, operator.ge])(x, y)
                if not isinstance(getattr(condition, "expression", None), Atom):
                    continue
                holds = bool(condition.value)
                known = facts.implied(condition.expression)
                assert known in (None, holds), (seed, str(condition.expression))
                implied += known is not None
                facts.assume(condition.expression, holds)
                for number in (x, y):
                    if isinstance(getattr(number, "expression", None), Int):
                        low, high = facts.range(number.expression)
                        assert low <= number.value <= high, (seed, str(number.expression))
            except (ZeroDivisionError, UnansweredError):
                continue
    assert implied > 100


def test_a_choice_without_a_decision_is_not_taken_for_the_next_one() -> None:
    """Also when the path is taken again: the first choice has constant keys, the second depends on the extent."""
    root, known = DecisionNode(), dict[tuple[Any, ...], Any]()

    def planned(extent: int) -> tuple[int | None, int | None]:
        run = Recording(known, root, (extent,))
        n = run.dim(0)
        with recorded(run):
            return least((8, 16), lambda tile: tile), most((8, 16), lambda tile: -(-n // tile) * (tile - 12))

    assert [planned(extent) for extent in (50, 60, 5)] == [(8, 16)] * 3
