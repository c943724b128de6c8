"""Source generation of the depthwise template: constants, operands, stores, entry point and parameters."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from onnxfuse.codegen.emit import access, expressions
from onnxfuse.codegen.emit.access import Load, Pointer, RegisterGroup, Store
from onnxfuse.codegen.emit.entry import entry_point
from onnxfuse.codegen.emit.source import AMPERE, DEVICE, KernelSource, constants, generated, identifier, template
from onnxfuse.codegen.program.window import Counted, Resizing, WindowGeometry
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.templates.conv import convolution
from onnxfuse.cuda.templates.conv.convolution import Convolution, ConvolutionProblem
from onnxfuse.cuda.templates.conv.variant import Band, Patch
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic import element_types, strides
from onnxfuse.symbolic.branching import gcd
from onnxfuse.symbolic.strides import Shape, divisors, strides_in


@dataclass(frozen=True)
class Patches:
    """Mapping of a block's threads to an image, each with a patch of outputs."""

    patch: Patch
    channels: int
    columns: int
    rows: int
    blocks: tuple[int, int, int]
    """Number of blocks along an image's channels, columns and rows."""

    @property
    def threads(self) -> int:
        return self.channels * self.columns * self.rows

    @property
    def sharing(self) -> int:
        """Number of blocks that share an image's positions for a channel range."""
        return self.blocks[1] * self.blocks[2]

    @property
    def partial_sums(self) -> int:
        """Words of scratch memory for an image and the channels of a block: the partial sums of each block."""
        return self.sharing * self.channels * self.patch.channels


@dataclass(frozen=True)
class Strips:
    """The work of a tensor-core block: many tiles, one after the other."""

    band: Band
    channels: int
    blocks: tuple[int, int, int]
    """Number of tiles along an image's channels, columns and rows."""
    shared_words: int
    threads: int


@dataclass(frozen=True)
class StencilOperand:
    """An operand of the remainder, and its layout relative to the output."""

    name: str
    stored: str
    strides: tuple[int, ...]
    """Element strides per image, channel, row and column; 0 = broadcast."""
    kind: str
    """`cell`: as big as the output; `once`: the same for all outputs of a channel; `strided`: anything else."""


@dataclass(frozen=True)
class ConvolutionBody:
    """A convolution in its body: the input for generating operands, outputs and indices."""

    op: FusedOp
    parts: Convolution
    size: ConvolutionProblem
    bits: int
    """Width of an index in bits."""
    aligned: bool
    """Whether every pointer is a multiple of 16 bytes."""
    input_shapes: tuple[Shape, ...]

    @property
    def x(self) -> element_types.ElementType:
        return element_types.TYPES[self.op.inputs[self.parts.x]]

    @property
    def factor_types(self) -> tuple[str, str]:
        """C++ types of an element of the images and of the filters, as the core reads them."""
        w = self.parts.x if self.parts.w < 0 else self.parts.w
        return self.x.stored, element_types.TYPES[self.op.inputs[w]].stored

    @property
    def headers(self) -> tuple[str, ...]:
        """Template files that these types need."""
        return ()

    @property
    def sum_type(self) -> str:
        """C++ type of the sums, or the greatest elements: of integers exact ones."""
        return "int" if convolution.factors(self.op, self.parts).is_integer else "float"

    @cached_property
    def operands(self) -> tuple[StencilOperand, ...]:
        """The operands that some output depends on."""
        return tuple(self._operand(number) for number in expressions.live_inputs(self.parts.program)[1:])

    def _operand(self, number: int) -> StencilOperand:
        position = self.parts.operands[number - 1]
        shape = self.input_shapes[position]
        by_axis = _by_axis(self.parts, strides_in(shape, self.size.full))
        cell = math.prod(shape) == math.prod(self.size.full)
        kind = "cell" if cell else "strided" if any(by_axis[2:]) else "once"
        return StencilOperand(
            f"in{position}", element_types.TYPES[self.parts.program.inputs[number]].stored, by_axis, kind
        )

    @property
    def slots(self) -> dict[str, int]:
        """Stride row of each operand that needs one."""
        return {o.name: n for n, o in enumerate(o for o in self.operands if o.kind != "cell")}

    @property
    def stride_words(self) -> list[int]:
        """These rows as words, at least one."""
        return strides.rows((o.strides for o in self.operands), (self.slots.get(o.name, -1) for o in self.operands), 4)


