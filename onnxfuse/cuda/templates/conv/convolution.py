"""Parse a body around a convolution, pooling or resizing: its window and layout, and the pointwise remainder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from onnxfuse.codegen.operators import read
from onnxfuse.codegen.program.images import LAST, ImageProblem, image_problem, image_works
from onnxfuse.codegen.program.movement import Concatenated, Squeezed
from onnxfuse.codegen.program.program import BodyProgram, Contraction, Input, Move, Reduce, Resample
from onnxfuse.codegen.program.slices import between
from onnxfuse.codegen.program.window import Along, Counted, Pair, Resizing, Sliding, WindowGeometry
from onnxfuse.cuda.isa.factors import BFLOAT16, FLOAT16, INTEGERS, TF32, FactorType, factors_of
from onnxfuse.model.fused import FusedOp
from onnxfuse.support.plurals import plural
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape

FACTORS = (FLOAT16, BFLOAT16, TF32, *INTEGERS)
"""Supported element types of images and filters."""
MOST_TAPS = 81
"""Maximum elements of a window: the source unrolls each for every output of a thread."""


@dataclass(frozen=True)
class Pooling:
    """A window operation without weights."""

    mean: bool
    """Average; else maximum."""
    kernel: Along
    counted: Counted
    """What an average divides by the number of."""


@dataclass(frozen=True)
class MeanOutput:
    """The mean of an output over the positions of each image, as an additional output."""

    position: int
    """Index among the op's outputs."""
    of: int
    """Index of the averaged output."""
    keepdims: bool
    """Whether its shape is [batch, 1, 1, channels]; else [batch, channels]."""


@dataclass(frozen=True)
class Convolution:
    """A parsed body."""

    x: int
    """Index of the image among the op's inputs."""
    w: int
    """Index of the weights; -1 for a pooling."""
    images_last: bool
    """Whether images are channels last, [N, ..., C]; else [N, C, ...]."""
    channels_last: bool
    """Whether results are channels last."""
    packing: tuple[int, ...]
    """Permutation that brings the weights to ONNX's [F, C, ...]; empty if they are stored so."""
    rank: int
    """Rank of the images, 3 or 4; 0 if the body does not determine it."""
    groups: int
    sliding: Sliding
    """The window; a 1-D image is treated as one row."""
    operands: tuple[int, ...]
    """Indices of the remainder's other inputs among the op's inputs."""
    program: BodyProgram
    """The pointwise remainder; its first input is the convolution's result."""
    pooling: Pooling | None = None
    resizing: Resizing | None = None
    mean: MeanOutput | None = None
    others: tuple[int, ...] = ()
    """Indices of the images concatenated to `x` along the channels."""

    @property
    def images(self) -> tuple[int, ...]:
        """Indices of all concatenated images."""
        return (self.x, *self.others)

    @property
    def packed(self) -> bool:
        """Whether weights are stored [..., C, 1], as the depthwise template prefers."""
        return self.packing in [by_pixel for _, by_pixel, _ in LAST.values()]


@dataclass(frozen=True)
class ConvolutionProblem:
    """The sizes of a convolution."""

    window: WindowGeometry
    full: Shape
    """Shape of the outputs."""


def factors(op: FusedOp, parts: Convolution) -> FactorType:
    """Return the type of the images and filters of a parsed body."""
    row = factors_of(op.inputs[parts.x], op.inputs[parts.x if parts.w < 0 else parts.w])
    assert row is not None
    return row


def parse_op(op: FusedOp) -> Convolution:
    """Parse the body of `op`; raises `UnsupportedError` with the reason if no kernel supports it."""
    return _parse(read.program(op))


