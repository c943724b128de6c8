"""What a plan is, and the constants that plans can be tuned by."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from onnxfuse.codegen.emit import entry as entries
from onnxfuse.codegen.emit.source import DEVICE, KernelSource, generated, identifier, template
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic.branching import larger
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape
from onnxfuse.symbolic.traced_numbers import is_recorded

PARAMETER_LIMIT = 4000  # bytes; CUDA takes 4096 with the pointers


@dataclass(frozen=True)
class Tile:
    """What a block of the gemm template computes at a time."""

    m: int
    """Rows: a multiple of 64 for each warpgroup."""
    n: int
    """Columns: a multiple of 32, at most 320; 32 of an output that has no more."""
    cluster: int
    """Blocks below each other that share the tiles of the right factor: 1 or 2."""
    warpgroups: int = 1
    """Warpgroups that share a tile, by rows."""
    teams: int = 2
    """2: two tiles at a time, in turns by warpgroups of their own; while one is finished, the other is multiplied."""
    split: int = 1
    """Blocks that share a tile's terms; the first one adds up and finishes. Then one team, and no other cluster."""

    def __str__(self) -> str:
        more = {"w": (self.warpgroups, 1), "t": (self.teams, 2), "s": (self.split, 1)}
        changed = "".join(f" {name}{value}" for name, (value, usual) in more.items() if value != usual)
        return f"{self.m}x{self.n}x{self.cluster}{changed}"


@dataclass(frozen=True)
class Block:
    """What a block of the gemm template's kernel for sm_80 and later computes, and how its warps share that."""

    m: int
    """Rows."""
    n: int
    """Columns of each product: 64, 128, 192 or 256."""
    warps_m: int
    warps_n: int
    """Warps below and beside each other; each takes a multiple of 16 rows and columns."""
    warps_k: int = 1
    """Groups of such warps that share the terms."""

    @property
    def threads(self) -> int:
        """Threads of the block: 128 or 256."""
        return 32 * self.warps_m * self.warps_n * self.warps_k


@dataclass(frozen=True)
class Strip:
    """What a block of the gemm template's kernel for few rows computes, and how its warps share that."""

    columns: int
    """Of each product: 16 or 32."""
    warps: int = 8
    """Warps that share the terms."""
    ring: int = 96
    """Kilobytes of the right factor that are on their way to a block, about."""

    @property
    def threads(self) -> int:
        """Threads of the block."""
        return 32 * self.warps

    def __str__(self) -> str:
        return f"{self.columns}x{self.warps} {self.ring} KB"


@dataclass(frozen=True)
class Patch:
    """What a thread of the depthwise template computes."""

    rows: int
    columns: int
    """Outputs of a channel, rows by columns."""
    channels: int
    """Neighbouring channels; 1 where the columns are neighbours in memory."""
    threads: int
    """Threads of a block, at most."""


@dataclass(frozen=True)
class Band:
    """What a block of the depthwise template's kernel for the tensor cores computes at a time."""

    strips: int
    """Strips of 8 columns beside each other."""
    segments: int
    """Strips below each other; with those beside each other at most 16."""
    rows: int
    """Rows of a strip."""


@dataclass(frozen=True)
class Queries:
    """What a block of the attention template takes of the queries of a head."""

    warps: int
    tiles: int
    """Of 16 queries that a warp holds at a time."""
    passes: int
    """How often it does, over the same keys."""
    step: int
    """Keys at a time; a multiple of 16."""
    streamed: int = 0
    """1: so many keys at a time go through shared memory; 0: all of a head stay there."""
    parts: int = 0
    """Blocks that share the keys of few queries, as the warps of each do; 0: a block has them all."""
    warpgroups: int = 0
    """1: warps are by fours that multiply together, on Hopper alone; 0: each multiplies by itself."""
    ahead: int = 0
    """1: beside such products of a step's values those of the next one's keys; 0: one after the other."""

    def __str__(self) -> str:
        how = " streamed" if self.streamed else f" in {self.parts}" if self.parts else ""
        how = " ahead by warpgroups" if self.ahead else " by warpgroups" if self.warpgroups else how
        return f"{self.warps}x{self.tiles}x{self.passes}x{self.step}{how}"


