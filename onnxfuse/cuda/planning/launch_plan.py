"""Launch plans, and the tunable constants of plans."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import cast

from onnxfuse.codegen.emit import entry as entries
from onnxfuse.codegen.emit.source import DEVICE, KernelSource, generated, identifier, template
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic.branching import larger
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape
from onnxfuse.symbolic.traced_numbers import is_recorded

PARAMETER_LIMIT = 4000  # bytes; CUDA allows 4096 including the pointers


@dataclass(frozen=True)
class GemmTile:
    """Tile of the gemm template's kernel for Hopper."""

    m: int
    """Rows: a multiple of 64 per warpgroup."""
    n: int
    """Columns: a multiple of 32, at most 320; 32 for narrower outputs."""
    cluster: int
    """Cluster of blocks in the row direction that share the tiles of the right factor through TMA multicast: 1 or 2."""
    warpgroups: int = 1
    """Consumer warpgroups that share a tile, by rows."""
    teams: int = 2
    """2: ping-pong, two tiles in flight with a set of warpgroups each; one runs its epilogue while the other
    multiplies."""
    split: int = 1
    """Split-K: blocks that share a tile's terms; the first one reduces and finishes. Requires one team, and no other
    cluster."""

    def __str__(self) -> str:
        more = {"w": (self.warpgroups, 1), "t": (self.teams, 2), "s": (self.split, 1)}
        changed = "".join(f" {name}{value}" for name, (value, usual) in more.items() if value != usual)
        return f"{self.m}x{self.n}x{self.cluster}{changed}"


@dataclass(frozen=True)
class Block:
    """Block shape of the gemm template's kernel for sm_80 and later, and its partition among warps."""

    m: int
    """Rows."""
    n: int
    """Columns of each product: 64, 128, 192 or 256."""
    warps_m: int
    warps_n: int
    """Warps in m and n direction; each computes a multiple of 16 rows and columns."""
    warps_k: int = 1
    """Groups of such warps that share the terms (split-K within the block)."""

    @property
    def threads(self) -> int:
        """Threads of the block: 128 or 256."""
        return 32 * self.warps_m * self.warps_n * self.warps_k


@dataclass(frozen=True)
class Strip:
    """Block shape of the gemm template's kernel for skinny products (few rows), and its partition among warps."""

    columns: int
    """Columns of each product: 16 or 32."""
    warps: int = 8
    """Warps that share the terms."""
    ring: int = 96
    """Approximate kilobytes of the right factor in flight per block."""

    @property
    def threads(self) -> int:
        """Threads of the block."""
        return 32 * self.warps

    def __str__(self) -> str:
        return f"{self.columns}x{self.warps} {self.ring} KB"


@dataclass(frozen=True)
class Patch:
    """Outputs per thread of the depthwise template."""

    rows: int
    columns: int
    """Outputs of a channel, rows by columns."""
    channels: int
    """Adjacent channels; 1 if the columns are contiguous in memory."""
    threads: int
    """Maximum threads per block."""


@dataclass(frozen=True)
class Band:
    """Block shape of the depthwise template's tensor-core kernel."""

    strips: int
    """Strips of 8 columns next to each other."""
    segments: int
    """Strips in row direction; at most 16 strips in total."""
    rows: int
    """Rows of a strip."""


@dataclass(frozen=True)
class Queries:
    """Partition of a head's queries among the blocks of the attention template."""

    warps: int
    tiles: int
    """Tiles of 16 queries that a warp holds at a time."""
    passes: int
    """Number of passes over the same keys."""
    step: int
    """Keys per step; a multiple of 16."""
    streamed: int = 0
    """1: keys are streamed through shared memory step by step; 0: all keys of a head are resident there."""
    parts: int = 0
    """Split-KV: blocks that share the keys of few queries, as do the warps of each; 0: one block processes all keys."""
    warpgroups: int = 0
    """1: warpgroup products (wgmma), on Hopper only; 0: each warp multiplies by itself."""
    ahead: int = 0
    """1: overlaps the value product of a step with the key product of the next; 0: sequential."""

    def __str__(self) -> str:
        how = " streamed" if self.streamed else f" in {self.parts}" if self.parts else ""
        how = " ahead by warpgroups" if self.ahead else " by warpgroups" if self.warpgroups else how
        return f"{self.warps}x{self.tiles}x{self.passes}x{self.step}{how}"


