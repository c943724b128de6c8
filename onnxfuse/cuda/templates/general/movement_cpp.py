"""Data movement by coordinates: C++ that returns the element at `c` of a movement's result."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

from onnxfuse.codegen.program.movement import (
    Alike,
    Channelled,
    Concatenated,
    DepthToSpace,
    Enlarged,
    Expanded,
    Flattened,
    Gathered,
    Grouped,
    LookedUp,
    Movement,
    Padded,
    Picked,
    Repeated,
    Reshaped,
    Sliced,
    SpaceToDepth,
    SplitOutput,
    Squeezed,
    Transposed,
    Unsqueezed,
)
from onnxfuse.cuda.templates.general.numbers import Numbers
from onnxfuse.cuda.templates.general.shapes import axis_of, margins, parted, sliced
from onnxfuse.symbolic.branching import larger
from onnxfuse.symbolic.strides import Shape

Element = Callable[[int, list[str]], str]
"""C++ of an operand's element, by operand index, at these coordinates."""


def read_operands(how: Movement, count: int) -> range:
    """Return the operands of a movement whose elements are read; of the others only the shape matters."""
    return range(count) if isinstance(how, Concatenated | Padded | LookedUp) else range(1)


def statements(how: Movement, shapes: tuple[Shape, ...], shape: Shape, numbers: Numbers, element: Element) -> list[str]:
    """Return the statements that return the element at the coordinates `c` of the result, which is of `shape`."""
    of, rank = shapes[0], len(shapes[0])
    at = [f"c[{d}]" for d in range(len(shape))]

    def found(operand: int, coordinates: list[str]) -> str:
        return f"return {element(operand, coordinates)};"

    def along(axis: int, coordinate: str) -> list[str]:
        return [*at[:axis], coordinate, *at[axis + 1 :]]

    match how:
        case Transposed(perm=perm):
            axes = list(reversed(range(rank)) if perm is None else perm)
            return [found(0, [at[axes.index(d)] for d in range(rank)])]
        case Reshaped() | Alike() | Channelled() | Grouped() | Flattened() | Squeezed() | Unsqueezed():
            place = f"position<{len(shape)}>(c, {numbers.extents(shape)})"
            lines = [f"Index o[{max(rank, 1)}];", f"coordinates<{rank}>({place}, {numbers.extents(of)}, o);"]
            return [*lines, found(0, [f"o[{d}]" for d in range(rank)])]
        case Expanded():
            return [found(0, at[len(shape) - rank :])]
        case Sliced(cuts=cuts):
            moved = list(at)
            for cut in cuts:
                axis = axis_of(cut.axis, rank)
                start = numbers.one(sliced(cut, of[axis])[0])
                moved[axis] = f"{at[axis]} * {cut.step}ll + {start}"
            return [found(0, moved)]
        case SplitOutput(axis=axis, number=number):
            axis = axis_of(axis, rank)
            return [found(0, along(axis, f"{at[axis]} + {numbers.one(sum(parted(how, of[axis])[:number]))}"))]
        case Picked(axis=axis, at=element_at):
            axis = axis_of(axis, rank)
            picked = numbers.one(element_at + of[axis] if element_at < 0 else element_at)
            return [found(0, [*at[:axis], picked, *at[axis:]])]
        case Gathered(axis=axis, runs=runs):
            axis = axis_of(axis, rank)
            ends, lines = list(accumulate(r.length for r in runs)), []
            for end, r in zip(ends, runs, strict=True):
                place = f"({at[axis]} - {end - r.length}) * {r.step} + {r.start}"
                lines.append(f"if ({at[axis]} < {end}) {found(0, along(axis, place))}")
            return [*lines, "return 0;"]
        case LookedUp():
            given = f"const Index given = (Index){element(1, at[: len(shapes[1])])};"
            rows = numbers.one(of[0])
            row = f"const Index row = given < 0 ? given + {rows} : given;"
            # Out-of-range rows read as zeros, as in ONNX Runtime's Gather on CUDA.
            none = f"if (row < 0 || row >= {rows}) return 0;"
            return [given, row, none, found(0, ["row", *at[len(shapes[1]) :]])]
        case Concatenated(axis=axis):
            axis = axis_of(axis, rank)
            lines, begin = [], 0
            for n, operand in enumerate(shapes):
                end = begin + operand[axis]
                moved = along(axis, f"{at[axis]} - {numbers.one(begin)}")
                last = n == len(shapes) - 1
                lines.append(("" if last else f"if ({at[axis]} < {numbers.one(end)}) ") + found(n, moved))
                begin = end
            return lines
        case Padded():
            moved, tests = list(at), []
            for axis, (before, _) in margins(how, rank).items():
                moved[axis] = f"{at[axis]} - {before}"
                tests.append(f"{moved[axis]} >= 0 && {moved[axis]} < {numbers.one(of[axis])}")
            around = f"return {element(1, ['0'] * len(shapes[1]))};"
            return [f"if ({' && '.join(tests) or 'true'}) {found(0, moved)}", around]
        case Repeated(factors=factors):
            return [found(0, [f"quotient({a}, {f})" for a, f in zip(at, factors, strict=True)])]
        case Enlarged(sizes=sizes):
            by = [numbers.one(n // larger(m, 1)) for m, n in zip(of, sizes, strict=True)]
            return [found(0, [f"quotient({a}, {f})" for a, f in zip(at, by, strict=True)])]
        case DepthToSpace(block=block, columns_first=columns_first):
            inside, depth = f"({at[2]} % {block} * {block} + {at[3]} % {block})", numbers.one(of[1] // block**2)
            channel = f"{at[1]} * {block**2} + {inside}" if columns_first else f"{inside} * {depth} + {at[1]}"
            return [found(0, [at[0], channel, f"{at[2]} / {block}", f"{at[3]} / {block}"])]
        case SpaceToDepth(block=block):
            inside, channels = f"quotient({at[1]}, {numbers.one(of[1])})", numbers.one(of[1])
            row, column = f"{at[2]} * {block} + {inside} / {block}", f"{at[3]} * {block} + {inside} % {block}"
            return [found(0, [at[0], f"{at[1]} - {inside} * {channels}", row, column])]