@dataclass(frozen=True)
class Area:
    """What a block of the direct template computes at a time."""

    rows: int
    """Rows of outputs: 1, or a multiple of 2."""
    columns: int
    """Columns of outputs: a multiple of 8, of one row of 16."""
    groups: int
    """Groups of channels."""
    filters: int
    """Filters of a group; all of them where there are several groups."""
    stack: int
    """Products of 16 outputs that a warp computes at once; divides those of the area."""

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}x{self.groups}x{self.filters}x{self.stack}"


@dataclass(frozen=True)
class Halo:
    """What a block of the direct template computes, slice by slice of the channels."""

    rows: int
    """Rows of outputs: a multiple of the stack."""
    columns: int
    """Columns of outputs: a multiple of 16."""
    filters: int
    stack: int
    """Rows of 16 outputs below each other that a warp computes at once."""
    parts: int
    """Warps that share the filters."""
    stages: int
    """Slices in shared memory, 2 or more: one is multiplied, the others are on their way."""
    together: int = 0
    """1: four warps multiply together, as Hopper can; 0: each by itself."""

    def __str__(self) -> str:
        how = " together" if self.together else ""
        return f"{self.rows}x{self.columns}x{self.filters}x{self.stack}x{self.parts} in {self.stages}{how}"


@dataclass(frozen=True)
class TileTuning:
    """The constants that plans choose by. The defaults are the plan's own choice; a benchmark may sweep them.

    Figures: float16, tensors of 64 MB and more, H200, 2026-11 (`python -m benchmarks.bandwidth --sweep NAME=VALUES`).
    """

    pointwise_threads: int = 256
    """Threads of a block of the pointwise kernel."""
    mapped_threads: int = 128
    """The same where inputs are read through index maps, each thread for itself: RoPE 98.6% of copy, 256 97.8%."""
    bytes_in_flight: int = 16
    """Bytes of input that a thread of the pointwise kernel loads before its first use of one: one access.

    64, 32 and 16, us: bias + ReLU 33.8, 34.0, 33.1; bias + GELU 35.1, 33.6, 33.4; windows of Swin 33.7, 33.2, 32.9;
    channel shuffle 34.3, 33.5, 33.2. More where accesses are narrow or places take more arithmetic.
    """
    row_threads: int = 128
    """Threads of a block whose rows take at most a warp."""
    row_segment: int = 128
    """Bytes that the lanes of a row fetch side by side before they take a second vector each; 512 = whole warps.

    Softmax over 197 columns, share of copy bandwidth: 128 89%, 256 74%, 512 62%; over 256 columns 96%, 128 or 512.
    """
    warp_elements: int = 40
    """Elements of a row that a lane holds, where a warp takes one row or several.

    40 and not 32: rows just above 1024 columns stay with a warp. Softmax over 1025 columns 96% against 65%.
    """
    block_elements: int = 16
    """Elements of a row that a thread holds, where a block takes a row."""
    held_bytes: int = 256
    """Bytes of raw operands that a thread of a row kernel may hold in registers."""
    long_elements: int = 64
    """Elements of a row that a thread holds, where two blocks of 512 threads share a multiprocessor; 0 = never so.

    Residual + LayerNormalization over 16384 columns: 97% of copy bandwidth, without it 82%. Groups of 32768 elements:
    89%, in a cluster of two such blocks with 32 elements per thread 61%.
    """
    column_threads: int = 0
    """Threads of a block that reduces across neighbours; 0 = 128 or 256; 512 where too few blocks are left.

    128 and 256: norm over 96 channels of NCHW 61% and 55% of copy bandwidth, a mean over 512 rows 84% and 80%; softmax
    over 21 channels 60% and 72%.
    """
    shifted: int = 1
    """1: rows of odd length keep wide accesses, on the boundaries of memory; 0: as narrow as they divide the row.

    Residual + LayerNormalization over 197 columns 85% of copy bandwidth, without it 66%; softmax 89% and 79%.
    """
    width: int = 0
    """Elements per vector; 0 = by the element types."""
    tile: Tile | None = None
    """Of the gemm template's kernel for Hopper; None = by the sizes."""
    block: Block | None = None
    """Of its kernel for sm_80 and later, wherever that can run; None = by the sizes, on Hopper beside what the other
    kernel does not take."""
    strip: Strip | None = None
    """Of its kernel for few rows, wherever that can run; None = by the sizes, beside a tile or a block not at all."""
    patch: Patch | None = None
    """Of the depthwise template's kernel for the plain cores; None = by the sizes."""
    band: Band | None = None
    """Of its kernel for the tensor cores, wherever that can run; None = by the sizes, and beside a patch not at all."""
    queries: Queries | None = None
    """Of the attention template; None = by the sizes."""
    area: Area | None = None
    """Of the direct template's kernel that holds all channels; None = by the sizes."""
    halo: Halo | None = None
    """Of its kernel for slices of channels, wherever that can run; None = by the sizes, beside an area not at all."""
    min_blocks: int = 0
    """Blocks per multiprocessor that the compiler must leave registers for; 0 = its own choice."""


