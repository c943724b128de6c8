"""Replacements for Python builtins that planners use on traced numbers; on plain numbers they behave the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import Any, TypeVar, cast

from onnxfuse.symbolic import traced_numbers
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.recording import active, choose_untraced

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])


def least(candidates: Iterable[T], key: Callable[[T], Any], where: Callable[[T], Any] | None = None) -> T | None:
    """Return the first candidate with the minimum key among those for which `where` holds; None if there is none.

    A recorded program branches once for all candidates, however `key` and `where` branch: they must have no side
    effects, and return a number, a truth value or a tuple of such.
    """
    return _chosen(candidates, key, where, False)


def most(candidates: Iterable[T], key: Callable[[T], Any], where: Callable[[T], Any] | None = None) -> T | None:
    """Return the first candidate with the maximum key; else like `least`."""
    return _chosen(candidates, key, where, True)


def _chosen(
    candidates: Iterable[T], key: Callable[[T], Any], where: Callable[[T], Any] | None, greatest: bool
) -> T | None:
    recording, options = active(), list(candidates)
    if recording is None or recording.branches is not None:
        return choose_untraced(options, key, where, greatest)
    return recording.choose(options, key, where, greatest)


def smaller(a: T, b: T) -> T:
    """Return the minimum of two numbers, the first if equal: `min` without recording a branch."""
    return cast(T, traced_numbers.extreme(a, b, greatest=False))


def larger(a: T, b: T) -> T:
    """Return the maximum of two numbers, the first if equal: `max` without recording a branch."""
    return cast(T, traced_numbers.extreme(a, b, greatest=True))


def want(condition: Any, reason: Callable[[], str]) -> None:
    """Raise `UnsupportedError` unless a condition holds, which a recorded program then checks."""
    if not condition:
        raise UnsupportedError(reason())


@contextmanager
def deciding() -> Iterator[None]:
    """Record a branch for each condition that is combined here, so that results are no selections."""
    recording = active()
    if recording is None:
        yield
        return
    before, recording.deciding = recording.deciding, True
    try:
        yield
    finally:
        recording.deciding = before


def merged(function: Callable[[], T]) -> T:
    """Return a function's result, a number or a tuple of such, without recording its branches."""
    recording = active()
    return function() if recording is None else recording.merged(function)


def gcd(*values: int) -> int:
    """Return the greatest common divisor."""
    if not any(traced_numbers.is_recorded(v) for v in values):
        return math.gcd(*values)
    constant = math.gcd(*(v for v in values if not traced_numbers.is_recorded(v)))
    divisor: Any = constant
    for value in values:
        if traced_numbers.is_recorded(value) and not (type(divisor) is int and divisor == 1):
            divisor = traced_numbers.gcd(divisor, value)
    return cast(int, divisor)


def position(numbers: list[int], number: int) -> int:
    """Return the index of a number in a list of different ones, at the end of which it is put if it is new.

    Records whether it equals the others only if none is the same expression.
    """
    found = None
    if traced_numbers.is_recorded(number):
        own = traced_numbers.expression(number)
        found = next((i for i, n in enumerate(numbers) if traced_numbers.expression(n) is own), None)
    if found is None:
        found = next((i for i, n in enumerate(numbers) if n == number), None)
    if found is None:
        found = len(numbers)
        numbers.append(number)
    return found


def settled(number: int) -> int:
    """Return a number that becomes a literal in the kernel's text: the program is specialized to it from here on."""
    return int(number)


def remembered(maxsize: int) -> Callable[[Function], Function]:
    """Return `lru_cache` for functions of shapes: disabled while recording, since hashing would specialize."""

    def remember(function: Function) -> Function:
        cached = lru_cache(maxsize)(function)

        @wraps(function)
        def called(*args: Any) -> Any:
            return cached(*args) if active() is None else function(*args)

        vars(called).update(cache_clear=cached.cache_clear, cache_info=cached.cache_info)
        return cast(Function, called)

    return remember
