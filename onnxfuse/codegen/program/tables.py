"""Functions of one 8-bit value as tables of 256 elements.

A GELU of a quantized file has a QuantizeLinear and a DequantizeLinear after each of its nodes; all of them depend on
one 8-bit value and on constants. The nodes are evaluated here for its 256 values, each result rounded to its type as
ONNX defines it, and the kernel reads an element instead.

DQ, Div, Erf, Q, DQ, Add, Q, DQ, Mul, Q, DQ, Mul, Q -> a lookup
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto, helper

from onnxfuse.codegen.program.builder import Builder, Term
from onnxfuse.codegen.program.program import Apply, BodyProgram, Constant, Output, Value, arguments
from onnxfuse.codegen.program.slices import with_arguments
from onnxfuse.codegen.program.whole_numbers import fits
from onnxfuse.ops import scalar
from onnxfuse.ops.arrays import FLOATS, NUMPY, Values
from onnxfuse.ops.scalar import Function

BYTES = (TensorProto.INT8, TensorProto.UINT8)
ELEMENTS = 256
DEAR = 8
"""Cheap operations in the time of a dear one, as the costs of traffic have it."""
LOOKUP = 24
"""Cheap operations that take no longer than a lookup: 32 threads read two lines of 128 bytes, one per clock, in which
the four schedulers of a multiprocessor issue eight instructions; address and latency of the L1 cache come to it.
"""


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
    """A value that is read from a table by another one."""

    index: int
    """The value on which it depends."""
    index_type: int
    """The type of 8 bits that holds the index."""
    table: Table
    dtype: int
    """The type of 8 bits that holds the elements."""


def tabulated(program: BodyProgram) -> BodyProgram:
    """Return the program with tables in place of operations that take longer than a lookup; unchanged if there are
    none."""
    values = program.values
    types = tuple(_byte_type(values, i) for i in range(len(values)))
    if not any(types):
        return program
    sources = _sources(values, types)
    lookups, needed = dict[int, _Lookup](), set[int]()
    waiting = [o.value for o in program.outputs]
    while waiting:
        index = waiting.pop()
        if index in needed:
            continue
        needed.add(index)
        found = _lookup(program, index, sources[index], types)
        if found is not None:
            lookups[index] = found
        waiting.extend(arguments(values[index]) if found is None else (found.index,))
    return _with_lookups(program, sorted(needed), lookups) if lookups else program


def _with_lookups(program: BodyProgram, needed: Sequence[int], lookups: dict[int, _Lookup]) -> BodyProgram:
    builder, index_of = Builder(), dict[int, int]()
    for index in needed:
        value = program.values[index]
        if index not in lookups:
            index_of[index] = builder.term(with_arguments(value, index_of)).index
            continue
        its = lookups[index]
        byte = Term(builder, index_of[its.index]).cast(its.index_type)
        index_of[index] = builder.apply(its.table, byte, dtype=its.dtype).cast(value.dtype).index
    outputs = tuple(Output(index_of[o.value], o.dtype) for o in program.outputs)
    return BodyProgram(tuple(builder.values), outputs, program.inputs)


def _byte_type(values: Sequence[Value], index: int) -> int | None:
    """Return the type of 8 bits that holds a value: its own, or of a float that is quantized, its integers'."""
    dtype = values[index].dtype
    if dtype in BYTES:
        return dtype
    return next((t for t in BYTES if dtype == TensorProto.FLOAT and fits(values, index, t)), None)


def _sources(values: Sequence[Value], types: Sequence[int | None]) -> tuple[frozenset[int] | None, ...]:
    """Return for each value the 8-bit values that determine it: none of a constant, itself for the start of a chain;
    None for a value that depends on more than one, or on other types."""
    found: list[frozenset[int] | None] = []
    for index, value in enumerate(values):
        of: frozenset[int] | None = None
        if isinstance(value, Constant) and not value.shape:  # one of a higher rank would raise that of the result
            of = frozenset()
        elif isinstance(value, Apply) and _is_evaluated(value.op):
            parts = [found[a] for a in value.args]
            of = frozenset[int]().union(*(p for p in parts if p is not None)) if None not in parts else None
        if of is None or len(of) > 1:
            of = None if types[index] is None else frozenset({index})
        found.append(of)
    return tuple(found)


def _is_evaluated(op: Function) -> bool:
    return op.formula is not None or op in NUMPY or op in (scalar.cast, scalar.retype)


def _lookup(
    program: BodyProgram, index: int, source: frozenset[int] | None, types: Sequence[int | None]
) -> _Lookup | None:
    """Return how a value is looked up; None if it is computed."""
    dtype = types[index]
    if dtype is None or not source or index in source:
        return None
    (start,) = source
    start_type = types[start]
    assert start_type is not None
    chain = [i for i in sorted(program.reached((index,), (start,))) if i != start]
    applied = [v for i in chain if isinstance(v := program.values[i], Apply)]
    if sum(1 if v.op.cheap else DEAR for v in applied) <= LOOKUP:
        return None
    elements = _evaluated(program.values, chain, start, start_type)
    return None if elements is None else _Lookup(start, start_type, Table([int(n) for n in elements]), dtype)


def _evaluated(values: Sequence[Value], chain: Sequence[int], start: int, start_type: int) -> np.ndarray | None:
    """Return the last value of a chain for each of the 256 values of its start; None if one is not finite."""
    bits = np.arange(ELEMENTS, dtype=np.uint8).view(helper.tensor_dtype_to_np_dtype(start_type))
    dtype = values[start].dtype
    known = {start: Values(bits.astype(np.float64) if dtype in FLOATS else bits, dtype)}
    with np.errstate(all="ignore"):
        for index in chain:
            known[index] = _value(values[index], known)
            if not np.isfinite(known[index].array).all():
                return None
    return np.broadcast_to(known[chain[-1]].array, (ELEMENTS,))


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