@dataclass(frozen=True)
class StencilSource(ConvolutionBody):
    """Input of source generation."""

    tile: Patches | Strips

    @property
    def meets(self) -> bool:
        """Whether blocks exchange partial means through scratch memory."""
        return self.parts.mean is not None and isinstance(self.tile, Patches) and self.tile.sharing > 1


def _by_axis(parts: Convolution, strides: Shape) -> tuple[int, ...]:
    """Reorder strides from memory order to image, channel, row and column."""
    image, channel = strides[0], strides[-1 if parts.channels_last else 1]
    space = strides[1:-1] if parts.channels_last else strides[2:]
    return (image, channel, *((0,) * (2 - len(space))), *space)


def kernel(work: StencilSource, min_blocks: int) -> KernelSource:
    """Return the kernel; `min_blocks`: minimum resident blocks per multiprocessor for the compiler, 0 = any."""
    body = "depthwise" if work.parts.mean is None else "depthwise_with_mean"
    return kernel_of(work, _constants(work), _templates(work), body, pointers(work, scratch=work.meets), min_blocks)


def kernel_of(
    work: ConvolutionBody, text: str, files: tuple[str, ...], body: str, pointers: tuple[Pointer, ...], min_blocks: int,
    more: str = "", prefetch: str = "",
) -> KernelSource:  # fmt: skip
    """Return the kernel of a core in `files` with function `body`; `more`: text that uses `pointers`.

    `prefetch`: statements that may run while the preceding kernel still runs.
    """
    entry, index = identifier(work.op.name), "int" if work.bits == 32 else "long long"
    return KernelSource(
        entry,
        (
            template(DEVICE),
            generated(entry, f"using Index = {launch_plan.index_type(work.bits)};\nusing Offset = {index};\n"),
            *(template(f) for f in ("include/math.cuh", "include/memory.cuh", *work.headers)),
            generated(entry, text + expressions.source(work.parts.program)),
            template("conv/images.cuh"),
            generated(entry, around(work, pointers) + more),
            *(template(f) for f in files),
            generated(entry, entry_point(entry, body, work.op, pointers, min_blocks, prefetch=prefetch)),
        ),
    )


def _templates(work: StencilSource) -> tuple[str, ...]:
    if isinstance(work.tile, Strips):
        return (AMPERE, "conv/stencil_band.cu")
    if work.parts.resizing is not None:
        return ("conv/stencil_patch.cuh", "conv/stencil_finish.cuh", "conv/resize.cu")
    window = "conv/stencil_sum.cuh" if work.parts.pooling is None else "conv/pool.cuh"
    mean = () if work.parts.mean is None else ("include/last.cuh", "conv/stencil_mean.cu")
    return ("conv/stencil_patch.cuh", window, "conv/stencil_finish.cuh", "conv/stencil.cu", *mean)


def parameters(work: StencilSource) -> bytes:
    """Return the kernel's `Parameters`."""
    window = work.size.window
    images = (window.shape[1], window.shape[2]), window.out
    words = [window.shape[0], *images[0], *images[1], *window.begin]
    channels = window.shape[3]
    for rows, columns in images:
        if work.parts.channels_last:
            words += [rows * columns * channels, 1, columns * channels]
        else:
            words += [channels * rows * columns, rows * columns, columns]
    words += divisors((max(blocks, 1) for blocks in work.tile.blocks), work.bits)
    return launch_plan.packed((*words, *work.stride_words), work.bits)


