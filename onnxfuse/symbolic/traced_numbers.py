"""Traced integers and floats: what a planner computes with while it is recorded.

They are no subclasses of int or float: an operation that needs the concrete value (an index, a hash, formatting, a C
function) has to request it, and the recording is then specialized to that value. Nothing bypasses this.
"""

from __future__ import annotations

from typing import Any, Protocol

from onnxfuse.symbolic import expressions
from onnxfuse.symbolic.expressions import Expression, computed
from onnxfuse.symbolic.integer import Atom
from onnxfuse.symbolic.operations import FLOOR, MAX, MIN, MOD, OPERATIONS, Value


class Recorder(Protocol):
    """Interface of the recording that traced numbers belong to."""

    cache: dict[tuple[Any, ...], Any]
    """Results of operations on expressions that were computed before."""
    deciding: bool
    """Whether combined conditions are branches, too."""

    def holds(self, condition: Atom) -> bool:
        """Return whether a condition holds, and assume that from here on."""
        ...

    def canonical(self, expression: Expression) -> Expression:
        """Return an expression in the names that are left: no name that equals something else on this path."""
        ...

    def pin(self, expression: Expression) -> Value:
        """Return the value in this run, and specialize everything that follows to it."""
        ...

    def value_of(self, expression: Expression) -> Value:
        """Return the value in this run."""
        ...


