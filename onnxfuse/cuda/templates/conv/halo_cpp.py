"""Source generation of the direct template's kernel for channel slices: constants, concatenated inputs."""

from __future__ import annotations

from dataclasses import dataclass

from onnxfuse.codegen.emit.source import AMPERE, HOPPER, KernelSource, constants
from onnxfuse.cuda.isa import wgmma
from onnxfuse.cuda.isa.factors import FactorType
from onnxfuse.cuda.templates.conv import stencil_cpp
from onnxfuse.cuda.templates.conv.stencil_cpp import ConvolutionBody
from onnxfuse.cuda.templates.conv.variant import Halo

LINE = 64
"""Bytes of a pixel's channels in shared memory at a time."""


@dataclass(frozen=True)
class Slices:
    """Mapping of a convolution to the tensor cores by channel slices, independent of its tile."""

    kernel: tuple[int, int]
    out: tuple[int, int]
    images: int
    channels: tuple[int, ...]
    """Channels of each concatenated input."""
    filters: int
    factors: FactorType
    vector: int
    """Adjacent filters that a lane stores at once."""
    piece: int
    """Bytes per copy."""

    @property
    def size(self) -> int:
        """Bytes per element."""
        return self.factors.bytes

    @property
    def count(self) -> int:
        """Total number of slices."""
        return -(-sum(self.channels) * self.size // LINE)


@dataclass(frozen=True)
class Tiling:
    """The work of a block with a halo: a tile of outputs, through all slices."""

    halo: Halo
    tiles: int
    """Columns of products of 8 filters per warp."""
    warps: int
    blocks: tuple[int, int, int]
    """Number of blocks along the filters, then of tiles along an image's columns and rows."""
    patch_bytes: int
    """Bytes of a slice's input patch for a tile."""
    weight_bytes: int
    stages: int
    kernel_height: int

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return self.stages * (-(-(self.patch_bytes + self.weight_bytes) // 512) * 512)


@dataclass(frozen=True)
class HaloSource(ConvolutionBody):
    """Input of source generation."""

    slices: Slices
    tiling: Tiling


def kernel(work: HaloSource, min_blocks: int) -> KernelSource:
    """Return the kernel; `min_blocks`: minimum resident blocks per multiprocessor for the compiler."""
    together = bool(work.tiling.halo.together)
    warpgroups = (HOPPER, "conv/halo_warpgroup.cuh")
    files = (
        AMPERE,
        "include/swizzle.cuh",
        "conv/halo.cuh",
        *(warpgroups if together else ("conv/halo_warp.cuh",)),
        "conv/halo.cu",
    )
    more = _runs(work) + (_warpgroup_product(work) if together else "")
    pointers = stencil_cpp.pointers(work)
    prefetch = f"  bring_near(in{work.parts.w}, FILTERS * TAPS * X_CHANNELS * (int)sizeof(X));\n"
    return stencil_cpp.kernel_of(work, _constants(work), files, "halo", pointers, min_blocks, more, prefetch)


def _constants(work: HaloSource) -> str:
    slices, tiling = work.slices, work.tiling
    facts = {
        "KERNEL_H": slices.kernel[0], "KERNEL_W": slices.kernel[1],
        "X_CHANNELS": sum(slices.channels), "FILTERS": slices.filters, "BLOCK_FILTERS": tiling.halo.filters,
        "TILE_ROWS": tiling.halo.rows, "TILE_COLUMNS": tiling.halo.columns, "STACK": tiling.halo.stack,
        "TILES_N": tiling.tiles, "PARTS": tiling.halo.parts, "VECTOR": slices.vector, "CHANNELS": slices.vector,
        "PIECE": slices.piece, "STAGES": max(tiling.stages, 2), "SHARED_WORDS": tiling.shared_bytes // 4,
        "STRIDED_SLOTS": max(len(work.slots), 1), "THREADS": tiling.warps * 32,
        "FILLS": 4 if tiling.halo.together else 1,
    }  # fmt: skip
    return stencil_cpp.element_aliases(work) + constants(facts)


def _warpgroup_product(work: HaloSource) -> str:
    """Return the wrapper around `wgmma` of pixels in registers and a block's filters."""
    columns, factors = 8 * work.tiling.tiles, work.slices.factors
    return wgmma.product(columns, factors, right_rows=False, regs=True, fours=True)


def _runs(work: HaloSource) -> str:
    """Return the function that locates a channel in the concatenated inputs."""
    text, end = "", sum(work.slices.channels)
    for number, channels in reversed(list(enumerate(work.slices.channels))):
        end -= channels
        run = f"{{from.{stencil_cpp.image(number)} + (channel - {end}), {channels}}}"
        text += f"  if (channel >= {end}) return {run};\n" if end else f"  return {run};\n"
    return (
        "// Where a channel of the first pixel lies, and elements from pixel to pixel.\n"
        "template <class T> struct Run {\n  const T* from;\n  Index step;\n};\n"
        f"DEVICE Run<X> run_of(const Pointers& from, int channel) {{\n{text}}}\n"
    )
