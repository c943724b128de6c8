"""Functions of one 8-bit value as lines, or as tables of 256 elements.

A GELU of a quantized file has a QuantizeLinear and a DequantizeLinear after each of its nodes; all of them depend on
one 8-bit value and on constants. The nodes are evaluated here for its 256 values, each result rounded to its type as
ONNX defines it, and the kernel reads an element instead.

DQ, Div, Erf, Q, DQ, Add, Q, DQ, Mul, Q, DQ, Mul, Q -> a lookup
DQ, Relu, Q -> a multiplication (`lines`)
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper

from onnxfuse.codegen.program.builder import Builder, Term
from onnxfuse.codegen.program.lines import Line, line_through, narrowed
from onnxfuse.codegen.program.program import Apply, BodyProgram, Constant, Output, Value, arguments
from onnxfuse.codegen.program.slices import with_arguments
from onnxfuse.codegen.program.whole_numbers import all_bounds, bounds, fits, whole_values
from onnxfuse.ops import scalar
from onnxfuse.ops.arrays import FLOATS, NUMPY, Values
from onnxfuse.ops.scalar import Function
from onnxfuse.symbolic import element_types

BYTES = (TensorProto.INT8, TensorProto.UINT8)
ELEMENTS = 256
DEAR = 8
"""Cheap operations in the time of a dear one, as the costs of traffic have it."""
LOOKUP = 24
"""Cheap operations that take no longer than a lookup: 32 threads read two lines of 128 bytes, one per clock, in which
the four schedulers of a multiprocessor issue eight instructions; address and latency of the L1 cache come to it.
"""


ROUNDING = {scalar.steps: 4, scalar.shifted_steps: 4, scalar.line: 4}
"""Cheap operations that it takes to round to steps of a scale, or along a line."""


class Table(Function):
    """The function of an 8-bit value whose results are these elements, by its bits as an unsigned number."""

    elements: tuple[int, ...]

    def __new__(cls, elements: Sequence[int]) -> "Table":
        """Return the function, named by its elements: equal tables are equal functions."""
        table = super().__new__(cls, f"table_{'_'.join(map(str, elements))}", cheap=True)
        assert isinstance(table, Table)
        table.elements = tuple(elements)
        return table


@dataclass(frozen=True)
class _Lookup:
    """A value that is read from a table, or computed by a line, of another one."""

    index: int
    """The value on which it depends."""
    first: int
    """The smallest number that this can be."""
    function: Table | Line
    dtype: int
    """The type that holds the results: of 8 bits, or of 16."""


def instructions(program: BodyProgram) -> int:
    """Return in the time of how many cheap operations an element of a program is computed."""
    functions = [v.op for i in program.live() if isinstance(v := program.values[i], Apply)]
    return sum(
        LOOKUP if isinstance(op, Table) else ROUNDING.get(op, 1 if op.cheap or op == scalar.cast else DEAR)
        for op in functions
    )


def tabulated(program: BodyProgram) -> BodyProgram:
    """Return the program with lines in place of what is one, and tables in place of operations that take longer than a
    lookup; unchanged if there are none."""
    values = program.values
    firsts = _firsts(values)
    if all(first is None for first in firsts):
        return program
    sources = _sources(values, firsts)
    lookups, needed = dict[int, _Lookup](), set[int]()
    waiting = [o.value for o in program.outputs]
    while waiting:
        index = waiting.pop()
        if index in needed:
            continue
        needed.add(index)
        found = _lookup(program, index, sources[index], firsts)
        if found is not None:
            lookups[index] = found
        waiting.extend(arguments(values[index]) if found is None else (found.index,))
    return _with_lookups(program, sorted(needed), lookups) if lookups else program


def _with_lookups(program: BodyProgram, needed: Sequence[int], lookups: dict[int, _Lookup]) -> BodyProgram:
    builder, index_of = Builder(), dict[int, int]()
    users = Counter(o.value for o in program.outputs)
    for index in needed:
        users.update((lookups[index].index,) if index in lookups else arguments(program.values[index]))
    alone = {its.index: its.function for its in lookups.values() if users[its.index] == 1}
    for index in needed:
        value = program.values[index]
        if index not in lookups:
            copy, reader = with_arguments(value, index_of), alone.get(index)
            left = narrowed(builder.values, copy, reader) if isinstance(reader, Line) else None
            index_of[index] = (builder.term(copy) if left is None else _within(builder, copy, left)).index
            continue
        its = lookups[index]
        start = Term(builder, index_of[its.index])
        if isinstance(its.function, Line):
            number = start.cast(TensorProto.FLOAT)
            result = its.function.of(number, bounds(builder.values, number.index))
        else:
            byte = (
                start if start.dtype in BYTES else (start - its.first if its.first else start).cast(TensorProto.UINT8)
            )
            result = builder.apply(its.function, byte, dtype=its.dtype)
        index_of[index] = result.cast(value.dtype).index
    outputs = tuple(Output(index_of[o.value], o.dtype) for o in program.outputs)
    return BodyProgram(tuple(builder.values), outputs, program.inputs)


def _within(builder: Builder, steps: Value, bounds: tuple[float, float]) -> Term:
    """Return steps of a scale with other bounds."""
    x, scale = (Term(builder, a) for a in arguments(steps)[:2])
    return builder.apply(scalar.steps, x, scale, *bounds)


def _firsts(values: Sequence[Value]) -> tuple[int | None, ...]:
    """Return for each value the smallest of the whole numbers that it can be, if there are at most 256; None for
    others."""
    known, whole = all_bounds(values), whole_values(values)

    def first(index: int, value: Value) -> int | None:
        if value.dtype in BYTES:
            return element_types.TYPES[value.dtype].low
        limits = known[index]
        if value.dtype != TensorProto.FLOAT or not isinstance(value, Apply) or limits is None or index not in whole:
            return None
        return int(limits[0]) if limits[1] - limits[0] < ELEMENTS else None

    return tuple(first(index, value) for index, value in enumerate(values))


def _byte_type(values: Sequence[Value], index: int) -> int | None:
    """Return the least type that holds a value: its own, or of a float that is quantized, its integers'.

    Less their zero point, these may take more than 8 bits.
    """
    dtype = values[index].dtype
    if dtype in BYTES:
        return dtype
    held = (*BYTES, TensorProto.INT16) if dtype == TensorProto.FLOAT else ()
    return next((t for t in held if fits(values, index, t)), None)


def _sources(values: Sequence[Value], firsts: Sequence[int | None]) -> tuple[frozenset[int] | None, ...]:
    """Return for each value the values of at most 256 numbers that determine it: none of a constant, itself for the
    start of a chain; None for a value that depends on more than one, or on others."""
    found: list[frozenset[int] | None] = []
    for index, value in enumerate(values):
        of: frozenset[int] | None = None
        if isinstance(value, Constant) and not value.shape:  # one of a higher rank would raise that of the result
            of = frozenset()
        elif isinstance(value, Apply) and _is_evaluated(value.op):
            parts = [found[a] for a in value.args]
            of = frozenset[int]().union(*(p for p in parts if p is not None)) if None not in parts else None
        if of is None or len(of) > 1:
            of = None if firsts[index] is None else frozenset({index})
        found.append(of)
    return tuple(found)


def _is_evaluated(op: Function) -> bool:
    return op.formula is not None or op in NUMPY or op in (scalar.cast, scalar.retype)


def _lookup(
    program: BodyProgram, index: int, source: frozenset[int] | None, firsts: Sequence[int | None]
) -> _Lookup | None:
    """Return how a value is looked up; None if it is computed."""
    dtype = None if firsts[index] is None else _byte_type(program.values, index)
    if dtype is None or not source or index in source:
        return None
    (start,) = source
    first = firsts[start]
    assert first is not None
    chain = [i for i in sorted(program.reached((index,), (start,))) if i != start]
    applied = [v for i in chain if isinstance(v := program.values[i], Apply)]
    dear, rounded = sum(1 if v.op.cheap else DEAR for v in applied), [i for i in chain if _rounds(program.values[i])]
    if dear <= LOOKUP and not rounded:
        return None
    known = _evaluated(program.values, chain, start, first)
    if known is None:
        return None
    results = np.broadcast_to(known[index].array, (ELEMENTS,))
    if rounded:
        x, scale = (known[a].array for a in arguments(program.values[rounded[-1]])[:2])
        line = line_through(known[start].array, results, np.broadcast_to(x / scale, (ELEMENTS,)))
        if line is not None:
            return _Lookup(start, first, line, dtype)
    return None if dear <= LOOKUP else _Lookup(start, first, Table([int(n) for n in results]), dtype)


def _rounds(value: Value) -> bool:
    return isinstance(value, Apply) and value.op == scalar.steps


def _evaluated(values: Sequence[Value], chain: Sequence[int], start: int, first: int) -> dict[int, Values] | None:
    """Return the values of a chain for each number that its start can be, in the order of a table's elements; None if
    one is not finite."""
    dtype = values[start].dtype
    if dtype in BYTES:
        numbers = np.arange(ELEMENTS, dtype=np.uint8).view(helper.tensor_dtype_to_np_dtype(dtype))
    else:
        limits = bounds(values, start)
        assert limits is not None
        numbers = np.minimum(first + np.arange(ELEMENTS, dtype=np.float64), limits[1])
    known = {start: Values(numbers, dtype)}
    with np.errstate(all="ignore"):
        for index in chain:
            known[index] = _value(values[index], known)
            if not np.isfinite(known[index].array).all():
                return None
    return known


def _value(value: Value, known: dict[int, Values]) -> Values:
    """Return a value of a chain, rounded to its type."""
    if isinstance(value, Constant):
        number = np.float64 if value.dtype in FLOATS else helper.tensor_dtype_to_np_dtype(value.dtype)
        return Values(np.asarray(value.value, number), value.dtype, constant=True)
    assert isinstance(value, Apply)
    args = [known[a] for a in value.args]
    if value.op in (scalar.cast, scalar.retype):
        return args[0].cast(value.dtype) if value.op == scalar.cast else args[0].retype(value.dtype)
    result = args[0].apply(value.op, *args)
    return result.cast(value.dtype) if value.dtype in FLOATS else result
