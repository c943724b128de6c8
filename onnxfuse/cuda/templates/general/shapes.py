"""Symbolic shapes of a program's values, branching only on whether the op supports the inputs.

`BodyProgram.shapes` computes the same for integers; while a program is recorded it branches at each step, which would
restrict the recorded answer. Here one answer holds for all extents.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnxfuse.codegen.program.program import (
    Apply,
    Attend,
    BodyProgram,
    Constant,
    Contraction,
    Input,
    Move,
    Reduce,
    Resample,
    SlidingWindow,
    Unpacked,
    reduced_axes,
)
from onnxfuse.codegen.program.window import Along, Resizing
from onnxfuse.ops.shapes.extents import broadcast
from onnxfuse.ops.shapes.products import multiplied, reduced
from onnxfuse.support.plurals import plural
from onnxfuse.symbolic.branching import merged, want
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape
from onnxfuse.symbolic.traced_numbers import both, either


def of_values(program: BodyProgram, input_shapes: tuple[Shape, ...]) -> dict[int, Shape]:
    """Return the shape of each value that some output depends on."""
    if len(input_shapes) != len(program.inputs):
        raise UnsupportedError(f"{plural(input_shapes, 'input shape')}, expected {len(program.inputs)}")
    shapes: dict[int, Shape] = {}
    for index in sorted(program.live()):
        match program.values[index]:
            case Input(index=number):
                shapes[index] = input_shapes[number]
            case Constant(shape=shape):
                shapes[index] = shape
            case Apply(args=args):
                shapes[index] = broadcast([shapes[a] for a in args])
            case Reduce() as reduce:
                of = shapes[reduce.arg]
                shapes[index] = reduced(of, reduced_axes(reduce, len(of)), keep=True)
            case Move(how=how, args=args):
                shapes[index] = how.shape(tuple(shapes[a] for a in args))
            case SlidingWindow() as window:
                shapes[index] = _seen(window, tuple(shapes[a] for a in window.args))
            case Unpacked(args=args) as weight:
                shapes[index] = weight.shape(tuple(shapes[a] for a in args))
            case Contraction(args=(left, right)) as contract:
                seen = isinstance(program.values[left], SlidingWindow)
                of, by = shapes[left], shapes[right]
                shapes[index] = _convolved(contract, of, by) if seen else multiplied(of, by, contract.axes)
            case Resample(arg=arg, how=resizing):
                shapes[index] = _resampled(resizing, shapes[arg])
            case Attend() as attend:
                shapes[index] = _attended(attend, tuple(shapes[a] for a in attend.args))
    return shapes


# ---- what contracts


@dataclass(frozen=True)
class Windows:
    """Windows over images, along depth, rows and columns."""

    out: Along
    """Number of windows."""
    begin: Along
    """Padding before the image."""
    end: Along
    """Padding after it, without what the last windows read beyond it."""
    kernel: Along
    """Extents of each."""


def windows(window: SlidingWindow, shapes: tuple[Shape, ...]) -> Windows:
    """Return the windows over images of these shapes."""
    dims = len(shapes[0]) - 2
    want(dims in (1, 2, 3) and window.dims in ((0, dims) if dims < 3 else (3,)), lambda: f"images of shape {shapes[0]}")
    row = (1,) * (2 - dims)
    if window.kernel is None:
        want(len(shapes[1]) == len(shapes[0]), lambda: f"filters of shape {shapes[1]}")
    kernel = window.kernel or row + shapes[1][2:]
    for n in kernel:
        want(n > 0, lambda: f"a window of {kernel} elements")

    def geometry_numbers() -> tuple[int, ...]:
        geometry = window.sliding.over((1, *row, *shapes[0][2:], 1), kernel)
        end = (padding - beyond for padding, beyond in zip(geometry.end, geometry.overhang, strict=True))
        return (*geometry.out, *geometry.begin, *end)

    numbers, axes = merged(geometry_numbers), len(kernel)
    return Windows(numbers[:axes], numbers[axes : 2 * axes], numbers[2 * axes :], kernel)


def _seen(window: SlidingWindow, shapes: tuple[Shape, ...]) -> Shape:
    dims = len(shapes[0]) - 2
    over = windows(window, shapes)
    return (*shapes[0][:2], *over.out[-dims:], *over.kernel[-dims:])


def _convolved(contract: Contraction, window: Shape, filters: Shape) -> Shape:
    dims = (len(window) - 2) // 2
    groups = contract.groups
    want(
        groups > 0 and both(filters[1] * groups == window[1], filters[0] % groups == 0),
        lambda: f"{groups} groups, {window[1]} channels, filters of shape {filters}",
    )
    return (window[0], filters[0], *window[2 : 2 + dims])


def _resampled(how: Resizing, shape: Shape) -> Shape:
    want(len(shape) == 4, lambda: f"images of rank {len(shape)}")
    batch, channels, *image = shape
    return (batch, channels, *how.over((image[0], image[1])))


def _attended(attend: Attend, shapes: tuple[Shape, ...]) -> Shape:
    q, k, v = shapes[:3]
    ranks = [len(s) for s in shapes]
    want(ranks[:3] == [3, 3, 3] and max(ranks) < 5, lambda: f"attention of ranks {ranks}, expected 3, 3, 3 and 4")
    heads = attend.heads
    same = both(both(q[0] == k[0], k[:2] == v[:2]), both(q[2] == k[2], both(q[2] % heads == 0, v[2] % heads == 0)))
    want(same, lambda: f"{heads} heads of queries {q}, keys {k}, values {v}")
    if len(shapes) > 3:
        whole = (q[0], heads, q[1], k[1])
        for n, m in zip(shapes[3][::-1], whole[::-1], strict=False):
            want(either(n == 1, n == m), lambda: f"a bias of shape {shapes[3]} on scores of {whole}")
    return (*q[:2], v[2])