def _constants(work: StencilSource) -> str:
    window = work.size.window
    facts = {
        "KERNEL_H": window.kernel[0], "KERNEL_W": window.kernel[1],
        "STRIDE_H": window.strides[0], "STRIDE_W": window.strides[1],
        "DILATION_H": window.dilations[0], "DILATION_W": window.dilations[1],
        "TOTAL_CHANNELS": window.shape[3], "STRIDED_SLOTS": max(len(work.slots), 1), "THREADS": work.tile.threads,
    }  # fmt: skip
    if (pooling := work.parts.pooling) is not None:
        facts |= {"MEAN": pooling.mean, **_counted(pooling.counted, window)}
    lines = "" if work.parts.resizing is None else _lines(work.parts.resizing, window)
    facts |= _strip_constants(work.tile) if isinstance(work.tile, Strips) else _patch_constants(work, work.tile)
    return (
        element_aliases(work)
        + constants({**facts, "PACKED_WEIGHTS": work.parts.packed})
        + ("" if work.parts.mean is None else constants({"MEETS": work.meets}))
        + lines
    )


def element_aliases(work: ConvolutionBody) -> str:
    """Return the names of the types of an element of the images, of the filters, and of the sums."""
    x, w = work.factor_types
    return f"using X = {x};\nusing Weight = {w};\nusing Sum = {work.sum_type};\n"


def _counted(counted: Counted, window: WindowGeometry) -> dict[str, int | bool]:
    """Return whether a mean counts whole windows; if not, how much around the image it counts."""
    around = {"ABOVE": 0, "LEFT": 0, "BELOW": 0, "RIGHT": 0}
    if counted is Counted.PADDING and any(window.overhang):
        end = (padding - beyond for padding, beyond in zip(window.end, window.overhang, strict=True))
        return {"PADDED": False, **dict(zip(around, (*window.begin, *end), strict=True))}
    return {"PADDED": counted is not Counted.IMAGE, **around}


def _lines(resizing: Resizing, window: WindowGeometry) -> str:
    """Return the source rows and columns of a resized image."""
    text = ""
    for name, axis in (("ROW", 0), ("COLUMN", 1)):
        step, start = resizing.line(axis, window.shape[1 + axis], window.out[axis])
        numbers = ", ".join(f"{name}_{what} = {n!r}" for what, n in (("STEP", step), ("START", start)))
        text += f"constexpr double {numbers};\n"
    return text


