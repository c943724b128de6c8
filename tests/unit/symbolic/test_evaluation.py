"""An expression is computed as the least work says, and only if each of its steps is exact in 64 bits."""

import math
import random
from collections.abc import Callable
from typing import Any

import pytest

from onnxfuse.symbolic.evaluation import evaluated, plain, step
from onnxfuse.symbolic.expressions import Expression, computed, equal, less, negated, real
from onnxfuse.symbolic.integer import Atom, Int, IntLike, ceiling, exact_division, largest, of_atom, smallest
from onnxfuse.symbolic.operations import OPERATIONS, UnansweredError, Value

A, B, C = Int.name("a"), Int.name("b"), Int.name("c")


def value(of: object, a: int, b: int = 1, c: int = 1) -> object:
    """Return an expression's value for these names."""
    assert isinstance(of, Int | Atom)
    return evaluated(of, dict(zip(map(plain, (A, B, C)), (a, b, c), strict=True)))


def parts(of: object) -> tuple[str, list[str]]:
    """Return the last operation of an expression, and its operands as text."""
    assert isinstance(of, Int | Atom)
    op, operands = step(of)
    return op, [str(o) for o in operands]


@pytest.mark.parametrize(
    ("of", "op", "operands"),
    [
        (A - B, "sub", ["a", "b"]),
        (A + B, "add", ["a", "b"]),
        (5 - A, "sub", ["5", "a"]),
        (-2 * A, "mul", ["a", "-2"]),
        (A * B * C, "mul", ["(a*b)", "c"]),
        # a common factor and the greatest divisor come out, so that there is one product less
        (6 * A * B + 4 * A, "mul", ["(3*b+2)", "(2*a)"]),
        (-6 * A - 4 * B, "mul", ["(3*a+2*b)", "-2"]),
    ],
)
def test_a_sum_is_computed_with_the_fewest_products(of: IntLike, op: str, operands: list[str]) -> None:
    """The last step, and what it takes."""
    found, taken = parts(of)
    assert (found, [o.strip("()") for o in taken]) == (op, [o.strip("()") for o in operands])


@pytest.mark.parametrize("numbers", [(0, 1), (1, 0), (7, 3), (3, 7), (8, 4), (1023, 1024)])
def test_operations_without_an_opcode_are_composed_of_others(numbers: tuple[int, int]) -> None:
    """Rounding up, minima, maxima, divisions that come out, and conditions on differences."""
    a, b = numbers
    assert value(ceiling(A, B + 1), a, b) == math.ceil(a / (b + 1))
    assert value(smallest(A, B, 5), a, b) == min(a, b, 5)
    assert value(largest(A, B, 5), a, b) == max(a, b, 5)
    assert value(exact_division(A * B, B + 0) if b else A, a, b) == a
    for of, truth in ((less(A, B), a < b), (less(B, A), b < a), (equal(A, B), a == b), (less(A, B + 3), a < b + 3)):
        assert isinstance(of, Atom)
        assert bool(value(of, a, b)) is truth
        assert bool(value(negated(of), a, b)) is not truth
    made = {op for e in (ceiling(A, B + 1), smallest(A, B)) for op in (parts(e)[0],)}
    assert made <= OPERATIONS.keys() - {"ceiling", "min", "max"}


def test_a_condition_compares_two_sides_and_computes_no_difference() -> None:
    """So it is right where the difference would not fit 64 bits."""
    condition = less(A - 3, B + 4)
    assert isinstance(condition, Atom)
    op, operands = parts(condition)
    assert op in ("lt", "not")
    assert not any("-" in o for o in operands)
    far = less(A * 3, B * 3)
    assert isinstance(far, Atom)
    assert bool(value(far, 2**60, 2**61)) is True


def test_each_part_is_computed_once_and_kept() -> None:
    """What another expression shares is not computed again: it is among the values."""
    product = A * B // (C + 2)
    values: dict[Expression, Value] = dict(zip(map(plain, (A, B, C)), (30, 4, 1), strict=True))
    assert evaluated(product + 7, values) == 47
    before = len(values)
    assert evaluated(product, values) == 40
    assert len(values) == before


def test_beyond_64_bits_and_by_zero_there_is_no_answer() -> None:
    """Also where the result of a larger expression would fit."""
    with pytest.raises(UnansweredError):
        value((A * A + 1) // B, 2**40, 2**40)
    with pytest.raises(UnansweredError):
        value(A // B, 1, 0)
    with pytest.raises(UnansweredError):
        value(A % B, 1, 0)
    assert value(A + B, 2**62, 2**62 - 1) == 2**63 - 1
    with pytest.raises(UnansweredError):
        value(A + B, 2**62, 2**62)


def test_a_sum_of_one_factor_is_that_factor() -> None:
    """So an integer, its one factor and that factor shared are one key."""
    quotient = A // B
    assert isinstance(quotient, Int)
    (only,) = [of for of in (plain(quotient),) if isinstance(of, Atom)]
    assert plain(of_atom(only)) is only
    assert plain(quotient + 1) is quotient + 1
    assert plain(real(0.5)) is real(0.5)


def test_random_expressions_have_the_value_that_python_gives() -> None:
    """Sums of products with quotients, remainders, minima and maxima inside."""
    operations: list[Callable[[Any, Any], Any]] = [
        lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, lambda x, y: x // (y * y + 1),
        lambda x, y: x % (y * y + 2), smallest, largest, lambda x, y: 12 * x - 18 * y,
    ]  # fmt: skip

    def made(chance: random.Random, names: tuple[IntLike, ...], depth: int) -> IntLike:
        if not depth:
            return chance.choice([*names, chance.randint(-4, 9)])
        return chance.choice(operations)(made(chance, names, depth - 1), made(chance, names, depth - 1))

    for seed in range(300):
        chance = random.Random(-seed - 1)
        numbers = tuple(chance.randint(0, 9) for _ in range(3))
        symbolic = made(random.Random(seed), (A, B, C), 1 + seed % 4)
        truth = made(random.Random(seed), numbers, 1 + seed % 4)
        got = symbolic if isinstance(symbolic, int) else value(symbolic, *numbers)
        assert got == truth, (seed, str(symbolic), numbers)


def test_operations_on_doubles_are_those_of_python() -> None:
    """A quotient of doubles, rounded down."""
    quotient = computed("real_div", computed("real_of", A), computed("real_of", B))
    assert value(quotient, 7, 2) == 3.5
    assert value(computed("floor", quotient), 7, 2) == 3
