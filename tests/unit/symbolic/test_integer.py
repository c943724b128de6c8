"""An integer is one object however it is written, and computes as Python does."""

import copy
import math
import os
import pickle
import random
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from onnxfuse.symbolic.integer import Int, IntLike, bounds, ceiling, exact_division, exact_quotient, largest, smallest
from onnxfuse.symbolic.parsing import parsed

NAMES = ("a", "b", "c")

OPERATORS: list[tuple[str, Callable[[Any, Any], Any]]] = [
    ("+", lambda x, y: x + y), ("-", lambda x, y: x - y), ("*", lambda x, y: x * y), ("//", lambda x, y: x // y),
    ("%", lambda x, y: x % y), ("min", smallest), ("max", largest), ("ceiling", ceiling),
]  # fmt: skip

Plain = Callable[[dict[str, int]], int]
"""The same in Python's integers."""


def expression(chance: random.Random, depth: int, least: float) -> tuple[IntLike, Plain]:
    """Return a random expression, and the function that computes it."""
    if depth == 0 or chance.random() < 0.1:
        if chance.random() < 0.4:
            number = chance.randint(-6, 6)
            return number, lambda values: number
        name = chance.choice(NAMES)
        return Int.name(name, least), lambda values: values[name]
    kind, apply = chance.choice(OPERATORS)
    (x, left), (y, right) = (expression(chance, depth - 1, least) for _ in range(2))
    if kind in ("//", "%", "ceiling") and isinstance(y, int) and y == 0:
        y, right = 3, lambda values: 3
    plain: dict[str, Callable[..., int]] = {"min": min, "max": max, "ceiling": lambda a, b: -(-a // b)}
    compute: Callable[..., int] = plain.get(kind, apply)
    return apply(x, y), lambda values: compute(left(values), right(values))


def cases(least: float, count: int = 1500) -> list[tuple[IntLike, Plain, dict[str, int]]]:
    """Return random expressions of each depth with values of their names."""
    chance = random.Random(int(least) if math.isfinite(least) else 99)
    found = []
    for n in range(count):
        try:
            value, plain = expression(chance, 1 + n % 4, least)
        except OverflowError:
            continue
        low = int(least) if math.isfinite(least) else -20
        found.append((value, plain, {name: chance.randint(low, 20) for name in NAMES}))
    return found


@pytest.mark.parametrize("least", [-math.inf, 0, 1])
def test_its_value_is_that_of_python(least: float) -> None:
    """Rounding of negative numbers included; only what divides by zero may have another value than none."""
    checked = 0
    for value, plain, values in cases(least):
        try:
            expected = plain(values)
        except ZeroDivisionError:
            continue
        found = value.substitute(**values) if isinstance(value, Int) else value
        assert found == expected, (value, values)
        low, high = bounds(value)
        assert low <= expected <= high, (value, values)
        checked += 1
    assert checked > 1000


@pytest.mark.parametrize("least", [0, 1])
def test_parts_are_substituted_one_by_one(least: float) -> None:
    for value, _, values in cases(least, 400):
        if not isinstance(value, Int):
            continue
        try:
            whole = value.substitute(**values)
            step: IntLike = value
            for name, number in values.items():
                step = step.substitute(**{name: number}) if isinstance(step, Int) else step
        except ZeroDivisionError:
            continue
        assert step == whole, (value, values)


def test_identities_of_a_ring_are_one_object() -> None:
    """However a sum of products is written: equality is identity."""
    for (x, *_), (y, *_), (z, *_) in zip(*[iter(cases(0, 900))] * 3, strict=False):
        try:
            pairs = [
                (x + y, y + x), (x * y, y * x), ((x + y) + z, x + (y + z)), ((x * y) * z, x * (y * z)),
                (x * (y + z), x * y + x * z), (x - y, -(y - x)), (x + y - y, x), ((x - y) * (x + y), x * x - y * y),
                (2 * x - x, x), (x * 0, 0), (smallest(x, y), smallest(y, x)), (largest(x, x), x),
            ]  # fmt: skip
        except OverflowError:
            continue
        for one, other in pairs:
            assert one is other or one == other, (x, y, z)
            assert str(one) == str(other)


@pytest.mark.parametrize(
    "text",
    [
        "a.b/c", "odd(seq)", "odd(s)+1", "a b", "s//0", "a//", "", "²", "-3", "1e300*1e300", "9" * 5000,
        "s + " + "9" * 5000, "s**99", "(a/2)%3", "min(a/2, b)", "floor(a, b)",
        "(" * 500_000 + "s" + ")" * 500_000, "(" * 400 + "s" + ")" * 400,
        "1j", "a if b else c", "min()", "a,b", "(a,b)", "()", "a)(b",
    ],
)  # fmt: skip
def test_what_is_no_expression_is_one_name(text: str) -> None:
    """As it stands, whatever part of it could be read."""
    found = parsed(text)
    assert isinstance(found, Int)
    assert (found.is_name, found.names, str(found)) == (True, (text,), text)


def test_a_division_that_comes_out() -> None:
    a, b = Int.name("a"), Int.name("b")
    assert exact_quotient((a + b) * (a - 2), a + b) is a - 2
    assert exact_quotient(4 * a, 8) is None
    assert exact_quotient(a, 0) is None
    assert exact_quotient(7, 2) is None
    assert exact_quotient(0, a) == 0
    half = exact_division(a, 2)
    assert isinstance(half, Int)
    assert half.substitute(a=6) == 3
    with pytest.raises(ArithmeticError, match="7 is no multiple of 2"):
        half.substitute(a=7)
    with pytest.raises(ZeroDivisionError):
        a // 0


def test_bounds_follow_from_those_of_names() -> None:
    """As for a pooling: twice its outputs are at most its inputs and one."""
    height = Int.name("height", least=1)
    pooled = (height + 2 * 1 - 3) // 2 + 1
    assert isinstance(pooled, Int)
    assert str(pooled) == "((height-1)//2+1)"
    assert pooled.range == (1, math.inf)
    assert pooled.substitute(height=224) == 112
    twice = pooled * 2
    assert isinstance(twice, Int)
    assert twice.provably_at_most(height + 1)
    assert not twice.provably_at_most(height)
    assert smallest(height, 512) is smallest(512, height)
    assert bounds(smallest(height, 512)) == (1, 512)
    assert bounds(height % 8) == (0, 7)
    assert bounds(Int.name("few", 2, 5) * height) == (2, math.inf)


@pytest.mark.parametrize("text", ["N+B", "N-B", "B*N", "B*N*M-B*K", "N//B", "(B-N)//N", "(N%B)*(M%B)-K", "min(N-B,M)"])
def test_bounds_of_integers_that_no_double_holds(text: str) -> None:
    """A file may name an extent by any digits: the bounds hold, and an infinity stays one."""
    value = parsed(text.replace("B", "9" * 320))
    assert isinstance(value, Int)
    least, most = value.range
    for sizes in ({"N": 1, "M": 1, "K": 1}, {"N": 7, "M": 10**330, "K": 3}):
        at = value.substitute(**sizes)
        assert isinstance(at, int)
        assert least <= at <= most


def test_it_is_not_asked_whether_it_is_true() -> None:
    with pytest.raises(TypeError, match="whether n is zero is not known"):
        bool(Int.name("n"))


def test_a_copy_is_the_same_object() -> None:
    value = parsed("((h-2)//2+1)*min(9,s)")
    assert copy.deepcopy(value) is value
    assert pickle.loads(pickle.dumps(value)) is value


def test_threads_and_forked_processes_share_the_objects() -> None:
    """Two threads that make an integer at once get one object; a process forked meanwhile goes on."""
    with ThreadPoolExecutor(8) as threads:
        for n in range(50):
            made = list(threads.map(lambda _, n=n: parsed.__wrapped__(f"(h+{n})//2*thread{n}"), range(16)))
            assert len(set(map(id, made))) == 1
        held = [threads.submit(parsed.__wrapped__, f"(h+{n})*busy{n}") for n in range(2000)]
        child = os.fork()
        if not child:
            signal.alarm(20)
            os._exit(int(str(parsed("forked + 1")) != "(forked+1)"))
        assert os.waitpid(child, 0)[1] == 0
        assert all(f.result() is not None for f in held)


def test_what_grows_without_end_raises() -> None:
    """A sum of many names times itself, and a name times itself again and again."""
    many: IntLike = sum((Int.name(f"n{i}") for i in range(40)), 0)
    with pytest.raises(OverflowError):
        many * many
    with pytest.raises(OverflowError):
        Int.name("s") ** 300
