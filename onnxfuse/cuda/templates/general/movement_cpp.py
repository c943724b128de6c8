"""Data movement by coordinates: C++ that returns the element at `c` of a movement's result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, singledispatch
from itertools import accumulate

from onnxfuse.codegen.program.movement import (
    Concatenated,
    DepthToSpace,
    Enlarged,
    Expanded,
    Gathered,
    LookedUp,
    Movement,
    Padded,
    PaddedByItself,
    Picked,
    Repeated,
    Sliced,
    SpaceToDepth,
    SplitOutput,
    Transposed,
    View,
)
from onnxfuse.cuda.templates.general.numbers import WordTable
from onnxfuse.ops.shapes.extents import axis_of
from onnxfuse.ops.shapes.moved import permutation
from onnxfuse.symbolic.branching import larger
from onnxfuse.symbolic.strides import Shape

Element = Callable[[int, list[str]], str]
"""C++ of an operand's element, by operand index, at these coordinates."""


def read_operands(how: Movement, count: int) -> range:
    """Return the operands of a movement whose elements are read; of the others only the shape matters."""
    return range(count) if isinstance(how, Concatenated | Padded | LookedUp) else range(1)


def statements(
    how: Movement, shapes: tuple[Shape, ...], shape: Shape, numbers: WordTable, element: Element
) -> list[str]:
    """Return the statements that return the element at the coordinates `c` of the result, which is of `shape`."""
    return _statements(how, _Result(shapes, shape, numbers, element))


@dataclass(frozen=True)
class _Result:
    """The result of a movement, and what its statements are written with."""

    shapes: tuple[Shape, ...]
    """Of the operands."""
    shape: Shape
    numbers: WordTable
    element: Element

    @cached_property
    def at(self) -> list[str]:
        """C++ of the coordinates of the element."""
        return [f"c[{d}]" for d in range(len(self.shape))]

    def found(self, operand: int, coordinates: list[str]) -> str:
        """Return C++ that returns the element of an operand at these coordinates."""
        return f"return {self.element(operand, coordinates)};"

    def along(self, axis: int, coordinate: str) -> list[str]:
        """Return the coordinates with another one along an axis."""
        return [*self.at[:axis], coordinate, *self.at[axis + 1 :]]


@singledispatch
def _statements(how: Movement, result: _Result) -> list[str]:
    raise AssertionError(f"no statements of {how}")


@_statements.register(Transposed)
def _(how: Transposed, result: _Result) -> list[str]:
    rank = len(result.shapes[0])
    axes = permutation(how.perm, rank)
    return [result.found(0, [result.at[axes.index(d)] for d in range(rank)])]


@_statements.register(View)
def _(how: View, result: _Result) -> list[str]:
    of, shape, numbers = result.shapes[0], result.shape, result.numbers
    rank = len(of)
    position = f"position<{len(shape)}>(c, {numbers.extents(shape)})"
    lines = [f"Index o[{max(rank, 1)}];", f"coordinates<{rank}>({position}, {numbers.extents(of)}, o);"]
    return [*lines, result.found(0, [f"o[{d}]" for d in range(rank)])]


@_statements.register(Expanded)
def _(how: Expanded, result: _Result) -> list[str]:
    return [result.found(0, result.at[len(result.shape) - len(result.shapes[0]) :])]


@_statements.register(Sliced)
def _(how: Sliced, result: _Result) -> list[str]:
    of, at = result.shapes[0], result.at
    moved = list(at)
    for part in how.cuts:
        axis = axis_of(part.axis, len(of))
        start = result.numbers.one(part.part(of)[0])
        moved[axis] = f"{at[axis]} * {part.step}ll + {start}"
    return [result.found(0, moved)]


@_statements.register(SplitOutput)
def _(how: SplitOutput, result: _Result) -> list[str]:
    of = result.shapes[0]
    axis = axis_of(how.axis, len(of))
    begin = result.numbers.one(sum(how.extents(of)[: how.number]))
    return [result.found(0, result.along(axis, f"{result.at[axis]} + {begin}"))]


@_statements.register(Picked)
def _(how: Picked, result: _Result) -> list[str]:
    of, at = result.shapes[0], result.at
    axis = axis_of(how.axis, len(of))
    picked = result.numbers.one(how.at + of[axis] if how.at < 0 else how.at)
    return [result.found(0, [*at[:axis], picked, *at[axis:]])]


