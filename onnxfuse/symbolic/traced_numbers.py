"""Traced integers and floats: what a planner computes with while it is recorded.

They are no subclasses of int or float: an operation that needs the concrete value (an index, a hash, formatting, a C
function) has to request it, and the recording is then specialized to that value. Nothing bypasses this.
"""

from __future__ import annotations

from typing import Any, Protocol

from onnxfuse.symbolic.expressions import OPERATIONS, REAL, ExpressionGraph, UnansweredError, Value


class Recorder(Protocol):
    """Interface of the recording that traced numbers belong to."""

    graph: ExpressionGraph
    deciding: bool
    """Whether combined conditions are branches, too."""

    def holds(self, condition: int, concrete: bool) -> bool:
        """Return whether a condition holds, and assume that from here on."""
        ...

    def pin(self, number: int, concrete: Value) -> None:
        """Specialize everything that follows to this value."""
        ...


class _Expression:
    """A value with the index of its expression."""

    __slots__ = ("number", "recorder", "value")

    def __init__(self, recorder: Recorder, number: int, value: Any) -> None:
        self.recorder, self.number, self.value = recorder, number, value

    def _pinned(self) -> Any:
        self.recorder.pin(self.number, self.value)
        return self.value

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
        return not _as_bool(_compared("eq", self, 0))

    def __lt__(self, other: Any) -> Any:
        return _compared("lt", self, other)

    def __gt__(self, other: Any) -> Any:
        return _compared("lt", other, self)

    def __le__(self, other: Any) -> Any:
        return _negated(_compared("lt", other, self))

    def __ge__(self, other: Any) -> Any:
        return _negated(_compared("lt", self, other))

    def __eq__(self, other: object) -> Any:
        return _compared("eq", self, other)

    def __ne__(self, other: object) -> Any:
        return _negated(_compared("eq", self, other))

    def __add__(self, other: Any) -> Any:
        return _sum("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return _sum("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return _sum("sub", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _sum("sub", other, self)

    def __mul__(self, other: Any) -> Any:
        return _product(self, other)

    def __rmul__(self, other: Any) -> Any:
        return _product(other, self)

    def __neg__(self) -> Any:
        return _product(self, -1)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    def __truediv__(self, other: Any) -> Any:
        return _real("real_div", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _real("real_div", other, self)


class TracedInt(_Expression):
    """A traced integer."""

    __slots__ = ()
    value: int

    def __index__(self) -> int:
        return int(self._pinned())

    def __floordiv__(self, other: Any) -> Any:
        return _divided("floordiv", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return _divided("floordiv", other, self)

    def __mod__(self, other: Any) -> Any:
        return _divided("mod", self, other)

    def __rmod__(self, other: Any) -> Any:
        return _divided("mod", other, self)

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


class Real(_Expression):
    """A traced double."""

    __slots__ = ()
    value: float

    def __floor__(self) -> Any:
        return _computed("floor", self)

    def __ceil__(self) -> Any:
        return -_computed("floor", -self)

    def __round__(self, digits: int | None = None) -> Any:
        if digits != 2:
            return round(self._pinned(), digits)
        return _made(self.recorder, "round", [(self.number, self.value), (self.recorder.graph.integer(2), 2)])


class Condition(_Expression):
    """A traced truth value."""

    __slots__ = ()
    value: bool

    def __bool__(self) -> bool:
        return self.recorder.holds(self.number, self.value)


INTEGERS = (int, TracedInt, Condition)
REALS = (float, Real)


def is_bool(value: Any) -> bool:
    """Return whether a value is a truth value, Python's or a traced one."""
    return isinstance(value, bool | Condition)


def is_recorded(value: object) -> bool:
    """Return whether a value is traced."""
    return isinstance(value, _Expression)


def _recorder(*values: Any) -> Recorder:
    return next(v.recorder for v in values if isinstance(v, _Expression))


def operand(graph: ExpressionGraph, value: Any) -> tuple[int, Value]:
    """Return the index of a value's expression, and the value."""
    if isinstance(value, _Expression):
        return value.number, value.value
    return graph.node(REAL, value) if isinstance(value, float) else graph.integer(int(value)), value


def as_real(recorder: Recorder, value: Any) -> Any:
    """Return an integer converted to double as Python does."""
    if isinstance(value, REALS):
        return value
    return _computed("real_of", value) if isinstance(value, _Expression) else float(value)


def expression(recorder: Recorder, number: int, value: Value) -> Any:
    """Return the value of an expression; a plain one if it is a constant."""
    constant = recorder.graph.constant(number)
    if constant is not None:
        return constant
    op = recorder.graph.nodes[number][0]
    if op in ("lt", "eq", "not", "and", "or", "real_lt", "real_eq"):
        return Condition(recorder, number, bool(value))
    return Real(recorder, number, value) if isinstance(value, float) else TracedInt(recorder, number, value)


def _made(recorder: Recorder, op: str, operands: list[tuple[int, Value]]) -> Any:
    try:
        value = OPERATIONS[op](*(v for _, v in operands))
    except UnansweredError:
        value = _beyond(op, [v for _, v in operands])
    return expression(recorder, recorder.graph.node(op, *(n for n, _ in operands)), value)


def _beyond(op: str, values: list[Value]) -> Value:
    """Return Python's value where 64 bits overflow; 0 for a division by zero, which no evaluation reaches."""
    match op, values:
        case "add", (a, b):
            return a + b
        case "sub", (a, b):
            return a - b
        case "mul", (a, b):
            return a * b
        case "shl", (int() as a, int() as b) if 0 <= b < 4096:
            return a << b
        case "floordiv", (a, b):
            return a // b if b else 0
        case "mod", (a, b):
            return a % b if b else 0
        case "real_of", (a,):
            return float(a)
        case "real_div", _:
            return 0.0
        case "round", (a, digits):
            return round(a, int(digits))
        case "floor", (a,):
            return int(a // 1)
        case _:
            return 0


def _computed(op: str, *values: Any) -> Any:
    if not any(isinstance(v, _Expression) for v in values):
        return OPERATIONS[op](*values)
    recorder = _recorder(*values)
    return _made(recorder, op, [operand(recorder.graph, v) for v in values])


def _real(op: str, a: Any, b: Any) -> Any:
    recorder = _recorder(a, b)
    return _computed(op, as_real(recorder, a), as_real(recorder, b))


def _known(*values: Any) -> bool:
    return all(isinstance(v, (*INTEGERS, *REALS)) for v in values)


def _sum(op: str, a: Any, b: Any) -> Any:
    if not _known(a, b):
        return NotImplemented
    if isinstance(a, REALS) or isinstance(b, REALS):
        return _real(f"real_{op}", a, b)
    if type(b) is int and b == 0:
        return a
    if op == "add":
        if type(a) is int and a == 0:
            return b
        recorder = _recorder(a, b)
        first, second = sorted((operand(recorder.graph, a), operand(recorder.graph, b)), key=lambda o: o[0])
        return _made(recorder, op, [first, second])
    return 0 if isinstance(a, TracedInt) and isinstance(b, TracedInt) and a.number == b.number else _computed(op, a, b)


def _product(a: Any, b: Any) -> Any:
    if not _known(a, b):
        return NotImplemented
    if isinstance(a, REALS) or isinstance(b, REALS):
        return _real("real_mul", a, b)
    recorder = _recorder(a, b)
    (left, x), (right, y) = operand(recorder.graph, a), operand(recorder.graph, b)
    return expression(recorder, recorder.graph.product(left, right), x * y)


def _divided(op: str, a: Any, b: Any) -> Any:
    if isinstance(a, REALS) or isinstance(b, REALS) or not _known(a, b):
        return NotImplemented
    if type(b) is int and b == 1:
        return a if op == "floordiv" else 0
    return _computed(op, a, b)


def _compared(op: str, a: Any, b: Any) -> Any:
    if not _known(a, b):
        return NotImplemented
    if isinstance(a, REALS) or isinstance(b, REALS):
        return _real(f"real_{op}", a, b)
    if _is_beyond(a) or _is_beyond(b):  # never evaluated
        return op == "lt" and (b > 0 if _is_beyond(b) else a < 0)
    recorder = _recorder(a, b)
    left, right = operand(recorder.graph, a), operand(recorder.graph, b)
    if left[0] == right[0]:
        return op == "eq"
    if op == "eq" and left[0] > right[0]:
        left, right = right, left
    return _made(recorder, op, [left, right])


def _is_beyond(value: Any) -> bool:
    return type(value) is int and not -(2**63) <= value < 2**63


def _negated(condition: Any) -> Any:
    if condition is NotImplemented or not isinstance(condition, Condition):
        return condition if condition is NotImplemented else not condition
    return negated(condition)


def _as_bool(condition: Any) -> bool:
    return bool(condition)


def _undecided(value: Any) -> bool:
    """Return whether a truth value is traced, and may stay an expression."""
    return isinstance(value, Condition) and not value.recorder.deciding


def negated(condition: Any) -> Any:
    """Return the negation of a truth value."""
    if not isinstance(condition, Condition):
        return not condition
    op, args = condition.recorder.graph.nodes[condition.number]
    if op == "not":
        return Condition(condition.recorder, int(args[0]), not condition.value)
    return _computed("not", condition)


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
    recorder = condition.recorder
    real = isinstance(a, REALS) or isinstance(b, REALS)
    if real:
        a, b = as_real(recorder, a), as_real(recorder, b)
    left, right = operand(recorder.graph, a), operand(recorder.graph, b)
    if left[0] == right[0]:
        return a
    op = "real_select" if real else "select"
    made = _made(recorder, op, [(condition.number, condition.value), left, right])
    if isinstance(a, bool | Condition) and isinstance(b, bool | Condition) and isinstance(made, TracedInt):
        return Condition(recorder, made.number, bool(made.value))
    return made


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