def _patch_constants(work: StencilSource, tile: Patches) -> dict[str, int]:
    window, patch, last = work.size.window, tile.patch, work.parts.channels_last
    if last:
        read = patch.channels
    else:
        # Vectors of columns are aligned: each is either wholly inside the image or outside.
        read = gcd(16 // work.x.size, window.shape[2], patch.columns * window.strides[1]) if work.aligned else 1
    return {
        "ROWS": patch.rows, "COLUMNS": patch.columns, "CHANNELS": patch.channels,
        "BLOCK_CHANNELS": tile.channels, "BLOCK_COLUMNS": tile.columns, "BLOCK_ROWS": tile.rows,
        "X_COLUMN": window.shape[3] if last else 1, "READ": read, "SHIFT": 0 if last else -window.begin[1] % read,
        "CHANNELS_LAST": last, "WHOLE_ROWS": work.aligned and window.out[1] % patch.columns == 0,
    }  # fmt: skip


def _strip_constants(tile: Strips) -> dict[str, int]:
    return {
        "STRIPS": tile.band.strips, "SEGMENTS": tile.band.segments, "ROWS": tile.band.rows, "CHANNELS": 8,
        "BLOCK_CHANNELS": tile.channels, "SHARED_WORDS": tile.shared_words,
    }  # fmt: skip


def image(number: int) -> str:
    """Return the kernel's name of the first, second, ... concatenated image."""
    return f"x{number}" if number else "x"


def pointers(work: ConvolutionBody, *, scratch: bool = False) -> tuple[Pointer, ...]:
    """Return the fields of `Pointers`: images, weights, operands, outputs, and scratch memory if a mean is computed."""
    op, parts = work.op, work.parts
    factors = [access.Pointer("const X", image(n), f"in{i}") for n, i in enumerate(parts.images)]
    factors += [access.Pointer("const Weight", "w", f"in{parts.w}")] if parts.w >= 0 else []
    operands = [access.Pointer(f"const {o.stored}", o.name, o.name) for o in work.operands]
    outputs = [access.Pointer(element_types.TYPES[t].stored, f"out{n}", f"out{n}") for n, t in enumerate(op.outputs)]
    return (*factors, *operands, *outputs, *([access.scratch(scratch)] if parts.mean is not None else []))


def around(work: ConvolutionBody, pointers: Iterable[Pointer]) -> str:
    """Return the code around the core: operands that a thread loads once, and those that it loads for each vector."""
    once = RegisterGroup("Once", "once", tuple(_once(work, o) for o in work.operands if o.kind == "once"))
    each = RegisterGroup("Each", "each", tuple(_each(work, o) for o in work.operands if o.kind != "once"), wide=True)
    arguments = "const Pointers& from, const Place& at"
    return "".join((
        access.pointers(pointers),
        once.hold(),
        once.load("load_once", f"{arguments}, const Parameters& p"),
        each.hold(),
        each.load("load_each", f"{arguments}, Index linear, int step, const Parameters& p"),
        access.element(
            ("sum", *(o.name for o in work.operands)), (once, each),
            "Sum sum, const Once& once, const Each<W>& each, int w",
        ),
        _store(work),
    ))  # fmt: skip


def _once(work: ConvolutionBody, o: StencilOperand) -> Load:
    # Channels last, a vector of channels; channels first, the thread's one channel.
    wide = work.parts.channels_last and o.strides[1] == 1
    address = f"from.{o.name} + at.offset(p.stride[{work.slots[o.name]}])"
    if wide:
        return Load(o.name, f"Pack<{o.stored}, CHANNELS>", f"load<CHANNELS>({address})")
    return Load(o.name, f"Splat<{o.stored}>", f"load_splat({address})")


def _each(work: ConvolutionBody, o: StencilOperand) -> Load:
    if o.kind == "cell":
        return Load(o.name, f"Pack<{o.stored}, W>", f"load<W>(from.{o.name} + linear + step)")
    address = f"from.{o.name} + at.offset(p.stride[{work.slots[o.name]}])"
    if o.strides[1 if work.parts.channels_last else 3] == 1:
        return Load(o.name, f"Pack<{o.stored}, W>", f"load<W>({address})")
    return Load(o.name, f"Splat<{o.stored}>", f"load_splat({address})")


def _store(work: ConvolutionBody) -> str:
    """Return the function that computes the body for a vector and stores its outputs.

    If there is a mean of an output, that one replaces the sums.
    """
    mean = work.parts.mean
    outputs = [n for n in range(len(work.op.outputs)) if mean is None or n != mean.position]
    where, channels = "linear + step", work.size.full[-1]
    if (slot := work.op.slot) is not None:
        # Between adjacent positions of a slice the stride includes the channels of other slices.
        where += f" + ((linear + step) / {channels} * {slot.total - channels} + {slot.first})"
    stored = [element_types.TYPES[t].stored for t in work.op.outputs]
    stores = (
        Store(f"out{n}", stored[n], f"b{k}", f"store_values<W>(to.out{n} + {where}, out{n})")
        for k, n in enumerate(outputs)
    )
    compute = (
        "  Result result[W];\n"
        "  UNROLLED for (int w = 0; w < W; ++w) result[w] = apply(element(sum[w], once, each, w));\n"
    )
    rest = "const Once& once, const Each<W>& each, Index linear, int step"
    if mean is None:
        return access.store("store_all", f"const Pointers& to, const Sum (&sum)[W], {rest}", stores, "W", compute)
    load = f"  UNROLLED for (int w = 0; w < W; ++w) sum[w] = (float)out{outputs[mean.of]}[w];\n"
    return access.store("store_all", f"const Pointers& to, Sum (&sum)[W], {rest}", stores, "W", compute, load) + (
        "DEVICE void store_mean(const Pointers& to, Index at, float mean) {\n"
        f"  const Stored<{stored[mean.position]}>::Value value[1] = {{mean}};\n"
        f"  store_values<1>(to.out{mean.position} + at, value);\n}}\n"
    )
