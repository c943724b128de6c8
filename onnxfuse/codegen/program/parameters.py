"""Programs that differ in constants alone, as one program with parameters.

Queries, keys and values of a quantized model are products of one input, each quantized by its own scale and zero point:
one kernel computes all three, and reads the numbers of a product once for each of its tiles.

Q(m * s + b) with (0.03, -7), (0.04, 0) -> Q(m * s + b) with (p0, p1)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from onnx import TensorProto

from onnxfuse.codegen.program.builder import Builder
from onnxfuse.codegen.program.program import Apply, BodyProgram, Constant, Input, Output
from onnxfuse.ops import scalar
from onnxfuse.symbolic import element_types

Number = float | int | bool


@dataclass(frozen=True)
class Parametric:
    """One program in the place of several."""

    program: BodyProgram
    """Its last inputs are the parameters."""
    numbers: tuple[tuple[Number, ...], ...]
    """Those of each program."""


def parametric(programs: Sequence[BodyProgram]) -> Parametric | None:
    """Return one program for several that differ in constants alone; None if they differ in more."""
    first = programs[0]
    if any(p.inputs != first.inputs or len(p.outputs) != len(first.outputs) for p in programs):
        return None
    work = _Unification(programs)
    outputs = list[Output]()
    for same in zip(*(p.outputs for p in programs), strict=True):
        value = work.value(tuple(o.value for o in same))
        if value is None or len({o.dtype for o in same}) > 1:
            return None
        outputs.append(Output(value, same[0].dtype))
    types = tuple(dtype for dtype, _ in work.found)
    program = BodyProgram(tuple(work.builder.values), tuple(outputs), (*first.inputs, *types))
    return Parametric(
        program, tuple(zip(*(numbers for _, numbers in work.found), strict=True)) or ((),) * len(programs)
    )


@dataclass
class _Unification:
    programs: Sequence[BodyProgram]
    builder: Builder = field(default_factory=Builder)
    found: list[tuple[int, tuple[Number, ...]]] = field(default_factory=list)
    """Type and numbers of each parameter."""
    known: dict[tuple[int, ...], int | None] = field(default_factory=dict)

    def value(self, at: tuple[int, ...]) -> int | None:
        """Return the value in the place of one of each program; None if they are not computed alike."""
        if at not in self.known:
            self.known[at] = self._value(at)
        return self.known[at]

    def _value(self, at: tuple[int, ...]) -> int | None:
        constants = [_constant(p, i) for p, i in zip(self.programs, at, strict=True)]
        if all(constants):
            return self._numbers([c for c in constants if c is not None])
        values = [p.values[i] for p, i in zip(self.programs, at, strict=True)]
        if all(v == values[0] and isinstance(v, Input) for v in values):
            return self.builder.term(values[0]).index
        applied = [v for v in values if isinstance(v, Apply)]
        if len(applied) < len(values) or len({v.dtype for v in applied}) > 1:
            return None
        quantized = [_quantized(p, v) for p, v in zip(self.programs, applied, strict=True)]
        if any(v.op == scalar.add for v in applied) and all(quantized):
            return self._quantized([q for q in quantized if q is not None])
        if len({(v.op, len(v.args)) for v in applied}) > 1:
            return None
        args = [self.value(arguments) for arguments in zip(*(v.args for v in applied), strict=True)]
        if None in args:
            return None
        return self.builder.term(replace(applied[0], args=tuple(a for a in args if a is not None))).index

    def _numbers(self, constants: Sequence[Constant]) -> int | None:
        """Return a constant that all have, or a parameter; equal ones are one."""
        first, numbers = constants[0], tuple(c.value for c in constants)
        if any((c.dtype, c.shape) != (first.dtype, first.shape) for c in constants):
            return None
        if len(set(numbers)) == 1:
            return self.builder.term(first).index
        if first.shape:
            return None
        if (first.dtype, numbers) not in self.found:
            self.found.append((first.dtype, numbers))
        index = len(self.programs[0].inputs) + self.found.index((first.dtype, numbers))
        return self.builder.term(Input(index, first.dtype)).index

    def _quantized(self, parts: Sequence[_Quantized]) -> int | None:
        """Return steps of a scale and a zero point, each of which may differ: their bounds do not."""
        x = self.value(tuple(q.x for q in parts))
        numbers = [
            self._numbers([Constant(n, TensorProto.FLOAT, ()) for n in same])
            for same in zip(*((q.scale, q.zero, q.low, q.high) for q in parts), strict=True)
        ]
        args = tuple(a for a in (x, *numbers) if a is not None)
        return self.builder.term(Apply(scalar.shifted_steps, args, TensorProto.FLOAT)).index if len(args) == 5 else None


def _constant(program: BodyProgram, index: int) -> Constant | None:
    """Return a constant, also one that is converted."""
    value = program.values[index]
    if (
        isinstance(value, Apply)
        and value.op == scalar.cast
        and isinstance(c := program.values[value.args[0]], Constant)
    ):
        return Constant(element_types.as_python(c.value, value.dtype), value.dtype, c.shape)
    return value if isinstance(value, Constant) else None


@dataclass(frozen=True)
class _Quantized:
    """Steps of a scale with a zero point, and the bounds of both."""

    x: int
    scale: float
    zero: float
    low: float
    high: float


def _quantized(program: BodyProgram, value: Apply) -> _Quantized | None:
    zero = 0.0
    if value.op == scalar.add:
        shift, steps = _constant(program, value.args[1]), program.values[value.args[0]]
        if shift is None or not isinstance(steps, Apply):
            return None
        zero, value = float(shift.value), steps
    if value.op != scalar.steps or value.dtype != TensorProto.FLOAT:
        return None
    scale, low, high = (_constant(program, a) for a in value.args[1:])
    if scale is None or low is None or high is None or scale.shape:
        return None
    return _Quantized(value.args[0], float(scale.value), zero, float(low.value) + zero, float(high.value) + zero)
