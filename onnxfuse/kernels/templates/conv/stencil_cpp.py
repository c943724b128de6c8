"""The generated text of the depthwise template: constants, operands, the stores, the entry point and its parameters."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from onnxfuse.kernels import launch_plan
from onnxfuse.kernels.emit import expressions
from onnxfuse.kernels.emit.source import DEVICE, KernelSource, generated, identifier, template
from onnxfuse.kernels.ir import types
from onnxfuse.kernels.ir.strides import Shape, divisor, strides_in
from onnxfuse.kernels.ir.window import Places, Resizing
from onnxfuse.kernels.launch_plan import Band, Patch
from onnxfuse.kernels.programs.choice import gcd
from onnxfuse.kernels.templates.conv.convolution import Convolution, Problem
from onnxfuse.model.fused import FusedOp


@dataclass(frozen=True)
class Patches:
    """How the threads of a block lie over an image, each with a patch of outputs."""

    patch: Patch
    channels: int
    columns: int
    rows: int
    blocks: tuple[int, int, int]
    """Of an image along channels, columns and rows."""

    @property
    def threads(self) -> int:
        return self.channels * self.columns * self.rows

    @property
    def sharing(self) -> int:
        """Blocks that share an image's places of some channels."""
        return self.blocks[1] * self.blocks[2]

    @property
    def record(self) -> int:
        """Words that they leave each other for a mean: a counter, up to a boundary of 16 bytes, and what each found."""
        return 4 + self.sharing * self.channels * self.patch.channels


@dataclass(frozen=True)
class Strips:
    """What a block does on the tensor cores: many tiles, one after the other."""

    band: Band
    channels: int
    blocks: tuple[int, int, int]
    """Tiles of an image along channels, columns and rows."""
    shared_words: int
    threads: int = 256


@dataclass(frozen=True)
class Operand:
    """An operand of the rest, and how it lies in the output."""

    name: str
    stored: str
    strides: tuple[int, ...]
    """Per image, channel, row and column, in elements; 0 = broadcast."""
    kind: str
    """`cell`: as big as the output; `once`: the same for all outputs of a channel; `strided`: anything else."""


@dataclass(frozen=True)
class Surroundings:
    """A convolution in its body: what its operands, outputs and indices are generated from."""

    op: FusedOp
    parts: Convolution
    size: Problem
    bits: int
    """Of an index."""
    aligned: bool
    """Whether every pointer is a multiple of 16 bytes."""
    input_shapes: tuple[Shape, ...]

    @property
    def x(self) -> types.ElementType:
        return types.TYPES[self.op.inputs[self.parts.x]]

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """The operands that some output depends on."""
        return tuple(self._operand(number) for number in expressions.live_inputs(self.parts.program)[1:])

    def _operand(self, number: int) -> Operand:
        position = self.parts.operands[number - 1]
        shape = self.input_shapes[position]
        strides = _by_axis(self.parts, strides_in(shape, self.size.full))
        cell = math.prod(shape) == math.prod(self.size.full)
        kind = "cell" if cell else "strided" if any(strides[2:]) else "once"
        return Operand(f"in{position}", types.TYPES[self.parts.program.inputs[number]].stored, strides, kind)

    @property
    def slots(self) -> dict[str, int]:
        """The row of strides of each operand that needs one."""
        return {o.name: n for n, o in enumerate(o for o in self.operands if o.kind != "cell")}


@dataclass(frozen=True)
class Work(Surroundings):
    """What the text is generated from."""

    tile: Patches | Strips

    @property
    def meets(self) -> bool:
        """Whether blocks leave each other what they have found of a mean, in scratch memory."""
        return self.parts.mean is not None and isinstance(self.tile, Patches) and self.tile.sharing > 1


def _by_axis(parts: Convolution, strides: Shape) -> tuple[int, ...]:
    """Return strides in the order of memory as those per image, channel, row and column."""
    image, channel = strides[0], strides[-1 if parts.channels_last else 1]
    space = strides[1:-1] if parts.channels_last else strides[2:]
    return (image, channel, *((0,) * (2 - len(space))), *space)


def kernel(work: Work, min_blocks: int) -> KernelSource:
    """Return the kernel; `min_blocks`: blocks of a multiprocessor that it must leave registers for, 0 = any."""
    entry = identifier(work.op.name)
    index = "int" if work.bits == 32 else "long long"
    body = "depthwise" if work.parts.mean is None else "depthwise_with_mean"
    return KernelSource(
        entry,
        (
            template(DEVICE),
            generated(entry, f"using Index = {launch_plan.index_type(work.bits)};\nusing Offset = {index};\n"),
            *(template(f) for f in ("cuda/math.cuh", "cuda/memory.cuh")),
            generated(entry, _constants(work) + expressions.source(work.parts.program)),
            template("conv/images.cuh"),
            generated(entry, pointers(work) + once(work) + each(work) + element(work) + store(work)),
            *(template(f) for f in _templates(work)),
            generated(entry, entry_point(entry, work, min_blocks, body, scratch=work.meets)),
        ),
    )