@_statements.register(Gathered)
def _(how: Gathered, result: _Result) -> list[str]:
    axis = axis_of(how.axis, len(result.shapes[0]))
    at, lines = result.at[axis], []
    for end, r in zip(accumulate(r.length for r in how.runs), how.runs, strict=True):
        coordinate = f"({at} - {end - r.length}) * {r.step} + {r.start}"
        lines.append(f"if ({at} < {end}) {result.found(0, result.along(axis, coordinate))}")
    return [*lines, "return 0;"]


@_statements.register(LookedUp)
def _(how: LookedUp, result: _Result) -> list[str]:
    table, indices = result.shapes[:2]
    declared = f"const Index given = (Index){result.element(1, result.at[: len(indices)])};"
    rows = result.numbers.one(table[0])
    row = f"const Index row = given < 0 ? given + {rows} : given;"
    # Zeros where there is no row, as ONNX Runtime's Gather gives on CUDA.
    none = f"if (row < 0 || row >= {rows}) return 0;"
    return [declared, row, none, result.found(0, ["row", *result.at[len(indices) :]])]


@_statements.register(Concatenated)
def _(how: Concatenated, result: _Result) -> list[str]:
    axis = axis_of(how.axis, len(result.shapes[0]))
    at, lines, begin = result.at[axis], [], 0
    for n, operand in enumerate(result.shapes):
        end = begin + operand[axis]
        moved = result.along(axis, f"{at} - {result.numbers.one(begin)}")
        last = n == len(result.shapes) - 1
        lines.append(("" if last else f"if ({at} < {result.numbers.one(end)}) ") + result.found(n, moved))
        begin = end
    return lines


@_statements.register(Padded)
def _(how: Padded, result: _Result) -> list[str]:
    of, at = result.shapes[0], result.at
    moved, tests = list(at), []
    for axis, (before, _) in how.margins(len(of)).items():
        moved[axis] = f"{at[axis]} - {before}"
        tests.append(f"{moved[axis]} >= 0 && {moved[axis]} < {result.numbers.one(of[axis])}")
    around = result.found(1, ["0"] * len(result.shapes[1]))
    return [f"if ({' && '.join(tests) or 'true'}) {result.found(0, moved)}", around]


@_statements.register(PaddedByItself)
def _(how: PaddedByItself, result: _Result) -> list[str]:
    of, moved = result.shapes[0], list(result.at)
    for number, before, _ in how.around:
        axis = axis_of(number, len(of))
        moved[axis] = f"around_{how.mode}({result.at[axis]} - {before}, {result.numbers.one(of[axis])})"
    return [result.found(0, moved)]


@_statements.register(Repeated)
def _(how: Repeated, result: _Result) -> list[str]:
    return [result.found(0, [f"quotient({a}, {f})" for a, f in zip(result.at, how.factors, strict=True)])]


@_statements.register(Enlarged)
def _(how: Enlarged, result: _Result) -> list[str]:
    by = [result.numbers.one(n // larger(m, 1)) for m, n in zip(result.shapes[0], how.sizes, strict=True)]
    return [result.found(0, [f"quotient({a}, {f})" for a, f in zip(result.at, by, strict=True)])]


@_statements.register(DepthToSpace)
def _(how: DepthToSpace, result: _Result) -> list[str]:
    of, at, block = result.shapes[0], result.at, how.block
    inside, depth = f"({at[2]} % {block} * {block} + {at[3]} % {block})", result.numbers.one(of[1] // block**2)
    channel = f"{at[1]} * {block**2} + {inside}" if how.columns_first else f"{inside} * {depth} + {at[1]}"
    return [result.found(0, [at[0], channel, f"{at[2]} / {block}", f"{at[3]} / {block}"])]


@_statements.register(SpaceToDepth)
def _(how: SpaceToDepth, result: _Result) -> list[str]:
    of, at, block, numbers = result.shapes[0], result.at, how.block, result.numbers
    inside, channels = f"quotient({at[1]}, {numbers.one(of[1])})", numbers.one(of[1])
    row, column = f"{at[2]} * {block} + {inside} / {block}", f"{at[3]} * {block} + {inside} % {block}"
    return [result.found(0, [at[0], f"{at[1]} - {inside} * {channels}", row, column])]
