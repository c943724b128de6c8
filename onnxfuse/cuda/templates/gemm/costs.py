"""Measured costs of the gemm template's kernels; their files say what was measured."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from onnxfuse.cuda.costs import tables
from onnxfuse.cuda.costs.roofline import Roofline
from onnxfuse.cuda.costs.tables import ClockTime, InstructionSpeed, InstructionTime, ProductTime
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.templates.gemm.body import Anatomy
from onnxfuse.cuda.templates.gemm.variant import Block, GemmTile, Strip


@dataclass(frozen=True)
class TileCost:
    """Microseconds of a tile."""

    launch: float
    """For a single tile per multiprocessor: everything except the products."""
    step: float
    """For a single tile: 64 terms."""
    several: float
    """For several tiles, with the card at its power limit: 64 terms."""
    finish: float
    """For several tiles: everything else, per tile."""
    light: float
    """The same for an epilogue of few instructions: bias, residual, ReLU."""


@dataclass(frozen=True)
class WgmmaCosts:
    """Costs of the kernel by warpgroup products. The tiles that are considered and tuned are those that have a cost."""

    light_saves: float
    launch: float
    fetch_unaligned: int
    store: int
    beside: float
    shared_from: int
    near: float
    split_from: int
    clustered: float
    gather_once: float
    gather_each: float
    long: float
    brought: int
    packed_of_rows: float
    """Share by which products take longer by weights in few bits than by elements, for each 128 rows."""
    packed: float
    """The largest share."""
    unpack: Roofline
    """Of making these elements in a launch before."""
    unpack_threads: int
    """Of a block of that launch."""
    unpack_loads: int
    """Pieces of eight elements that a thread makes."""
    unpacked_bytes: int
    """The most of their bytes."""
    splits: Mapping[GemmTile, tuple[int, ...]]
    float16: Mapping[GemmTile, TileCost]
    tf32: Mapping[GemmTile, TileCost]
    float8: Mapping[GemmTile, TileCost]
    exact: Mapping[GemmTile, TileCost]
    instruction: Mapping[GemmTile, float]

    def tiles(self, parts: Anatomy) -> Mapping[GemmTile, TileCost]:
        """Return the tiles available for a body, and the cost of each."""
        if parts.precise:
            return self.exact
        if parts.factors.promoted_after:
            return self.float8
        return self.tf32 if parts.to_tf32 else self.float16

    @property
    def split(self) -> tuple[GemmTile, ...]:
        """The tiles of which blocks may share the terms."""
        return tuple(replace(tile, split=s) for tile, blocks in self.splits.items() for s in blocks)


def wgmma() -> WgmmaCosts:
    """Return the costs of warpgroup products, which one architecture has."""
    return tables.section("sm_90a", "gemm.wgmma", WgmmaCosts)


@dataclass(frozen=True)
class Pace:
    """Speed of one kind of block, in microseconds."""

    resident: int
    """Intended resident blocks per multiprocessor."""
    alone: ProductTime
    """Per 128 bytes of terms, for a single resident block."""
    together: ProductTime
    """The same for all resident blocks together."""
    finish: InstructionTime
    """Epilogue time per block."""
    start: ClockTime
    """Before the first product and after the last one."""


@dataclass(frozen=True)
class MmaCosts:
    """Costs of the kernel by products of single warps, by rows and total columns of a gate's products."""

    accumulators: int
    spare: tuple[Block, ...]
    near: float
    few_rows: int
    unaligned: ClockTime
    """Microseconds in which a multiprocessor copies a megabyte of factors whose lines begin inside a sector."""
    rounded: Mapping[Block, Pace]
    exact: Mapping[Block, Pace]

    def blocks(self, parts: Anatomy) -> Mapping[Block, Pace]:
        """Return the block shapes that were measured for a body, and the cost of each."""
        return self.exact if parts.precise else self.rounded