def _templates(work: Work) -> tuple[str, ...]:
    if isinstance(work.tile, Strips):
        return ("conv/stencil_band.cu",)
    if work.parts.resizing is not None:
        return ("conv/stencil_patch.cuh", "conv/stencil_finish.cuh", "conv/resize.cu")
    window = "conv/stencil_sum.cuh" if work.parts.pooling is None else "conv/pool.cuh"
    mean = () if work.parts.mean is None else ("conv/stencil_mean.cu",)
    return ("conv/stencil_patch.cuh", window, "conv/stencil_finish.cuh", "conv/stencil.cu", *mean)


def parameters(work: Work) -> bytes:
    """Return the kernel's `Parameters`."""
    places = work.size.places
    images = (places.shape[1], places.shape[2]), places.out
    words = [places.shape[0], *images[0], *images[1], *places.begin]
    channels = places.shape[3]
    for rows, columns in images:
        if work.parts.channels_last:
            words += [rows * columns * channels, 1, columns * channels]
        else:
            words += [channels * rows * columns, rows * columns, columns]
    for blocks in work.tile.blocks:
        words += divisor(max(blocks, 1), work.bits)
    for strides in [o.strides for o in work.operands if o.kind != "cell"] or [(0,) * 4]:
        words += strides
    return launch_plan.packed(words, work.bits)


def _constants(work: Work) -> str:
    places = work.size.places
    facts = {
        "KERNEL_H": places.kernel[0], "KERNEL_W": places.kernel[1],
        "STRIDE_H": places.strides[0], "STRIDE_W": places.strides[1],
        "DILATION_H": places.dilations[0], "DILATION_W": places.dilations[1],
        "TOTAL_CHANNELS": places.shape[3], "STRIDED_SLOTS": max(len(work.slots), 1), "THREADS": work.tile.threads,
    }  # fmt: skip
    if (pooling := work.parts.pooling) is not None:
        facts |= {"MEAN": pooling.mean, "PADDED": pooling.padded}
    lines = "" if work.parts.resizing is None else _lines(work.parts.resizing, places)
    facts |= _strip_constants(work.tile) if isinstance(work.tile, Strips) else _patch_constants(work, work.tile)
    return (
        f"using X = {work.x.stored};\n"
        + "".join(f"constexpr int {name} = {int(value)};\n" for name, value in facts.items())
        + f"constexpr bool PACKED_WEIGHTS = {str(work.parts.packed).lower()};\n"
        + ("" if work.parts.mean is None else f"constexpr bool MEETS = {str(work.meets).lower()};\n")
        + lines
    )


def _lines(resizing: Resizing, places: Places) -> str:
    """Return where the rows and columns of a resized image lie in the image."""
    text = ""
    for name, axis in (("ROW", 0), ("COLUMN", 1)):
        step, start = resizing.line(axis, places.shape[1 + axis], places.out[axis])
        numbers = ", ".join(f"{name}_{what} = {n!r}" for what, n in (("STEP", step), ("START", start)))
        text += f"constexpr double {numbers};\n"
    return text