DEFAULT = TileTuning()

SMALL = 1024
"""Elements for each multiprocessor up to which a tensor is small: its time is that of a thread, not of the memory.

Then threads take few elements each, and what lies apart is read where it lies. Microseconds without and with (float16,
H200, 2026-11; an empty kernel takes 0.74): softmax over 5x197 1.35 and 0.94, group norm 2.5 and 1.3.
"""
SPREAD_THREADS = 128
"""Threads of a multiprocessor below which vectors of small tensors are halved."""


def is_small(count: int, arch: Arch) -> bool:
    """Return whether so many elements are spread over as many threads as there can be."""
    return count <= arch.sm_count * SMALL


def vector_width(width: int, count: int, arch: Arch) -> int:
    """Return the elements of a vector of so many elements in all: `width`, or fewer where they are few."""
    while is_small(count, arch) and width > 1 and count // width < arch.sm_count * SPREAD_THREADS:
        width //= 2
    return width


def residency_padding(shared_bytes: int, blocks: int, arch: Arch) -> int:
    """Return the shared memory that each of so many blocks asks for so that they come apart: as few share a
    multiprocessor as can.

    A kernel that is launched while the one ahead of it ends finds few multiprocessors free. As many blocks as fit would
    be placed on each of these, and the others would find nothing left to do: behind a product, 32 x 28x28x128 to 32
    filters in 128 blocks 20 us so and 9.5 apart, 14x14 9.5 and 5.3, 7x7 5.1 either way (float16, H200, 2026-11).
    """
    share = larger(-(-blocks // arch.sm_count), 1)
    # A multiprocessor has a kilobyte more than a block may ask for, and each block takes one more than it asks for.
    crowded = (arch.shared_bytes + 1024) // (share + 1) - 1024
    return larger(shared_bytes, crowded + 128)


Size = tuple[int, int, int]


@dataclass(frozen=True)
class Window:
    """A window that slides over the pixels of an image, in the order of the map's extents: width, then height."""

    lower: tuple[int, ...]
    """Where the window's first element begins, against the image's first pixel."""
    upper: tuple[int, ...]
    """Where it ends, against the image's last pixel."""
    strides: tuple[int, ...]
    """Pixels from one window to the next."""


@dataclass(frozen=True)
class TensorMap:
    """A tensor as the GPU's bulk copy engine sees it; encoded for each launch, since pointers change.

    Boxes are swizzled over rows of 128 bytes in shared memory; what lies outside of the tensor reads as zero.
    """

    pointer: int
    """Position among the kernel's pointers: inputs, then outputs."""
    dtype: int
    """Element type, `onnx.TensorProto.DataType`."""
    extents: tuple[int, ...]
    """Elements along each dimension, innermost first."""
    strides: tuple[int, ...]
    """Bytes from one element to the next along each dimension but the innermost; multiples of 16."""
    box: tuple[int, ...]
    """Elements that one copy moves along each dimension; of a window channels and pixels."""
    window: Window | None = None
    """For images [batch, height, width, channels]: one copy moves the same element of as many windows as fit."""
    to_tf32: bool = False
    """Whether float32 is rounded to the 10 bits of mantissa that the tensor cores read; else they cut the rest off."""
    offset: int = 0
    """Bytes from the pointer to the first element."""


@dataclass(frozen=True)
class LaunchPlan:
    """All that a launch needs besides the pointers and the stream."""

    kernel: KernelSource
    """What to compile; equal kernels are compiled once."""
    grid: Size
    """Number of blocks; none = nothing to launch."""
    block: Size
    """Threads of a block."""
    shared_bytes: int
    """Dynamic shared memory of a block."""
    parameters: bytes
    """The by-value struct that is the kernel's last argument, after the input and the output pointers."""
    output_shapes: tuple[Shape, ...]
    tensor_maps: tuple[TensorMap, ...] = ()
    """Passed by value, together, between the pointers and the parameters."""
    scratch_bytes: int = 0
    """Memory that the launches of one stream share, its pointer after those of the outputs; 0 = none, and no pointer.

    Zeros before the first launch; a launch may rely on what the one before left there.
    """
    passing: bool = False
    """Whether the scratch memory holds nothing from one plan to the next: one room serves all shapes of the op, and all
    launches of a plan share it."""
    then: tuple[LaunchPlan, ...] = ()
    """Launches after this one, on the same pointers."""


def nothing(op: FusedOp, output_shapes: tuple[Shape, ...]) -> LaunchPlan:
    """Return the plan for outputs without elements: a kernel that is never launched."""
    entry = identifier(op.name)
    text = "struct Parameters { unsigned count; };\n"
    text += entries.kernel(entry, len(op.inputs), len(op.outputs), "", bounds="KERNEL(32)")
    kernel = KernelSource(entry, (template(DEVICE), generated(entry, text)))
    return LaunchPlan(kernel, (0, 1, 1), (32, 1, 1), 0, packed((0,), 32), output_shapes)


def index_bits(elements: int) -> int:
    """Return the width of the kernel's index type: 32 where no index can pass 2^31."""
    return 32 if elements < 2**31 else 64


def index_type(bits: int) -> str:
    """Return the C++ index type of this width."""
    return "unsigned" if bits == 32 else "unsigned long long"


@dataclass(frozen=True)
class Packed:
    """Parameters whose words are recorded, before they are bytes."""

    words: tuple[int, ...]
    bits: int

    def __len__(self) -> int:
        """Bytes."""
        return len(self.words) * self.bits // 8

    def data(self) -> bytes:
        """Return the bytes."""
        whole = [w % (1 << self.bits) for w in self.words]
        return struct.pack(f"<{len(whole)}{'I' if self.bits == 32 else 'Q'}", *whole)


def packed(words: Iterable[int], bits: int) -> bytes:
    """Return the parameters, all of them words of the index type, as the kernel reads them."""
    values = Packed(tuple(words), bits)
    if any(not -(1 << (bits - 1)) <= w < 1 << bits for w in values.words):
        raise UnsupportedError(f"numbers beyond {bits} bits among the kernel's parameters")
    if len(values) > PARAMETER_LIMIT:
        raise UnsupportedError(f"{len(values)} bytes of kernel parameters, expected at most {PARAMETER_LIMIT}")
    # While a planner is recorded its words are not known yet: what they are computed from takes the place of the bytes.
    return cast(bytes, values) if any(is_recorded(w) for w in values.words) else values.data()
