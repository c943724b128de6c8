"""Recentre deviations from a mean: remove the rounding error of the mean; deviations of a single element are zero."""

from dataclasses import dataclass, field, replace

from onnxfuse.codegen.program.movement import Squeezed, Unsqueezed
from onnxfuse.codegen.program.program import Apply, BodyProgram, Move, Reduce, Value, arguments
from onnxfuse.ops import scalar
from onnxfuse.ops.scalar import Function
from onnxfuse.symbolic import element_types

MINUS = Function("minus")
"""A difference that is never contracted into a fused multiply-add."""


def centred(program: BodyProgram) -> BodyProgram:
    """Return the program with norms that compensate the rounding error of the mean.

    A mean in float32 has a rounding error relative to its own size: in rows far from 0 that is large compared to their
    deviation. The differences are exact except for that one number, which is their mean; it is summed together with the
    variance, so no further round over the row is needed, and is subtracted where the differences are read. The sums
    themselves read them uncorrected: it enters the variance squared.

    Not for 16-bit floats: where the rounding of the mean, 2^-24 of it, approaches their own, 2^-11 of the deviation,
    their values are too close for the type to distinguish. Two additions per element: norms across channels of NCHW
    would take 45.4 us for 42.1, group norms 3% more (float16, 64 MB, H200, 2026-11).
    """
    live = program.live()
    means = {i: mean for i in live if (mean := _mean_of_difference(program, i)) is not None and _summed(program, i)}
    return _Rewriting(program, means).program() if means else program


def alone(program: BodyProgram) -> BodyProgram:
    """Return the program for rows of one element, in which the difference from their mean or maximum is 0.

    A product minus its own rounded value would be one fma: it yields the rounding error, and a norm divides that by the
    root of its epsilon. Only here: in longer rows it is below the rounding of the mean, and costs nothing.
    """
    values = tuple(
        replace(v, op=MINUS) if isinstance(v, Apply) and v.op == scalar.sub and element_types.is_real(v.dtype) else v
        for v in program.values
    )
    return replace(program, values=values)


def _mean_of_difference(program: BodyProgram, index: int) -> Reduce | None:
    """Return the mean of x if the value is x - mean(x)."""
    value = program.values[index]
    if not isinstance(value, Apply) or value.op != scalar.sub:
        return None
    x, mean = value.args[0], program.values[value.args[1]]
    while isinstance(mean, Move) and isinstance(mean.how, Squeezed | Unsqueezed):
        mean = program.values[mean.args[0]]
    if not isinstance(mean, Reduce) or element_types.TYPES[mean.dtype].size == 2:
        return None
    return mean if mean.kind == "mean" and mean.arg == x else None


def _summed(program: BodyProgram, index: int) -> bool:
    """Return whether a reduction depends on the value, directly or through other operations."""
    reading = {index}
    for i, value in enumerate(program.values):
        if i > index and not reading.isdisjoint(arguments(value)):
            if isinstance(value, Reduce):
                return i in program.live()
            reading.add(i)
    return False


@dataclass
class _Rewriting:
    """Maps each value to its form for reductions, and its form for all other readers."""

    old: BodyProgram
    means: dict[int, Reduce]
    """The differences, with their means."""
    values: list[Value] = field(default_factory=list)
    summed: list[int] = field(default_factory=list)
    read: list[int] = field(default_factory=list)

    def program(self) -> BodyProgram:
        """Return the program with compensated differences."""
        for index, value in enumerate(self.old.values):
            plain = self._added(_with(value, tuple(self.summed[a] for a in arguments(value))))
            self.summed.append(plain)
            if index in self.means:
                rest = self._added(replace(self.means[index], arg=plain))
                self.read.append(self._added(Apply(scalar.sub, (plain, rest), value.dtype)))
            elif isinstance(value, Reduce) or all(self.read[a] == self.summed[a] for a in arguments(value)):
                self.read.append(plain)
            else:
                self.read.append(self._added(_with(value, tuple(self.read[a] for a in arguments(value)))))
        outputs = tuple(replace(o, value=self.read[o.value]) for o in self.old.outputs)
        return BodyProgram(tuple(self.values), outputs, self.old.inputs)

    def _added(self, value: Value) -> int:
        self.values.append(value)
        return len(self.values) - 1


def _with(value: Value, args: tuple[int, ...]) -> Value:
    match value:
        case Apply() | Move():
            return replace(value, args=args)
        case Reduce():
            return replace(value, arg=args[0])
        case _:
            return value