@dataclass(frozen=True)
class Area:
    """Tile of the direct template."""

    rows: int
    """Output rows: 1, or a multiple of 2."""
    columns: int
    """Output columns: a multiple of 8, for a single row of 16."""
    groups: int
    """Groups of channels."""
    filters: int
    """Filters per group; all of them if there are several groups."""
    stack: int
    """Products of 16 outputs that a warp computes at once; divides those of the area."""

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}x{self.groups}x{self.filters}x{self.stack}"


@dataclass(frozen=True)
class Halo:
    """Tile of the direct template's kernel that iterates over channel slices."""

    rows: int
    """Output rows: a multiple of the stack."""
    columns: int
    """Output columns: a multiple of 16."""
    filters: int
    stack: int
    """Rows of 16 outputs that a warp computes at once."""
    parts: int
    """Warps that share the filters."""
    stages: int
    """Slices in the shared-memory ring, 2 or more: one is multiplied while the others are in flight."""
    together: int = 0
    """1: warpgroup products, on Hopper; 0: each warp by itself."""

    def __str__(self) -> str:
        how = " together" if self.together else ""
        return f"{self.rows}x{self.columns}x{self.filters}x{self.stack}x{self.parts} in {self.stages}{how}"


@dataclass(frozen=True)
class TileTuning:
    """Tunable constants of plans. The defaults are the plan's own choice; a benchmark may sweep them.

    Figures: float16, tensors of 64 MB or more, H200, 2026-11 (`python -m bench.kernels.bandwidth --sweep NAME=VALUES`).
    """

    pointwise_threads: int = 256
    """Threads per block of the pointwise kernel."""
    mapped_threads: int = 128
    """The same if each thread reads inputs through index maps: RoPE 98.6% of copy, 256 97.8%."""
    bytes_in_flight: int = 16
    """Bytes of input that a thread of the pointwise kernel loads before using any: one access.

    64, 32 and 16, us: bias + ReLU 33.8, 34.0, 33.1; bias + GELU 35.1, 33.6, 33.4; windows of Swin 33.7, 33.2, 32.9;
    channel shuffle 34.3, 33.5, 33.2. More if accesses are narrow or index arithmetic is expensive.
    """
    row_threads: int = 128
    """Threads per block for rows processed by at most a warp."""
    row_segment: int = 128
    """Bytes that the lanes of a row fetch contiguously before each takes a second vector; 512 = whole warps.

    Softmax over 197 columns, share of copy bandwidth: 128 89%, 256 74%, 512 62%; over 256 columns 96%, 128 or 512.
    """
    warp_elements: int = 40
    """Row elements per lane, if a warp processes one or several rows.

    40 and not 32: rows just above 1024 columns stay within a warp. Softmax over 1025 columns 96% against 65%.
    """
    block_elements: int = 16
    """Row elements per thread, if a block processes a row."""
    held_bytes: int = 256
    """Bytes of raw operands that a thread of a row kernel may hold in registers."""
    long_elements: int = 64
    """Row elements per thread, if two blocks of 512 threads share a multiprocessor; 0 = disabled.

    Residual + LayerNormalization over 16384 columns: 97% of copy bandwidth, without it 82%. Groups of 32768 elements:
    89%, in a cluster of two such blocks with 32 elements per thread 61%.
    """
    column_threads: int = 0
    """Threads of a block that reduces across contiguous elements; 0 = 128 or 256; 512 if there would be too few blocks.

    128 and 256: norm over 96 channels of NCHW 61% and 55% of copy bandwidth, a mean over 512 rows 84% and 80%; softmax
    over 21 channels 60% and 72%.
    """
    shifted: int = 1
    """1: rows of odd length use wide accesses aligned to memory; 0: accesses as narrow as divide the row.

    Residual + LayerNormalization over 197 columns 85% of copy bandwidth, without it 66%; softmax 89% and 79%.
    """
    width: int = 0
    """Elements per vector; 0 = by the element types."""
    tile: GemmTile | None = None
    """For the gemm template's kernel for Hopper; None = by the sizes."""
    block: Block | None = None
    """For its kernel for sm_80 and later, wherever that can run; None = by the sizes, on Hopper for what the other
    kernel does not support."""
    strip: Strip | None = None
    """For its kernel for few rows, wherever that can run; None = by the sizes, unless a tile or block is given."""
    patch: Patch | None = None
    """For the depthwise template's kernel on CUDA cores; None = by the sizes."""
    band: Band | None = None
    """For its kernel on tensor cores, wherever that can run; None = by the sizes, unless a patch is given."""
    queries: Queries | None = None
    """For the attention template; None = by the sizes."""
    area: Area | None = None
    """For the direct template's kernel that holds all channels; None = by the sizes."""
    halo: Halo | None = None
    """For its kernel with channel slices, wherever that can run; None = by the sizes, unless an area is given."""
    min_blocks: int = 0
    """Minimum resident blocks per multiprocessor for the compiler (__launch_bounds__); 0 = its own choice."""