@lru_cache(maxsize=1024)
def _parse(program: BodyProgram) -> Convolution:
    windows = image_works(program)
    if len(windows) != 1:
        raise UnsupportedError(f"{plural(windows, 'convolution')} in the body, expected one")
    work = image_problem(program, windows[0])
    if work.window is not None and work.window.dims == 3:
        raise UnsupportedError("a window over volumes")
    images = [program.values[i] for i in _side_by_side(program, work)]
    inputs = [v for v in images if isinstance(v, Input)]
    w = None if work.w is None else program.values[work.w]
    if len(inputs) < len(images) or not isinstance(w, Input | None):
        raise UnsupportedError("a convolution of values that the body computes")
    x, *others = inputs
    if not _computes(work.core, x.dtype, x.dtype if w is None else w.dtype):
        by = "" if w is None else f" by {element_types.name(w.dtype)}"
        raise UnsupportedError(f"a {_KIND[type(work.core)]} of {element_types.name(x.dtype)}{by}")
    mean = _mean(program) if work.channels_last and work.rank == 4 else None
    results = [o for n, o in enumerate(program.outputs) if mean is None or n != mean.position]
    reached = program.reached((o.value for o in results), [work.result])
    if reached & work.inside:
        raise UnsupportedError("a value inside the convolution that is read elsewhere")
    operands = sorted((v.index, i) for i in reached if isinstance(v := program.values[i], Input))
    rest = between(program, (work.result, *(i for _, i in operands)), results)
    if rest.reductions():
        raise UnsupportedError("a reduction after a convolution")
    if not rest.is_pointwise():
        raise UnsupportedError("moved data, or another product, after a convolution")
    if any(work.result not in program.reached([o.value], [work.result]) for o in results):
        raise UnsupportedError("an output that does not read the convolution")
    return Convolution(
        x.index, -1 if w is None else w.index, work.images_last, work.channels_last, work.packing, work.rank,
        work.core.groups if isinstance(work.core, Contraction) else 1,
        Sliding((1, 1), (1, 1), (0, 0, 0, 0), "NOTSET") if work.window is None else work.window.sliding,
        tuple(position for position, _ in operands), rest, _pooling(work),
        work.core.how if isinstance(work.core, Resample) else None, mean, tuple(v.index for v in others),
    )  # fmt: skip


def _computes(core: Contraction | Reduce | Resample, x: int, w: int) -> bool:
    """Return whether kernels sum products of images by filters of these types, or reduce or resample such images."""
    row = factors_of(x, w)
    if row is None or not row.is_integer:
        return row in FACTORS
    return isinstance(core, Contraction) or (isinstance(core, Reduce) and core.kind == "max")


def _side_by_side(program: BodyProgram, work: ImageProblem) -> tuple[int, ...]:
    """Return the values that are concatenated along the channels to the images that the window reads."""
    match program.values[work.x]:
        case Move(how=Concatenated(axis=axis), args=args) if work.images_last and axis % work.rank == work.rank - 1:
            return args
        case _:
            return (work.x,)


_KIND = {Contraction: "convolution", Reduce: "pooling", Resample: "resizing"}


def _mean(program: BodyProgram) -> MeanOutput | None:
    """Return which output is the mean of another one over all its positions; None if none is."""
    for n, output in enumerate(program.outputs):
        value, keepdims = program.values[output.value], True
        if isinstance(value, Move) and isinstance(value.how, Squeezed):
            value, keepdims = program.values[value.args[0]], False
        if not isinstance(value, Reduce) or value.kind != "mean" or program.readers(output.value):
            continue
        of = [o.value for i, o in enumerate(program.outputs) if i != n]
        if value.arg in of and not value.onward and sorted(axis % 4 for axis in value.axes) == [1, 2]:
            return MeanOutput(n, of.index(value.arg), keepdims)
    return None


def _pooling(work: ImageProblem) -> Pooling | None:
    if not isinstance(work.core, Reduce) or work.window is None or work.window.kernel is None:
        return None
    kernel = work.window.kernel
    if math.prod(kernel) > MOST_TAPS:
        raise UnsupportedError(f"a window of {math.prod(kernel)} elements, expected at most {MOST_TAPS}")
    return Pooling(work.core.kind == "mean", kernel, work.window.counted)


# ---- shapes


def elements(op: FusedOp, size: ConvolutionProblem) -> int:
    """Return the elements of an output, or of the larger one of which it is a slice."""
    count = math.prod(size.full)
    return count if op.slot is None or not count else count // size.full[-1] * op.slot.total


