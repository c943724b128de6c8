"""Variants of the window templates' kernels."""

from dataclasses import dataclass

from onnxfuse.cuda.planning.variant import Variant


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
class DepthwiseVariant(Variant):
    """Variants of the depthwise template."""

    patch: Patch | None = None
    """For the depthwise template's kernel on CUDA cores; None = by the sizes."""
    band: Band | None = None
    """For its kernel on tensor cores, wherever that can run; None = by the sizes, unless a patch is given."""
    min_blocks: int = 0
    """Minimum resident blocks per multiprocessor for the compiler (__launch_bounds__); 0 = its own choice."""


@dataclass(frozen=True)
class DirectVariant(Variant):
    """Variants of the direct template."""

    area: Area | None = None
    """For the direct template's kernel that holds all channels; None = by the sizes."""
    halo: Halo | None = None
    """For its kernel with channel slices, wherever that can run; None = by the sizes, unless an area is given."""
    min_blocks: int = 0
    """Minimum resident blocks per multiprocessor for the compiler (__launch_bounds__); 0 = its own choice."""