def _patch_constants(work: Work, tile: Patches) -> dict[str, int]:
    places, patch, last = work.size.places, tile.patch, work.parts.channels_last
    if last:
        read = patch.channels
    else:
        # Vectors of columns lie on their own boundaries: each is wholly inside the image or outside.
        read = gcd(16 // work.x.size, places.shape[2], patch.columns * places.strides[1]) if work.aligned else 1
    return {
        "ROWS": patch.rows, "COLUMNS": patch.columns, "CHANNELS": patch.channels,
        "BLOCK_CHANNELS": tile.channels, "BLOCK_COLUMNS": tile.columns, "BLOCK_ROWS": tile.rows,
        "X_COLUMN": places.shape[3] if last else 1, "READ": read, "SHIFT": 0 if last else -places.begin[1] % read,
        "CHANNELS_LAST": last, "WHOLE_ROWS": work.aligned and places.out[1] % patch.columns == 0,
    }  # fmt: skip


def _strip_constants(tile: Strips) -> dict[str, int]:
    return {
        "STRIPS": tile.band.strips, "SEGMENTS": tile.band.segments, "ROWS": tile.band.rows, "CHANNELS": 8,
        "BLOCK_CHANNELS": tile.channels, "SHARED_WORDS": tile.shared_words,
    }  # fmt: skip


def pointers(work: Surroundings) -> str:
    weights = ["  const X* w;"] if work.parts.w >= 0 else []
    fields = ["  const X* x;", *weights, *(f"  const {o.stored}* {o.name};" for o in work.operands)]
    fields += [f"  {types.TYPES[t].stored}* out{n};" for n, t in enumerate(work.op.outputs)]
    fields += ["  unsigned* scratch;"] if work.parts.mean is not None else []
    return "struct Pointers {\n" + "\n".join(fields) + "\n};\n"


def once(work: Surroundings) -> str:
    """Return the struct with the operands that a thread loads once, and the function that loads it."""
    fields, loads = "", ""
    for o in work.operands:
        if o.kind == "once":
            # Channels last, a vector of channels; channels first, the thread's one channel.
            wide = work.parts.channels_last and o.strides[1] == 1
            fields += f"  {f'Pack<{o.stored}, CHANNELS>' if wide else f'Splat<{o.stored}>'} {o.name};\n"
            load = "load<CHANNELS>" if wide else "load_splat"
            loads += f"  held.{o.name} = {load}(from.{o.name} + at.offset(p.stride[{work.slots[o.name]}]));\n"
    return (
        f"struct Once {{\n{fields}}};\n"
        "DEVICE Once load_once(const Pointers& from, const Place& at, const Parameters& p) {\n"
        f"  Once held;\n{loads}  return held;\n}}\n"
    )


def each(work: Surroundings) -> str:
    """Return the struct with the operands that a thread loads for each vector, and the function that loads it."""
    fields, loads = "", ""
    for o in work.operands:
        if o.kind != "once":
            along = o.strides[1 if work.parts.channels_last else 3]
            offset = "linear" if o.kind == "cell" else f"at.offset(p.stride[{work.slots[o.name]}])"
            wide = o.kind == "cell" or along == 1
            fields += f"  {f'Pack<{o.stored}, W>' if wide else f'Splat<{o.stored}>'} {o.name};\n"
            place = f"from.{o.name} + {offset}" + (" + step" if o.kind == "cell" else "")
            loads += f"  held.{o.name} = {'load<W>' if wide else 'load_splat'}({place});\n"
    return (
        f"template <int W> struct Each {{\n{fields}}};\n"
        "template <int W>\nDEVICE Each<W> load_each(const Pointers& from, const Place& at, Index linear, int step, "
        f"const Parameters& p) {{\n  Each<W> held;\n{loads}  return held;\n}}\n"
    )


def element(work: Surroundings) -> str:
    values = ["sum", *(f"{'once' if o.kind == 'once' else 'each'}.{o.name}.get(lane)" for o in work.operands)]
    return (
        "template <int W>\nDEVICE Element element(float sum, const Once& once, const Each<W>& each, int lane) {\n"
        f"  return {{{', '.join(values)}}};\n}}\n"
    )


def store(work: Surroundings) -> str:
    """Return the function that computes the body for a vector and stores its outputs.

    Where there is a mean of an output, that one takes the place of the sums.
    """
    mean = work.parts.mean
    places = [n for n in range(len(work.op.outputs)) if mean is None or n != mean.position]
    where, channels = "linear + step", work.size.full[-1]
    if (slot := work.op.slot) is not None:
        # From one place of the image to the next it is as many elements more as the output has channels of others.
        where += f" + ((linear + step) / {channels} * {slot.total - channels} + {slot.first})"
    stores = "".join(
        f"  Stored<{types.TYPES[work.op.outputs[n]].stored}>::Value out{n}[W];\n"
        f"  UNROLLED for (int lane = 0; lane < W; ++lane) out{n}[lane] = result[lane].b{k};\n"
        f"  store_values<W>(to.out{n} + {where}, out{n});\n"
        for k, n in enumerate(places)
    )
    given, kept, store_mean = "const ", "", ""
    if mean is not None:
        given = ""
        kept = f"  UNROLLED for (int lane = 0; lane < W; ++lane) sum[lane] = (float)out{places[mean.of]}[lane];\n"
        stored = types.TYPES[work.op.outputs[mean.position]].stored
        store_mean = (
            "DEVICE void store_mean(const Pointers& to, Index at, float mean) {\n"
            f"  const Stored<{stored}>::Value value[1] = {{mean}};\n"
            f"  store_values<1>(to.out{mean.position} + at, value);\n}}\n"
        )
    return (
        f"template <int W>\nDEVICE void store_all(const Pointers& to, {given}float (&sum)[W], const Once& once, "
        "const Each<W>& each, Index linear, int step) {\n  Result result[W];\n"
        "  UNROLLED for (int lane = 0; lane < W; ++lane) result[lane] = apply(element(sum[lane], once, each, lane));\n"
        f"{stores}{kept}}}\n{store_mean}"
    )


def entry_point(
    entry: str, work: Surroundings, min_blocks: int, body: str = "depthwise", *, scratch: bool = False
) -> str:
    """Return the kernel function, which calls the template's function `body`: pointers, then the parameters."""
    op, parts = work.op, work.parts
    arguments = [f"const void* in{i}" for i in range(len(op.inputs))]
    arguments += [f"void* out{n}" for n in range(len(op.outputs))]
    arguments += ["void* scratch"] if scratch else []
    casts = [f"(const X*)in{i}" for i in (parts.x, parts.w) if i >= 0]
    casts += [f"(const {o.stored}*){o.name}" for o in work.operands]
    casts += [f"({types.TYPES[t].stored}*)out{n}" for n, t in enumerate(op.outputs)]
    casts += ["(unsigned*)scratch" if scratch else "nullptr"] if parts.mean is not None else []
    bounds = f"THREADS, {min_blocks}" if min_blocks else "THREADS"
    return (
        f"KERNEL({bounds}) {entry}({', '.join(arguments)}, PARAMETERS p) {{\n"
        f"  join_stream();\n  {body}({{{', '.join(casts)}}}, p);\n}}\n"
    )