DEFAULT = TileTuning()

SMALL = 1024
"""Elements per multiprocessor up to which a tensor is small: bound by latency, not by memory bandwidth.

Then threads process few elements each, and strided operands are read in place. Microseconds without and with (float16,
H200, 2026-11; an empty kernel takes 0.74): softmax over 5x197 1.35 and 0.94, group norm 2.5 and 1.3.
"""
SPREAD_THREADS = 128
"""Threads per multiprocessor below which vectors of small tensors are halved."""

MOST_LINES = 3
"""Lines of two kernels' texts that are named where they differ."""


def constants() -> dict[str, int]:
    """Return the constants of this module by name, as they are in this process: measurements and tests change them."""
    return {name: value for name, value in globals().items() if name.isupper() and isinstance(value, int)}


def is_small(count: int, arch: Arch) -> bool:
    """Return whether so many elements are latency-bound when spread over all available threads."""
    return count <= arch.sm_count * SMALL


def vector_width(width: int, count: int, arch: Arch) -> int:
    """Return the vector width: `width`, or less for small tensors."""
    while is_small(count, arch) and width > 1 and count // width < arch.sm_count * SPREAD_THREADS:
        width //= 2
    return width


def residency_padding(shared_bytes: int, blocks: int, arch: Arch) -> int:
    """Return the padding of shared memory that limits the residency of so many blocks, so that they spread over all
    multiprocessors.

    A kernel launched while its predecessor ends finds few multiprocessors free. As many blocks as fit would be placed
    on each of these, and the others would idle: after a product, 32 x 28x28x128 to 32 filters in 128 blocks take 20 us
    without padding and 9.5 with it, 14x14 9.5 and 5.3, 7x7 5.1 either way (float16, H200, 2026-11).
    """
    share = larger(-(-blocks // arch.sm_count), 1)
    # A multiprocessor has one kilobyte more than a block may request, and each block uses one more than it requests.
    crowded = (arch.shared_bytes + 1024) // (share + 1) - 1024
    return larger(shared_bytes, crowded + 128)


Size = tuple[int, int, int]


@dataclass(frozen=True)
class PixelWindow:
    """A window sliding over the pixels of an image, in the order of the map's extents: width, then height."""

    lower: tuple[int, ...]
    """Start of the first window relative to the image's first pixel."""
    upper: tuple[int, ...]
    """End of the window relative to the image's last pixel."""
    strides: tuple[int, ...]
    """Stride of the window in pixels."""


@dataclass(frozen=True)
class TensorMapSpec:
    """A TMA tensor map; encoded for each launch, since pointers change.

    Boxes are swizzled over rows of 128 bytes in shared memory; elements outside of the tensor read as zero.
    """

    pointer: int
    """Index among the kernel's pointers: inputs, then outputs."""
    dtype: int
    """Element type, `onnx.TensorProto.DataType`."""
    extents: tuple[int, ...]
    """Elements along each dimension, innermost first."""
    strides: tuple[int, ...]
    """Byte strides of each dimension except the innermost; multiples of 16."""
    box: tuple[int, ...]
    """Elements that one copy transfers along each dimension; for a window channels and pixels."""
    window: PixelWindow | None = None
    """For images [batch, height, width, channels] (im2col mode): one copy transfers the same element of as many windows
    as fit."""
    to_tf32: bool = False
    """Whether float32 is rounded to the 10 mantissa bits that the tensor cores read; otherwise they truncate."""
    offset: int = 0
    """Bytes from the pointer to the first element."""


@dataclass(frozen=True)
class LaunchPlan:
    """Everything that a launch needs besides the pointers and the stream."""

    kernel: KernelSource
    """The kernel to compile; equal kernels are compiled once."""
    grid: Size
    """Number of blocks; 0 = nothing to launch."""
    block: Size
    """Threads per block."""
    shared_bytes: int
    """Dynamic shared memory per block."""
    parameters: bytes
    """The by-value struct that is the kernel's last argument, after the input and the output pointers."""
    output_shapes: tuple[Shape, ...]
    tensor_maps: tuple[TensorMapSpec, ...] = ()
    """Passed by value, together, between the pointers and the parameters."""
    scratch_bytes: int = 0
    """Scratch memory shared by the launches on one stream, its pointer after those of the outputs; 0 = none, and no
    pointer.

    Zeros before the first launch; a launch may rely on what its predecessor wrote there.
    """
    passing: bool = False
    """Whether the scratch memory carries no state between plans: one allocation serves all shapes of the op, and is
    shared by all launches of a plan."""
    then: tuple[LaunchPlan, ...] = ()
    """Subsequent launches on the same pointers."""


def difference(plan: LaunchPlan, expected: LaunchPlan) -> str:
    """Return in which fields two plans differ, in one line; of the kernels' texts the first lines that do."""
    values = [(f.name, getattr(plan, f.name), getattr(expected, f.name)) for f in fields(LaunchPlan)[1:-1]]
    told = [f"{name} {mine} instead of {other}" for name, mine, other in values if mine != other]
    if plan.kernel != expected.kernel:
        lines = zip_longest(plan.kernel.text.split("\n"), expected.kernel.text.split("\n"), fillvalue="")
        changed = [f"{mine.strip()!r} instead of {other.strip()!r}" for mine, other in lines if mine != other]
        told.append(f"kernel {plan.kernel.entry}, {', '.join(changed[:MOST_LINES]) or 'by its flags or file names'}")
    if len(plan.then) != len(expected.then):
        told.append(f"{len(plan.then)} launches after it instead of {len(expected.then)}")
    after = (difference(mine, other) for mine, other in zip(plan.then, expected.then, strict=False))
    return "; ".join((*told, *(f"after it: {text}" for text in after if text)))


def nothing(op: FusedOp, output_shapes: tuple[Shape, ...]) -> LaunchPlan:
    """Return the plan for outputs without elements: a kernel that is never launched."""
    entry = identifier(op.name)
    text = "struct Parameters { unsigned count; };\n"
    text += entries.kernel(entry, len(op.inputs), len(op.outputs), "", bounds="KERNEL(32)")
    kernel = KernelSource(entry, (template(DEVICE), generated(entry, text)))
    return LaunchPlan(kernel, (0, 1, 1), (32, 1, 1), 0, packed((0,), 32), output_shapes)


def index_bits(elements: int) -> int:
    """Return the width of the kernel's index type: 32 if no index can reach 2^31."""
    return 32 if elements < 2**31 else 64


def index_type(bits: int) -> str:
    """Return the C++ index type of this width."""
    return "unsigned" if bits == 32 else "unsigned long long"


@dataclass(frozen=True)
class PackedParameters:
    """Parameters whose words are recorded symbolically before they become bytes."""

    words: tuple[int, ...]
    bits: int

    def __len__(self) -> int:
        """Return the size in bytes."""
        return len(self.words) * self.bits // 8

    def data(self) -> bytes:
        """Return the bytes."""
        whole = [w % (1 << self.bits) for w in self.words]
        return struct.pack(f"<{len(whole)}{'I' if self.bits == 32 else 'Q'}", *whole)


def packed(words: Iterable[int], bits: int) -> bytes:
    """Pack the parameters, all of them words of the index type, as the kernel reads them."""
    values = PackedParameters(tuple(words), bits)
    if any(not -(1 << (bits - 1)) <= w < 1 << bits for w in values.words):
        raise UnsupportedError(f"numbers beyond {bits} bits among the kernel's parameters")
    if len(values) > PARAMETER_LIMIT:
        raise UnsupportedError(f"{len(values)} bytes of kernel parameters, expected at most {PARAMETER_LIMIT}")
    # While a planner is recorded its words are symbolic: return their expressions instead of bytes.
    return cast(bytes, values) if any(is_recorded(w) for w in values.words) else values.data()
