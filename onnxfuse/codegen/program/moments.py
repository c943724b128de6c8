"""Recognize norms: programs whose reductions are the mean and the variance of a value."""

from dataclasses import dataclass

from onnxfuse.codegen.program.program import Apply, BodyProgram, Reduce
from onnxfuse.ops import scalar
from onnxfuse.symbolic import element_types


@dataclass(frozen=True)
class Moments:
    """The reductions of a norm, as indices of values."""

    value: int
    """The normalized value; it depends on no reduction."""
    mean: int
    variances: tuple[int, ...]
    """Means of squared differences from the mean."""
    rests: tuple[int, ...]
    """Means of these differences: the rounding error of the mean, see `recentre`."""


def moments(program: BodyProgram) -> Moments | None:
    """Return mean and variance if all reductions of a movement-free program are these; else None.

    Both can be computed in one pass over the values, in float32 arithmetic.
    """
    levels, reductions = program.levels, program.reductions()
    of = {i: v for i in reductions if isinstance(v := program.values[i], Reduce)}
    first = [i for i in reductions if levels[i] == 1]
    if any(v.kind != "mean" or element_types.computed(v.dtype) != "float" for v in of.values()) or len(first) != 1:
        return None
    mean, value = first[0], of[first[0]].arg
    differences = {
        i
        for i, v in enumerate(program.values)
        if isinstance(v, Apply) and v.op == scalar.sub and v.args == (value, mean)
    }
    squares = {
        i
        for i, v in enumerate(program.values)
        if isinstance(v, Apply) and v.op == scalar.mul and v.args[0] == v.args[1] and v.args[0] in differences
    }
    rests = tuple(i for i, v in of.items() if v.arg in differences)
    variances = tuple(i for i, v in of.items() if v.arg in squares)
    if not variances or len(rests) + len(variances) + 1 != len(of):
        return None
    return Moments(value, mean, variances, rests)
