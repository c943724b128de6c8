"""Data movement in the body language: semantics of each operator that moves data, by (domain, op type)."""

import math
from collections.abc import Callable
from dataclasses import replace

from onnxfuse import ops
from onnxfuse.codegen.operators.node import BodyNode, ExtentList, Handlers, ShapeOf, handles
from onnxfuse.codegen.program.builder import Term
from onnxfuse.codegen.program.index_map import EDGE, REFLECT
from onnxfuse.codegen.program.movement import (
    WRAP,
    Alike,
    Concatenated,
    DepthToSpace,
    Enlarged,
    Expanded,
    ExtentOf,
    Flattened,
    Gathered,
    LookedUp,
    Movement,
    Padded,
    PaddedByItself,
    Picked,
    Repeated,
    Reshaped,
    Run,
    Sliced,
    SliceRange,
    SpaceToDepth,
    SplitOutput,
    Squeezed,
    Transposed,
    Unsqueezed,
)
from onnxfuse.codegen.program.program import Move
from onnxfuse.ops import Operator, Trait, named
from onnxfuse.support.plurals import plural
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.element_types import UnsupportedError

MOVEMENT: Handlers = {}

FREE = named(Trait.VIEW)
"""Operators for which ONNX Runtime launches nothing: the result aliases the operand's memory with another shape."""

MAX_RUNS = 8
"""Maximum runs of one Gather: each is a comparison and an address in the kernel."""


def _moves(entry: Operator) -> Callable[[Callable[[BodyNode], Movement]], Callable[[BodyNode], Movement]]:
    def enter(movement: Callable[[BodyNode], Movement]) -> Callable[[BodyNode], Movement]:
        handles(MOVEMENT, entry)(lambda node: (node.builder.move(movement(node), node.term(0)),))
        return movement

    return enter


@_moves(ops.Transpose)
def _transpose(node: BodyNode) -> Movement:
    return Transposed(_listed(node, "perm"))


@_moves(ops.Flatten)
def _flatten(node: BodyNode) -> Movement:
    return Flattened(int(node.number("axis", 1)))


@_moves(ops.Squeeze)
def _squeeze(node: BodyNode) -> Movement:
    return Squeezed(_integers(node, "axes", 1))


@_moves(ops.Unsqueeze)
def _unsqueeze(node: BodyNode) -> Movement:
    return Unsqueezed(_wanted(node, "axes", 1))


@handles(MOVEMENT, ops.Expand)
def _expand(node: BodyNode) -> tuple[Term, ...]:
    x, target = node.term(0), node.operands[1] if len(node.operands) > 1 else None
    if not isinstance(target, ExtentList):
        return (x.builder.move(Expanded(_wanted(node, "shape", 1)), x),)
    # Operand 0 is the data.
    numbers = tuple(replace(n, operand=n.operand + 1) if isinstance(n, ExtentOf) else n for n in target.numbers)
    return (x.builder.term(Move(Expanded(numbers), (x.index, *(t.index for t in target.of)), x.dtype)),)


@_moves(ops.Slice)
def _slice(node: BodyNode) -> Movement:
    starts, ends = _wanted(node, "starts", 1), _wanted(node, "ends", 2)
    axes, steps = _integers(node, "axes", 3), node.integers(4)
    axes = tuple(range(len(starts))) if axes is None else axes
    steps = (1,) * len(starts) if steps is None else steps
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise UnsupportedError(
            f"Slice by {plural(starts, 'start')}, {plural(ends, 'end')}, {plural(axes, 'axis')}, "
            f"{plural(steps, 'step')}"
        )
    return Sliced(tuple(SliceRange(*c) for c in zip(axes, starts, ends, steps, strict=True)))


@_moves(ops.DepthToSpace)
def _depth_to_space(node: BodyNode) -> Movement:
    return DepthToSpace(int(node.number("blocksize", 0)), node.text("mode", "DCR") == "CRD")


@_moves(ops.SpaceToDepth)
def _space_to_depth(node: BodyNode) -> Movement:
    return SpaceToDepth(int(node.number("blocksize", 0)))


@handles(MOVEMENT, ops.Gather)
def _gather(node: BodyNode) -> tuple[Term, ...]:
    table, numbers = node.term(0), node.operands[1]
    if isinstance(numbers, Term):
        if not element_types.is_integer(numbers.dtype):
            raise UnsupportedError(f"Gather by {element_types.name(numbers.dtype)}")
        if node.number("axis", 0):
            raise UnsupportedError("Gather by computed numbers along another axis than the first one")
        return (node.builder.term(Move(LookedUp(), (table.index, numbers.index), table.dtype)),)
    return (node.builder.move(_picks(node), table),)


def _picks(node: BodyNode) -> Movement:
    axis = int(node.number("axis", 0))
    rank, numbers = node.constant(1).ndim, node.integers(1) or ()
    if rank > 1:
        raise UnsupportedError(f"Gather by a constant of rank {rank}, expected at most 1")
    if rank == 0:
        return Picked(axis, numbers[0])
    if any(n < 0 for n in numbers):
        raise UnsupportedError("Gather by a list with negative numbers")
    runs = _runs(numbers)
    if len(runs) > MAX_RUNS:
        raise UnsupportedError(f"Gather of {plural(runs, 'run')}, expected at most {MAX_RUNS}")
    return Gathered(axis, runs)


