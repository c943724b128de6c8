"""Source generation of the direct template: constants, operands, stores, entry point and parameters."""

from __future__ import annotations

from dataclasses import dataclass

from onnxfuse.codegen.emit.source import MMA_SYNC, KernelSource, constants
from onnxfuse.codegen.program.window import WindowGeometry
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.templates.conv import convolution, stencil_cpp
from onnxfuse.cuda.templates.conv.stencil_cpp import ConvolutionBody
from onnxfuse.cuda.templates.conv.variant import Area
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.strides import divisors


@dataclass(frozen=True)
class Group:
    """Properties shared by all groups of a convolution, and their mapping to the tensor cores."""

    window: WindowGeometry
    groups: int
    channels: int
    """Input channels per group."""
    filters: int
    """Filters per group."""
    planes: bool
    """Whether x lies [N, C, H, W]."""
    terms: int
    """Elements of x per 4-byte word."""
    vector: int
    """Adjacent filters that a lane stores at once."""
    read: int
    """Maximum elements of x per copy."""
    precise: bool = False
    """Whether elements are float32 and must not be rounded."""

    @property
    def shift(self) -> int:
        """Elements of a plane's row loaded before the visible ones, to start at a multiple of `read`."""
        return -self.window.begin[1] % self.read if self.planes else 0

    @property
    def lead(self) -> int:
        """Leading elements before a run in its first word."""
        return self.shift % self.terms

    @property
    def run(self) -> int:
        """Terms of a product that are contiguous in shared memory."""
        return self.window.kernel[1] if self.planes else self.channels

    @property
    def run_words(self) -> int:
        return -(-(self.lead + self.run) // self.terms)

    @property
    def words(self) -> int:
        """Words of all terms."""
        height, width = self.window.kernel
        return (self.channels * height if self.planes else height * width) * self.run_words

    @property
    def steps(self) -> int:
        """Product steps per output."""
        return -(-self.words // 8)

    @property
    def masked(self) -> bool:
        """Whether some words are partially or entirely masked."""
        return self.words % 8 != 0 or (self.planes and (self.lead != 0 or self.run % self.terms != 0))

    @property
    def bundle(self) -> int:
        """Columns of products whose filters are distributed among the lanes together."""
        return max(self.vector // 2, 1)


@dataclass(frozen=True)
class Slab:
    """The work of a block: many tiles of an area, one after the other."""

    area: Area
    tiles: int
    """Columns of products of 8 filters that a warp computes at once."""
    blocks: tuple[int, int, int]
    """Number of blocks along the channels, then of tiles along an image's columns and rows."""
    weight_words: int
    patch_words: int
    units: int
    """Parts of an area that a warp processes in sequence."""
    fills: int
    """Load iterations of a warp for the area's input patch."""
    read: int
    """Elements of x per copy of a thread."""

    def shared_words(self, group: Group) -> int:
        """Return the words of shared memory: weights, table, patch, and the next tile's patch if it fits."""
        return self.weight_words + group.steps * 16 + self.patch_words * (1 if self.read % group.terms else 2)


@dataclass(frozen=True)
class DirectSource(ConvolutionBody):
    """Input of source generation."""

    group: Group
    slab: Slab | None
    """The slab; None: each thread computes one output."""
    threads: int
    """Threads per block."""
    packed: bool
    """Whether weights are stored [F, R, S, C]; else [F, C, R, S]."""

    @property
    def factor_types(self) -> tuple[str, str]:
        # The tensor cores read both as one type, which names the signs of integers.
        return super().factor_types if self.slab is None else (convolution.factors(self.op, self.parts).stored,) * 2

    @property
    def headers(self) -> tuple[str, ...]:
        header = convolution.factors(self.op, self.parts).header
        return () if header is None else (header,)


def kernel(work: DirectSource, min_blocks: int) -> KernelSource:
    """Return the kernel; `min_blocks`: minimum resident blocks per multiprocessor for the compiler, 0 = any."""
    files = ("conv/direct_plain.cu",) if work.slab is None else (*MMA_SYNC, "conv/direct.cu")
    return stencil_cpp.kernel_of(work, _constants(work), files, "direct", stencil_cpp.pointers(work), min_blocks)


def vector(op: FusedOp, filters: int, aligned: bool) -> int:
    """Return how many adjacent filters a lane stores at once, without idling more columns."""
    widest = max(element_types.TYPES[t].size for t in (*op.inputs, *op.outputs))
    whole = (v for v in (8, 4, 2) if aligned and v * widest <= 16 and filters % v == 0)
    return next((v for v in whole if -(-filters // (4 * v)) * v * 4 == -(-filters // 8) * 8), 1)


def parameters(work: ConvolutionBody, blocks: tuple[int, int, int]) -> bytes:
    """Return the kernel's `Parameters`; `blocks`: number along the channels, columns and rows."""
    window, filters = work.size.window, work.size.full[-1]
    (batch, height, width, channels), (rows, columns) = window.shape, window.out
    words = [batch, height, width, rows, columns, *window.begin]
    last = work.parts.images_last
    words += [height * width * channels, 1 if last else height * width, width * channels if last else width]
    words += [rows * columns * filters, 1, columns * filters]
    words += divisors((max(n, 1) for n in blocks), work.bits)
    return launch_plan.packed((*words, *work.stride_words), work.bits)


def _constants(work: DirectSource) -> str:
    window, group = work.size.window, work.group
    facts = {
        "KERNEL_H": window.kernel[0], "KERNEL_W": window.kernel[1],
        "STRIDE_H": window.strides[0], "STRIDE_W": window.strides[1],
        "DILATION_H": window.dilations[0], "DILATION_W": window.dilations[1],
        "GROUPS": group.groups, "GROUP_CHANNELS": group.channels, "FILTERS": group.filters,
        "X_CHANNELS": window.shape[3], "Y_CHANNELS": group.groups * group.filters,
        "STRIDED_SLOTS": max(len(work.slots), 1), "THREADS": work.threads,
        **({"CHANNELS": 1} if work.slab is None else _slab_constants(group, work.slab)),
    }  # fmt: skip
    whole = work.aligned and work.packed and not group.planes and group.channels % group.terms == 0
    return (
        stencil_cpp.element_aliases(work)
        + constants(
            {**facts, "PLANES": group.planes, "PACKED": work.packed, "WHOLE_WORDS": whole, "PRECISE": group.precise}
        )
        + f"DEVICE Sum sum_of(float held) {{ return {convolution.factors(work.op, work.parts).sum.format('held')}; }}\n"
    )


def _slab_constants(group: Group, slab: Slab) -> dict[str, int]:
    area = slab.area
    return {
        "TILE_ROWS": area.rows, "TILE_COLUMNS": area.columns, "BLOCK_GROUPS": area.groups,
        "BLOCK_FILTERS": area.filters, "STACK": area.stack, "TILES_N": slab.tiles, "VECTOR": group.vector,
        "CHANNELS": group.vector, "READ": slab.read, "SHIFT": group.shift,
        "SHARED_WORDS": slab.shared_words(group),
    }  # fmt: skip