def _pair(values: Sequence[int]) -> Pair:
    """Return the values for rows and columns; a single value is for the columns of one-row images."""
    rows, columns = (1,) * (2 - len(values)) + tuple(values)
    return rows, columns


def problem(parts: Convolution, input_shapes: tuple[Shape, ...]) -> ConvolutionProblem:
    """Return the sizes of the convolution for these shapes of the op's inputs."""
    x = _image_shape(parts, input_shapes)
    if parts.pooling is not None:
        return _pooled(parts, parts.pooling, x)
    if parts.resizing is not None:
        return _resized(parts, parts.resizing, x)
    w = input_shapes[parts.w]
    if len(x) != len(w) or len(x) not in (3, 4) or parts.rank not in (0, len(x)):
        raise UnsupportedError(f"images of shape {list(x)} and weights of shape {list(w)}, expected rank 3 or 4")
    space, channels = (x[1:-1], x[-1]) if parts.images_last else (x[2:], x[1])
    outputs, each, *taps = (w[axis] for axis in parts.packing) if parts.packing else w
    if each * parts.groups != channels or outputs % max(parts.groups, 1):
        raise UnsupportedError(f"{parts.groups} groups, {channels} channels to {outputs}, {each} of them to a filter")
    window = parts.sliding.over((x[0], *_pair(space), channels), _pair(taps))
    extents = window.out[2 - len(space) :]
    full = (x[0], *extents, outputs) if parts.channels_last else (x[0], outputs, *extents)
    return ConvolutionProblem(window, full)


def _image_shape(parts: Convolution, input_shapes: tuple[Shape, ...]) -> Shape:
    """Return the shape of the images, with the channels of all concatenated ones."""
    shapes = [input_shapes[i] for i in parts.images]
    if any(len(s) != len(shapes[0]) or s[:-1] != shapes[0][:-1] for s in shapes[1:]):
        raise UnsupportedError(f"images of shapes {', '.join(str(list(s)) for s in shapes)} side by side")
    return shapes[0] if len(shapes) == 1 else (*shapes[0][:-1], sum(s[-1] for s in shapes))


def _pooled(parts: Convolution, pooling: Pooling, x: Shape) -> ConvolutionProblem:
    batch, height, width, channels = _images(parts, x)
    window = parts.sliding.over((batch, height, width, channels), pooling.kernel)
    return ConvolutionProblem(
        window, (batch, *window.out, channels) if parts.channels_last else (batch, channels, *window.out)
    )


def _images(parts: Convolution, x: Shape) -> tuple[int, int, int, int]:
    """Return batch, height, width and channels."""
    if len(x) != 4:
        raise UnsupportedError(f"images of shape {list(x)}, expected rank 4")
    batch, height, width, channels = x if parts.images_last else (x[0], x[2], x[3], x[1])
    return batch, height, width, channels


def _resized(parts: Convolution, resizing: Resizing, x: Shape) -> ConvolutionProblem:
    batch, height, width, channels = _images(parts, x)
    rows, columns = resizing.over((height, width))
    # Resizing: as many windows of one pixel as there are output pixels.
    end = rows - height, columns - width
    return ConvolutionProblem(
        WindowGeometry((batch, height, width, channels), (1, 1), (1, 1), (1, 1), (0, 0), end, (0, 0), (rows, columns)),
        (batch, rows, columns, channels) if parts.channels_last else (batch, channels, rows, columns),
    )


def output_shapes(op: FusedOp, input_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Return the shape of each output of `op` for these shapes of its inputs."""
    parts = parse_op(op)
    full = problem(parts, input_shapes).full
    shapes = parts.program.shapes((full, *(input_shapes[i] for i in parts.operands)))
    if any(shapes[o.value] != full for o in parts.program.outputs):
        raise UnsupportedError("an output of another shape than the convolution")
    results = [full for _ in op.outputs]
    if parts.mean is not None:
        if 0 in full[1:3]:
            raise UnsupportedError("a mean over no places")
        results[parts.mean.position] = (full[0], 1, 1, full[3]) if parts.mean.keepdims else (full[0], full[3])
    return tuple(results)
