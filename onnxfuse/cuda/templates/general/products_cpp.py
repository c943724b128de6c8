"""Matrix products and convolutions in a general kernel: tiled, or element by element for grouped channels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from onnx import TensorProto

from onnxfuse.codegen.program.program import Contraction, SlidingWindow
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape

if TYPE_CHECKING:
    from onnxfuse.cuda.templates.general.values_cpp import Text


def stage(text: Text, contract: Contraction, shape: Shape, to: str) -> str:
    """Return the code that computes a contraction of this shape in scratch memory."""
    matrices = not isinstance(text.program.values[contract.args[0]], SlidingWindow)
    if matrices and contract.accumulator == TensorProto.INT32:
        return text.loop(shape, [*_integers(text, contract, shape), f"keep({to}, n, sum);"])
    if element_types.computed(contract.accumulator) != "float":
        raise UnsupportedError(f"products of {element_types.name(contract.dtype)}")
    if matrices:
        return _matrices(text, contract, shape, to)
    if contract.groups == 1:
        return _images(text, contract, shape, to)
    return text.loop(shape, [*_groups(text, contract), f"keep({to}, n, sum.get());"])


def _matrices(text: Text, contract: Contraction, shape: Shape, to: str) -> str:
    (left, _), rank = contract.args, len(shape)
    batch = (*shape[: rank - 2],)
    rows, columns = (text.numbers.extent(shape, axis) for axis in (rank - 2, rank - 1))
    terms = text.numbers.extent(text.shapes[left], len(text.shapes[left]) + contract.axes[0])
    split = (
        f"Index c[{len(batch)}]; coordinates<{len(batch)}>(batch, {text.numbers.extents(batch)}, c); " if batch else ""
    )
    read = []
    for arg, axis, other in zip(contract.args, contract.axes, ("row", "column"), strict=True):
        own = len(text.shapes[arg])
        outer = [f"c[{rank - own + d}]" for d in range(own - 2)]
        read.append(f"{split}return {text.call(arg, [*outer, *((other, 'k') if axis == -1 else ('k', other))])};")
    return _product(
        (contract.axes[0] == -1, contract.axes[1] == -1),
        (f"elements<{len(batch)}>({text.numbers.extents(batch)})", rows, columns, terms),
        (read[0], read[1], f"keep({to}, (batch * {rows} + row) * {columns} + column, value);"),
    )


def _integers(text: Text, contract: Contraction, shape: Shape) -> list[str]:
    """Return the statements after which `sum` is an element of a product of integers: terms one by one, modulo 2^32, as
    tensor cores and the library add them."""
    (left, right), rank = contract.args, len(shape)
    terms = text.numbers.extent(text.shapes[left], len(text.shapes[left]) + contract.axes[0])
    read = []
    for arg, axis, other in zip((left, right), contract.axes, (f"c[{rank - 2}]", f"c[{rank - 1}]"), strict=True):
        own = len(text.shapes[arg])
        outer = [f"c[{rank - own + d}]" for d in range(own - 2)]
        read.append(text.call(arg, [*outer, *((other, "k") if axis == -1 else ("k", other))]))
    term = f"(unsigned)((int){read[0]} * (int){read[1]})"
    return ["unsigned bits = 0;", f"for (Index k = 0; k < {terms}; ++k) bits += {term};", "const int sum = (int)bits;"]


def _images(text: Text, contract: Contraction, shape: Shape, to: str) -> str:
    """Implicit GEMM: rows are the positions of all images, terms the channels times taps."""
    seen, filters = contract.args
    positions, taps = (shape[0], *shape[2:]), (*text.shapes[filters][1:],)
    rank, columns = len(positions), text.numbers.extent(text.shapes[filters], 0)
    rows, terms = (f"elements<{rank}>({text.numbers.extents(s)})" for s in (positions, taps))
    at, tap = ([f"{name}[{d}]" for d in range(rank)] for name in "rq")
    split = f"Index q[{rank}]; coordinates<{rank}>(k, {text.numbers.extents(taps)}, q);"
    window = text.call(seen, [at[0], tap[0], *at[1:], *tap[1:]], ", seen")
    each = text.numbers.one(math.prod(shape[2:]))
    return _product(
        (False, True),
        ("1", rows, columns, terms),
        (
            f"Index r[{rank}]; coordinates<{rank}>(row, {text.numbers.extents(positions)}, r); {split} "
            f"bool seen; return {window};",
            f"{split} return {text.call(filters, ['column', *tap])};",
            f"const Index image = quotient(row, {each}); "
            f"keep({to}, (image * {columns} + column) * {each} + row - image * {each}, value);",
        ),
    )


def _product(along: tuple[bool, bool], sizes: tuple[str, ...], work: tuple[str, str, str]) -> str:
    """Return the call of `multiply`: sizes, and functors that read the factors and store the results."""
    return (
        f"    multiply<{', '.join(str(a).lower() for a in along)}>(\n      {', '.join(sizes)},\n"
        f"      [&](Index batch, Index row, Index k) {{ {work[0]} }},\n"
        f"      [&](Index batch, Index k, Index column) {{ {work[1]} }},\n"
        f"      [&](Index batch, Index row, Index column, float value) {{ {work[2]} }});\n"
    )


def _groups(text: Text, contract: Contraction) -> list[str]:
    """Return the statements after which `sum` is an element of a grouped convolution."""
    seen, filters = contract.args
    of, extent = text.shapes[filters], text.numbers.extent
    dims, channels, group = len(of) - 2, extent(of, 1), text.numbers.one(of[0] // contract.groups)
    taps, positions = [f"k{d}" for d in range(dims)], [f"c[{2 + d}]" for d in range(dims)]
    pixel = text.call(seen, ["c[0]", "begin + i", *positions, *taps], ", seen")
    return [
        f"Sum sum; const Index begin = quotient(c[1], {group}) * {channels};",
        f"for (Index i = 0; i < {channels}; ++i)",
        *(f"for (Index k{d} = 0; k{d} < {extent(of, 2 + d)}; ++k{d})" for d in range(dims)),
        f"{{ bool seen; const float a = {pixel}; if (seen) sum.add(a, {text.call(filters, ['c[1]', 'i', *taps])}); }}",
    ]