class _Traced:
    """An expression, whose value in this run the recording knows."""

    __slots__ = ("expression", "recorder")

    def __init__(self, recorder: Recorder, expression: Any) -> None:
        self.recorder, self.expression = recorder, expression

    @property
    def value(self) -> Any:
        """The value in this run."""
        return self.recorder.value_of(self.expression)

    def _pinned(self) -> Any:
        return self.recorder.pin(self.expression)

    def __hash__(self) -> int:
        return hash(self._pinned())

    def __str__(self) -> str:
        return str(self._pinned())

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return format(self._pinned(), spec)

    def __int__(self) -> int:
        return int(self._pinned())

    def __float__(self) -> float:
        return float(self._pinned())

    def __pow__(self, other: Any) -> Any:
        return self._pinned() ** other

    def __bool__(self) -> bool:
        return not _as_bool(_operation("eq", self, 0))

    def __lt__(self, other: Any) -> Any:
        return _operation("lt", self, other)

    def __gt__(self, other: Any) -> Any:
        return _operation("lt", other, self)

    def __le__(self, other: Any) -> Any:
        return _negated(_operation("lt", other, self))

    def __ge__(self, other: Any) -> Any:
        return _negated(_operation("lt", self, other))

    def __eq__(self, other: object) -> Any:
        return _operation("eq", self, other)

    def __ne__(self, other: object) -> Any:
        return _negated(_operation("eq", self, other))

    def __add__(self, other: Any) -> Any:
        return _operation("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return _operation("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return _operation("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _operation("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return _operation("mul", self, other)

    def __rmul__(self, other: Any) -> Any:
        return _operation("mul", other, self)

    def __neg__(self) -> Any:
        return _operation("mul", self, -1)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    def __truediv__(self, other: Any) -> Any:
        return _real("real_div", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _real("real_div", other, self)


class TracedInt(_Traced):
    """An `Int`, with its value in this run."""

    __slots__ = ()

    def __index__(self) -> int:
        return int(self._pinned())

    def __floordiv__(self, other: Any) -> Any:
        return _operation(FLOOR, self, other, on_reals=False)

    def __rfloordiv__(self, other: Any) -> Any:
        return _operation(FLOOR, other, self, on_reals=False)

    def __mod__(self, other: Any) -> Any:
        return _operation(MOD, self, other, on_reals=False)

    def __rmod__(self, other: Any) -> Any:
        return _operation(MOD, other, self, on_reals=False)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __rlshift__(self, other: Any) -> Any:
        return _computed("shl", other, self)

    def __lshift__(self, other: Any) -> Any:
        return _computed("shl", self, other)

    def __and__(self, other: int) -> int:
        return int(self._pinned() & int(other))

    __rand__ = __and__

    def bit_length(self) -> Any:
        """Return the number of bits."""
        return _computed("bit_length", self)


class Real(_Traced):
    """A traced double."""

    __slots__ = ()

    def __floor__(self) -> Any:
        return _computed("floor", self)

    def __ceil__(self) -> Any:
        return -_computed("floor", -self)

    def __round__(self, digits: int | None = None) -> Any:
        if digits != 2:
            return round(self._pinned(), digits)
        return _computed("round", self, 2)


class Condition(_Traced):
    """A traced truth value."""

    __slots__ = ()

    @property
    def value(self) -> bool:
        """The value in this run."""
        return bool(super().value)

    def _pinned(self) -> bool:
        return bool(super()._pinned())

    def __bool__(self) -> bool:
        return self.recorder.holds(self.expression)


INTEGERS = (int, TracedInt, Condition)
REALS = (float, Real)
NUMBERS = (*INTEGERS, *REALS)


def is_bool(value: Any) -> bool:
    """Return whether a value is a truth value, Python's or a traced one."""
    return isinstance(value, bool | Condition)


def is_recorded(value: object) -> bool:
    """Return whether a value is traced."""
    return isinstance(value, _Traced)


def expression(value: Any) -> Expression:
    """Return the expression of a traced or a plain value."""
    if isinstance(value, _Traced):
        result: Expression = value.expression
        return result
    return expressions.real(value) if isinstance(value, float) else int(value)


def traced(recorder: Recorder, of: Expression) -> Any:
    """Return the value of an expression; a plain one if it is a constant."""
    constant = expressions.constant(of)
    return constant if constant is not None else _kind(of)(recorder, of)


def _kind(of: Expression) -> type[_Traced]:
    if not isinstance(of, Atom):
        return TracedInt
    return Real if OPERATIONS[of.op].gives == "r" else Condition


def as_real(value: Any) -> Any:
    """Return an integer converted to double as Python does."""
    if isinstance(value, REALS):
        return value
    return _computed("real_of", value) if isinstance(value, _Traced) else float(value)


def _computed(op: str, *values: Any) -> Any:
    recorder = next((v.recorder for v in values if isinstance(v, _Traced)), None)
    if recorder is None:
        return expressions.constant(computed(op, *map(expression, values)))
    operands = [recorder.canonical(v.expression) if isinstance(v, _Traced) else expression(v) for v in values]
    key = op, *operands
    cached = recorder.cache.get(key)
    if cached is None:
        value = computed(op, *operands)
        constant = expressions.constant(value)
        cached = recorder.cache[key] = (None, constant) if constant is not None else (_kind(value), value)
    kind, result = cached
    return result if kind is None else kind(recorder, result)


def _real(op: str, a: Any, b: Any) -> Any:
    return _computed(op, as_real(a), as_real(b))


def _operation(op: str, a: Any, b: Any, on_reals: bool = True) -> Any:
    """Return an operation on two numbers: its form for doubles if either is one and there is such a form."""
    if isinstance(a, INTEGERS) and isinstance(b, INTEGERS):
        return _computed(op, a, b)
    if on_reals and isinstance(a, NUMBERS) and isinstance(b, NUMBERS):
        return _real(f"real_{op}", a, b)
    return NotImplemented


def _negated(condition: Any) -> Any:
    return condition if condition is NotImplemented else negated(condition)


def _as_bool(condition: Any) -> bool:
    return bool(condition)


def _undecided(value: Any) -> bool:
    """Return whether a truth value is traced, and may stay an expression."""
    return isinstance(value, Condition) and not value.recorder.deciding


def negated(condition: Any) -> Any:
    """Return the negation of a truth value."""
    return _computed("not", condition) if isinstance(condition, Condition) else not condition


def both(a: Any, b: Any) -> Any:
    """Return the conjunction of two truth values, without recording a branch."""
    if not _undecided(a):
        return b if a else False
    return _computed("and", a, b) if isinstance(b, Condition) else (a if b else False)


def either(a: Any, b: Any) -> Any:
    """Return the disjunction of two truth values, without recording a branch."""
    if not _undecided(a):
        return True if a else b
    return _computed("or", a, b) if isinstance(b, Condition) else (True if b else a)


def selected(condition: Any, a: Any, b: Any) -> Any:
    """Return the first value if a condition holds, else the second, without recording a branch; tuples elementwise."""
    if not _undecided(condition):
        return a if condition else b
    if isinstance(a, tuple) and isinstance(b, tuple):
        return tuple(selected(condition, x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, REALS) or isinstance(b, REALS):
        a, b = as_real(a), as_real(b)
        return a if expression(a) is expression(b) else _computed("real_select", condition, a, b)
    if isinstance(a, bool) and is_bool(b):
        return either(condition, b) if a else both(negated(condition), b)
    if isinstance(b, bool) and is_bool(a):
        return either(negated(condition), a) if b else both(condition, a)
    return _computed("select", condition, a, b)


def less(a: Any, b: Any) -> Any:
    """Return whether a key is less than another one, in tuple order, without recording a branch."""
    if not isinstance(a, tuple):
        return a < b
    result: Any = False
    for x, y in reversed(list(zip(a, b, strict=True))):
        result = either(less(x, y), both(x == y, result))
    return result


def gcd(a: Any, b: Any) -> Any:
    """Return the greatest common divisor; gcd(0, n) is n, as nothing is negative."""
    if type(a) is int and a == 0:
        return b
    return _computed("gcd", a, b)


def divisor_multiplier(extent: Any, bits: int) -> Any:
    """Return the multiplier of a division by a traced extent, as a word of so many bits."""
    return _computed("multiplier", extent, bits)


def extreme(a: Any, b: Any, greatest: bool) -> Any:
    """Return the minimum or the maximum of two numbers, the first if equal, without recording a branch."""
    if all(isinstance(x, INTEGERS) for x in (a, b)) and any(isinstance(x, TracedInt) for x in (a, b)):
        return _computed(MAX if greatest else MIN, a, b)
    return selected(less(a, b) if greatest else less(b, a), b, a)