def mma(arch: Arch) -> MmaCosts:
    """Return the costs of products of single warps on an architecture."""
    return tables.section(arch.name, "gemm.mma", MmaCosts)


@dataclass(frozen=True)
class SkinnyCosts:
    """Costs of the kernel for few rows."""

    most_columns: int
    short_terms: int
    short_share: float
    least_share: float
    left_rows: int


def skinny(arch: Arch) -> SkinnyCosts:
    """Return the costs of products of few rows on an architecture."""
    return tables.section(arch.name, "gemm.skinny", SkinnyCosts)


@dataclass(frozen=True)
class PrologueCosts:
    """Instructions by which a left factor is computed."""

    long: int
    around: int
    rate: InstructionSpeed


def prologue(arch: Arch) -> PrologueCosts:
    """Return the costs of computed left factors on an architecture."""
    return tables.section(arch.name, "gemm.prologue", PrologueCosts)


STRIPS = (Strip(32), Strip(16))
"""Strips of 32 and 16 columns, us, weights from memory, with programmatic dependent launch (H200, 2026-11-26):
2048x2048 4.4 and 4.5, 2048x4096 7.3 and 7.8, 5632x2048 7.3 and 11.6, 512x2048 3.0 and 2.4, 768x3072 4.3 and 2.9. Of 64
columns 4096x4096 12.8 instead of 11.1. More than 96 KB in flight gain nothing: such copies reach 2.5 to 3.2 TB/s in
all."""
GATE_STRIP = Strip(16, 16, 160)
"""Of gates with more strips than places for blocks: 5632x2048 twice, 1 and 8 rows, 12.5 and 13.0 us; by blocks of 8
warps that take strips in turns 13.1 and 15.6, a block for each strip 14.3 and 14.5 (H200, 2026-12)."""
SKINNY_WIDTH = 2
"""Adjacent cells that a thread finishes: rows are few, and all threads reduce the warps' partial sums."""
RESIDENT_THREADS = 512
"""Threads of all resident blocks of a multiprocessor, as many as have registers enough."""
RESIDENT_BYTES = 224 * 1024
"""Shared memory of all resident blocks of a multiprocessor: their rings, sums beside these, and left factors that they
compute; of more of these rings are shorter."""

# ---- right factors in few bits


PACKED_ROWS = (8, 16)
"""Rows that a block computes, for few rows: one or two columns of fragments."""
LINES = (64, 32, 16)
"""Bytes of a column's numbers in a step of a warp, for few rows: the most of which its terms are a multiple."""
PIECE = 16
"""Bytes of the numbers that have one scale at least: those that a copy brings."""
BESIDE_RING = 16 * 1024
"""Bytes of a left factor that a block computes, with which two blocks still share a multiprocessor: of more the ring is
shorter."""
PACKED_STRIPS = (
    *(Strip(columns, ring=84) for columns in (16, 32, 48, 64)),
    *(Strip(columns, 16, 96) for columns in (16, 32)),
)
"""Strips for few rows, with kilobytes in flight for each block. Of 4 bits, blocks of 32: 1x12288x4096 takes 48 columns
12.4 us, 32 12.6, 64 13.5, 16 14.3; 16 rows 48 columns 16.0, 32 17.3. With 108 kilobytes in place of 84 they take 12.8
and 18.9. 1x2048x5632 takes 16 columns by 16 warps 4.9, by 8 5.9 (H200, 2026-11). Blocks that take strips in turns, as
those of float16 do, gain nothing: a step of LLaMA takes 120.4 us, 118.3 with a block for each strip (2026-12)."""
UNPACKING = 2
"""Warpgroups that make elements of a tile's numbers on Hopper. 512x12288x4096 takes 134 us by two and
by one, of 192 columns 126 by one (H200, 2026-11)."""
PACKED_RUN = 32
"""Terms of which a thread makes elements at once, all of one block."""
KEPT_REGISTERS = (24, 96)
"""Registers of a thread of the producers, and of a warpgroup that computes part of a factor: as in sm90.cuh."""