@_moves(ops.Resize)
def _resize(node: BodyNode) -> Movement:
    """Nearest Resize by integer factors: element i comes from floor(i / factor), for any coordinate mode."""
    mode = node.text("mode", "nearest")
    centre = node.text("coordinate_transformation_mode", "half_pixel" if node.opset >= 11 else "asymmetric")
    rounding = node.text("nearest_mode", "round_prefer_floor" if node.opset >= 11 else "floor")
    # With half-pixel centres the source is less than half an element from i // factor: any rounding mode selects that.
    nearest = centre in ("half_pixel", "pytorch_half_pixel") and rounding.startswith("round_")
    if mode != "nearest" or not (nearest or (centre == "asymmetric" and rounding == "floor")):
        raise UnsupportedError(f"Resize by {mode}, {centre}, {rounding}")
    if "axes" in node.attributes or node.number("antialias", 0):
        raise UnsupportedError("Resize with axes or antialias")
    sizes = node.integers(3)
    if sizes:
        if node.text("keep_aspect_ratio_policy", "stretch") != "stretch":
            raise UnsupportedError("Resize that keeps the aspect ratio")
        return Enlarged(sizes)
    scales = [float(s) for s in node.constant(2 if node.opset >= 11 else 1).reshape(-1)]
    if any(s < 1 or not s.is_integer() for s in scales):
        raise UnsupportedError(f"Resize by {scales}, expected whole numbers")
    return Repeated(tuple(int(s) for s in scales))


@handles(MOVEMENT, ops.Reshape)
def _reshape(node: BodyNode) -> tuple[Term, ...]:
    x, like = node.term(0), node.shape_of(1)
    if like is not None:
        return (x.builder.term(Move(Alike(), (x.index, like.index), x.dtype)),)
    return (x.builder.move(Reshaped(_wanted(node, "shape", 1), not node.number("allowzero", 0)), x),)


@handles(MOVEMENT, ops.Shape)
def _shape(node: BodyNode) -> tuple[ShapeOf, ...]:
    if node.number("start", 0) or "end" in node.attributes:
        raise UnsupportedError("Shape with start or end")
    return (ShapeOf(node.term(0)),)


@handles(MOVEMENT, ops.Concat)
def _concat(node: BodyNode) -> tuple[Term, ...]:
    return (node.builder.move(Concatenated(int(node.number("axis", 0))), *node.terms()),)


@handles(MOVEMENT, ops.Split)
def _split(node: BodyNode) -> tuple[Term, ...]:
    axis, sizes = int(node.number("axis", 0)), _integers(node, "split", 1) or ()
    parts = len(sizes) or int(node.number("num_outputs", 0)) or node.outputs
    if parts != node.outputs:
        raise UnsupportedError(f"Split in {parts} with {node.outputs} outputs")
    return tuple(node.builder.move(SplitOutput(axis, n, parts, sizes), node.term(0)) for n in range(parts))


@handles(MOVEMENT, ops.Pad)
def _pad(node: BodyNode) -> tuple[Term, ...]:
    mode = node.text("mode", "constant")
    x, pads = node.term(0), _wanted(node, "pads", 1)
    before, after, axes = pads[: len(pads) // 2], pads[len(pads) // 2 :], node.integers(3)
    if len(before) != len(after) or (axes is not None and len(axes) != len(before)):
        raise UnsupportedError(
            f"Pad by {plural(pads, 'number')}" + (f" along {plural(axes, 'axis')}" if axes is not None else "")
        )
    if mode != "constant":
        if mode not in (REFLECT, EDGE, WRAP) or min(pads, default=0) < 0:
            raise UnsupportedError(f"Pad by {mode} with {list(pads)}")
        along = tuple(range(len(before))) if axes is None else axes
        return (node.builder.move(PaddedByItself(mode, tuple(zip(along, before, after, strict=True))), x),)
    number = node.optional(2) if node.opset >= 11 else node.builder.constant(node.number("value", 0.0), x.dtype)
    if number is None:
        number = node.builder.constant(0, x.dtype)
    return (node.builder.move(Padded(before, after, axes), x, number),)


@handles(MOVEMENT, ops.Tile)
def _tile(node: BodyNode) -> tuple[Term, ...]:
    x, repeats = node.term(0), node.integers(1)
    if repeats is None or math.prod(repeats) > MAX_RUNS:
        raise UnsupportedError(
            f"Tile by {None if repeats is None else list(repeats)}, expected at most {MAX_RUNS} copies"
        )
    for axis, count in enumerate(repeats):
        x = x.builder.move(Concatenated(axis), *([x] * count)) if count != 1 else x
    return (x,)


def _listed(node: BodyNode, attribute: str) -> tuple[int, ...] | None:
    value = node.attributes.get(attribute)
    return tuple(int(n) for n in value) if isinstance(value, list) else None


def _integers(node: BodyNode, name: str, position: int) -> tuple[int, ...] | None:
    """Return a list of integers that was an attribute in older versions of the op; None if absent."""
    listed = _listed(node, name)
    return node.integers(position) if listed is None else listed


def _wanted(node: BodyNode, name: str, position: int) -> tuple[int, ...]:
    numbers = _integers(node, name, position)
    if numbers is None:
        raise UnsupportedError(f"{node.op_type} without {name}")
    return numbers


def _runs(numbers: tuple[int, ...]) -> tuple[Run, ...]:
    """Return the numbers as a minimal list of arithmetic runs.

    >>> _runs((0, 1, 2, 7, 5, 3))
    (Run(start=0, step=1, length=3), Run(start=7, step=-2, length=3))
    """
    runs: list[Run] = []
    for number in numbers:
        last = runs[-1] if runs else None
        if last is not None and last.length == 1:
            runs[-1] = Run(last.start, number - last.start, 2)
        elif last is not None and number == last.start + last.step * last.length:
            runs[-1] = Run(last.start, last.step, last.length + 1)
        else:
            runs.append(Run(number, 1, 1))
    return tuple(runs)
