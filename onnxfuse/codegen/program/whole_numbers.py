"""Which floating-point values of a program are whole numbers: conversions to and from small integers are then sums.

A conversion between float and an integer takes as long as eight additions on NVIDIA GPUs (16 of them per clock and
multiprocessor, CUDA programming guide, arithmetic throughput).
"""

from collections.abc import Sequence

from onnxfuse.codegen.program.program import Apply, Constant, Value
from onnxfuse.ops import scalar
from onnxfuse.symbolic import element_types

WHOLE = frozenset({scalar.steps, scalar.round_half_even, scalar.floor, scalar.ceil})
"""Functions whose values are whole numbers."""
KEEPING = frozenset({scalar.add, scalar.sub, scalar.mul, scalar.neg, scalar.clip, scalar.relu})
"""Functions of whole numbers that are whole numbers."""
SMALL = 2
"""Bytes of integers that float holds exactly."""


def is_whole(values: Sequence[Value], index: int) -> bool:
    """Return whether a value is known to be a whole number wherever it is a number."""
    whole: set[int] = set()
    for at, value in enumerate(values[: index + 1]):  # arguments come before what is computed of them
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
    return index in whole


def fits(values: Sequence[Value], index: int, dtype: int) -> bool:
    """Return whether a value is known to be a whole number that an integer type of at most 16 bits holds."""
    value, kind = values[index], element_types.TYPES[dtype]
    if not isinstance(value, Apply) or value.op != scalar.clip or kind.size > SMALL:
        return False
    low, high = (values[a] for a in value.args[1:])
    if not isinstance(low, Constant) or not isinstance(high, Constant) or not element_types.is_integer(dtype):
        return False
    return kind.low <= low.value and high.value <= kind.high and is_whole(values, value.args[0])
