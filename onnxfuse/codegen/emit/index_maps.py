"""Emit index maps as C++: offsets, bounds checks, and strides along one dimension.

Extents are kernel parameters, not literals: other extents with the same structure share one kernel.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from onnxfuse.codegen.emit.lower_movement import Guard, Read, Source
from onnxfuse.codegen.program.index_map import Bound, Folded, Index, Space, SpaceDigit
from onnxfuse.symbolic import strides
from onnxfuse.symbolic.branching import gcd, position
from onnxfuse.symbolic.operations import FLOOR
from onnxfuse.symbolic.strides import Shape


@dataclass
class MapScalars:
    """Scalar parameters of a kernel's maps; equal values share one, so that the compiler merges equal conditions."""

    bits: int
    """Width of the index type."""
    numbers: list[int] = field(default_factory=list)
    divisors: list[int] = field(default_factory=list)

    def number(self, value: int) -> str:
        """Return C++ for `value`; negative values wrap around, like the index type's arithmetic."""
        if value in (0, 1):
            return str(value)
        return f"p.number[{position(self.numbers, value)}]"

    def divisor(self, value: int) -> str:
        """Return C++ for a divisor."""
        return f"p.divisor[{position(self.divisors, value)}]"

    def words(self) -> list[int]:
        """Return the words of `Parameters`: divisors, then plain numbers; at least one of each."""
        numbers = [n % (1 << self.bits) for n in self.numbers]
        return [*strides.divisors(self.divisors or [1], self.bits), *(numbers or [0])]


def cpp(index: Index, numbers: MapScalars) -> str:
    """Return `index` as C++ over the coordinates `c` of an element."""
    parts = [] if index.constant == 0 and index.terms else [numbers.number(index.constant)]
    for atom, factor in index.terms:
        if isinstance(atom, SpaceDigit):
            text = f"c[{atom.number}]"
        elif isinstance(atom, Folded):
            text = f"folded_{atom.mode}({cpp(atom.index, numbers)}, {numbers.number(atom.extent)})"
        else:
            work = "quotient" if atom.op == FLOOR else "remainder"
            text = f"{work}({cpp(atom.index, numbers)}, {numbers.divisor(atom.by)})"
        parts.append(text if factor == 1 else f"{text} * {numbers.number(factor)}")
    return " + ".join(parts)


def condition(bound: Bound, space: Space, numbers: MapScalars) -> str:
    """Return `bound` as C++, without a side that always holds."""
    least, greatest = space.range(bound.index)
    text = cpp(bound.index, numbers)
    if least >= max(bound.low, 0):
        return f"({text}) < {numbers.number(bound.high)}"
    if least >= 0 and greatest < bound.high:
        return f"({text}) >= {numbers.number(bound.low)}"
    # Below `low` the unsigned difference wraps around to a large number.
    return f"({text}) - {numbers.number(bound.low)} < {numbers.number(bound.high - bound.low)}"


def finder(name: str, source: Source, space: Space, numbers: MapScalars) -> str:
    """Return the struct of a source: `find` of a read, and `input` if it has several; `holds` of a guard."""
    if isinstance(source, Guard):
        holds = " && ".join(condition(b, space, numbers) for b in source.bounds)
        return (
            f"struct {name} {{\n  DEVICE static bool holds(const Place& at, const Parameters& p) {{\n"
            f"    const auto& c = at.coordinate;\n    return {holds};\n  }}\n}};\n"
        )
    lines, inputs = [], []
    for case in source.cases:
        found = f"{{ position = {cpp(case.position, numbers)}; return true; }}"
        test = " && ".join(condition(b, space, numbers) for b in case.bounds)
        lines.append(f"    if ({test}) {found}\n" if test else f"    {found}\n")
        inputs.append(f"    if ({test}) return from.in{case.input};\n")
    which = (
        "  template <class P> DEVICE static auto input(const P& from, const Place& at, const Parameters& p) {\n"
        f"    const auto& c = at.coordinate;\n{''.join(inputs[:-1])}    return from.in{source.cases[-1].input};\n  }}\n"
    )
    return (
        f"struct {name} {{\n  DEVICE static bool find(const Place& at, const Parameters& p, Index& position) {{\n"
        f"    const auto& c = at.coordinate;\n    position = 0;\n{''.join(lines)}    return false;\n  }}\n"
        f"{which if len(source.inputs) > 1 else ''}}};\n"
    )


# ---- contiguous runs


def varies(index: Index, dimension: int) -> bool:
    """Return whether `index` depends on the coordinate of this dimension."""
    return any(i.factor(dimension) for i in index.inner())


def fixed(source: Source, dimensions: Iterable[int]) -> bool:
    """Return whether a source is independent of the coordinates of these dimensions."""
    return not any(varies(i, d) for d in dimensions for i in source.indices)


def tail(extents: Shape, width: int) -> int:
    """Return the number of trailing dimensions that a vector may span: as few as it divides evenly, else all."""
    fitting = (k for k in range(1, len(extents)) if math.prod(extents[-k:]) % width == 0)
    return next(fitting, len(extents))


def run(source: Source, extents: Shape, width: int) -> int:
    """Return how many adjacent output elements are contiguous in the input, from each multiple of it: 1..`width`.

    `width` is a power of 2. The input runs are aligned to that number as well: one access loads each.
    """
    best = 1
    for k in range(1, len(extents) + 1):
        dimensions = tuple(range(len(extents) - k, len(extents)))
        if not all(_dense(i, extents, dimensions[0]) for i in source.indices):
            break
        whole = k == len(extents)
        best = max(best, granularity(source, dimensions, width if whole else gcd(width, math.prod(extents[-k:]))))
    return best


def _dense(index: Index, extents: Shape, first: int) -> bool:
    """Return whether the index traverses the dimensions from `first` on like a single one."""
    inner = index.factor(len(extents) - 1)
    return all(index.factor(d) == inner * math.prod(extents[d + 1 :]) for d in range(first, len(extents)))


def granularity(source: Source, dimensions: tuple[int, ...], width: int) -> int:
    """Return `run` along these dimensions alone, which the source traverses like a single one."""
    common = width
    for index in _positions(source):
        if index.factor(dimensions[-1]) != 1 or any(index.divides_by_digit(d) for d in dimensions):
            return 1
        common = gcd(common, index.constant, *others(index, dimensions))
    for bound in _bounds(source):
        if not any(varies(bound.index, d) for d in dimensions):
            continue
        if bound.index.factor(dimensions[-1]) != 1 or any(bound.index.divides_by_digit(d) for d in dimensions):
            return 1
        edges = (bound.low - bound.index.constant, bound.high - bound.index.constant)
        common = gcd(common, *edges, *others(bound.index, dimensions))
    return common


def _positions(source: Source) -> Iterable[Index]:
    return (c.position for c in source.cases) if isinstance(source, Read) else ()


def _bounds(source: Source) -> Iterable[Bound]:
    return source.bounds if isinstance(source, Guard) else (b for c in source.cases for b in c.bounds)


def others(index: Index, dimensions: tuple[int, ...]) -> Iterable[int]:
    """Return the coefficients of all but these dimensions' coordinates."""
    return (f for a, f in index.terms if not (isinstance(a, SpaceDigit) and a.number in dimensions))
