"""Which floating-point values of a program are whole numbers: conversions to and from small integers are then sums.

A conversion between float and an integer takes as long as eight additions on NVIDIA GPUs (16 of them per clock and
multiprocessor, CUDA programming guide, arithmetic throughput).
"""

from collections.abc import Sequence

from onnx import TensorProto

from onnxfuse.codegen.program.program import Apply, Constant, Value
from onnxfuse.ops import scalar
from onnxfuse.symbolic import element_types

STEPS = frozenset({scalar.steps, scalar.shifted_steps, scalar.line, scalar.line_inside})
WHOLE = frozenset({*STEPS, scalar.round_half_even, scalar.floor, scalar.ceil})
"""Functions whose values are whole numbers."""
BOUNDED = frozenset({*STEPS, scalar.clip})
"""Functions whose last two arguments are their bounds."""
KEEPING = frozenset({scalar.add, scalar.sub, scalar.mul, scalar.neg, scalar.clip, scalar.relu})
"""Functions of whole numbers that are whole numbers."""
EXACT = 2**24
"""The whole numbers that float holds exactly end here."""
EXACT_HALF = 2**11
"""Those that float16 holds exactly end here."""
ROUNDED = 2**22
"""Below it a sum with 1.5 * 2^23 rounds a number to a whole one, as `math::line` does."""
SMALL = 2
"""Bytes of integers that float holds exactly."""


def constant(values: Sequence[Value], index: int) -> float | None:
    """Return the number of a constant; None of a computed value."""
    value = values[index]
    return float(value.value) if isinstance(value, Constant) else None


def is_whole(values: Sequence[Value], index: int) -> bool:
    """Return whether a value is known to be a whole number wherever it is a number."""
    return index in whole_values(values[: index + 1])


def whole_values(values: Sequence[Value]) -> frozenset[int]:
    """Return the indices of values that are known to be whole numbers wherever they are numbers."""
    whole: set[int] = set()
    for at, value in enumerate(values):  # arguments come before what is computed of them
        match value:
            case Constant(value=number):
                known = float(number).is_integer()
            case Apply(op=op, args=(arg,)) if op == scalar.cast:
                dtype = values[arg].dtype
                known = element_types.is_integer(dtype) and element_types.TYPES[dtype].size <= SMALL
            case Apply(op=op, args=args):
                known = op in WHOLE or (op in KEEPING and whole.issuperset(args))
            case _:
                known = False
        if known:
            whole.add(at)
    return frozenset(whole)


Bounds = tuple[float, float] | None
"""The smallest and the largest number that a value can be, wherever it is a number; None if unknown."""


def bounds(values: Sequence[Value], index: int) -> Bounds:
    """Return the bounds of a value."""
    return all_bounds(values[: index + 1])[index]


def all_bounds(values: Sequence[Value]) -> list[Bounds]:
    """Return the bounds of each value."""
    known: list[Bounds] = []
    for value in values:
        known.append(_bounds(values, known, value))
    return known


def _bounds(values: Sequence[Value], known: Sequence[Bounds], value: Value) -> Bounds:
    match value:
        case Constant(value=number):
            return float(number), float(number)
        case Apply(op=op, args=(arg,)) if op == scalar.cast and element_types.is_integer(values[arg].dtype):
            kind = element_types.TYPES[values[arg].dtype]
            return kind.low, kind.high
        case Apply(op=op, args=args) if op in BOUNDED:
            low, high = (known[a] for a in args[-2:])
            return None if low is None or high is None else (low[0], high[1])
        case Apply(op=op, args=(left, right)) if op in (scalar.add, scalar.sub):
            a, b = known[left], known[right]
            if a is None or b is None:
                return None
            return (a[0] + b[0], a[1] + b[1]) if op == scalar.add else (a[0] - b[1], a[1] - b[0])
        case _:
            return None


def holds(dtype: int, integers: int) -> bool:
    """Return whether float32, if that is the type, holds every number of a type of integers."""
    small = element_types.is_integer(integers) and element_types.TYPES[integers].size <= SMALL
    return dtype == TensorProto.FLOAT and small


def fits(values: Sequence[Value], index: int, dtype: int) -> bool:
    """Return whether a value is known to be a whole number that an integer type of at most 16 bits holds."""
    kind = element_types.TYPES[dtype]
    if not isinstance(values[index], Apply) or not element_types.is_integer(dtype) or kind.size > SMALL:
        return False
    known = bounds(values, index)
    return known is not None and kind.low <= known[0] and known[1] <= kind.high and is_whole(values, index)


def without(values: Sequence[Value], index: int, term: int) -> int | None:
    """Return x, if a value is x + `term`, and both are small whole numbers: (x + c) - c -> x."""
    match values[index]:
        case Apply(op=op, args=(x, other)) if op == scalar.add and other == term and is_whole(values, index):
            known = bounds(values, index)
            return x if known is not None and max(map(abs, known)) <= EXACT else None
        case _:
            return None
