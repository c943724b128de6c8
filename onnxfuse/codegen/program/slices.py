"""Extract sub-programs, and bring programs to a canonical form in which equal programs compare equal."""

from collections.abc import Sequence
from dataclasses import replace

from onnxfuse.codegen.program.builder import Builder
from onnxfuse.codegen.program.program import (
    Apply,
    Attend,
    BodyProgram,
    Constant,
    Contraction,
    Input,
    Move,
    Output,
    Reduce,
    Resample,
    SlidingWindow,
    Unpacked,
    Value,
    arguments,
)


def between(program: BodyProgram, starts: Sequence[int], outputs: Sequence[Output]) -> BodyProgram:
    """Return the sub-program that computes `outputs` from the values `starts`, which become its inputs in this order.

    All inputs of the op that are reached must be among `starts`. Dead values stay with their operands, so that a part
    has the same values as it would as a body of its own.
    """
    inner = set(program.reached((o.value for o in outputs), starts))
    dead = [i for i in range(len(program.values)) if i not in program.live()]
    for index in dead:
        operands = arguments(program.values[index])
        whole = all(a in inner or isinstance(program.values[a], Constant) for a in operands)
        if operands and whole and inner.intersection(operands):
            inner.update(operands, (index,))
    builder, index_of = Builder(), dict[int, int]()
    for number, index in enumerate(starts):
        index_of[index] = builder.term(Input(number, program.values[index].dtype)).index
    for index in sorted(inner - set(starts)):
        index_of[index] = builder.term(with_arguments(program.values[index], index_of)).index
    results = tuple(Output(index_of[o.value], o.dtype) for o in outputs)
    return BodyProgram(tuple(builder.values), results, tuple(program.values[i].dtype for i in starts))


def operands_last(program: BodyProgram, first: int) -> BodyProgram:
    """Return the program with its inputs from index `first` on as second operands of commutative operations.

    Add(b, m) -> Add(m, b): bodies that differ only in that order become one.
    """
    values = list[Value]()
    for value in program.values:
        if isinstance(value, Apply) and value.op.commutative and len(value.args) == 2:
            args = sorted(value.args, key=lambda a: isinstance(v := program.values[a], Input) and v.index >= first)
            value = replace(value, args=tuple(args))
        values.append(value)
    return replace(program, values=tuple(values))


def canonical(program: BodyProgram) -> BodyProgram:
    """Return the program with its values in depth-first order from its outputs: equal programs compare equal."""
    builder, index_of = Builder(), dict[int, int]()
    for index in depth_first(program, [o.value for o in program.outputs]):
        index_of[index] = builder.term(with_arguments(program.values[index], index_of)).index
    return BodyProgram(
        tuple(builder.values), tuple(Output(index_of[o.value], o.dtype) for o in program.outputs), program.inputs
    )


def depth_first(program: BodyProgram, roots: Sequence[int]) -> tuple[int, ...]:
    """Return the values that `roots` depend on, operands first, in depth-first order."""
    found: dict[int, None] = {}
    waiting = [*reversed(roots)]
    while waiting:
        index = waiting[-1]
        if missing := [a for a in reversed(arguments(program.values[index])) if a not in found]:
            waiting += missing
            continue
        waiting.pop()
        found.setdefault(index)
    return tuple(found)


def with_arguments(value: Value, index_of: dict[int, int]) -> Value:
    """Return the value with its operands at other indices."""
    match value:
        case Apply() | Move() | SlidingWindow() | Unpacked() | Attend():
            return replace(value, args=tuple(index_of[a] for a in value.args))
        case Contraction(args=(left, right)):
            return replace(value, args=(index_of[left], index_of[right]))
        case Reduce() | Resample():
            return replace(value, arg=index_of[value.arg])
        case _:
            return value
