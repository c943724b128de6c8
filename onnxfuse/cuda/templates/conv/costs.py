"""Measured costs of the window templates' kernels; their files say what was measured."""

from collections.abc import Mapping
from dataclasses import dataclass

from onnxfuse.cuda.costs import tables
from onnxfuse.cuda.costs.tables import ProductCycles
from onnxfuse.cuda.planning.arch import Arch


@dataclass(frozen=True)
class DepthwiseCosts:
    """Sizes by which the depthwise template chooses its kernel and patches."""

    few_taps: int
    small: int
    enough: Mapping[int, int]
    mean_patch: int
    mean_channels: int
    mean_taps: int
    mean_enough: int
    mean_threads: int
    small_patch: int
    seats: int
    strip_bytes: int
    strip_blocks: int
    strip_products: int
    strip_threads: int
    sector: int
    line: int


@dataclass(frozen=True)
class HaloCosts:
    """Cycles of the direct template's kernel that iterates over channel slices, and where warpgroups are faster."""

    tiles: int
    threads: int
    sums_together: int
    warps: tuple[int, ...]
    arrival: int
    few_together: int
    most_together: int
    start: int
    load: int
    product: ProductCycles
    alone_product: ProductCycles
    alone_step: int
    together_step: int
    fetch: int


@dataclass(frozen=True)
class DirectCosts:
    """Cycles of the direct template's kernel that holds all channels."""

    tiles: int
    threads: int
    channels: int
    least_shared: int
    step: int
    pick: int
    rounded: tuple[int, ...]
    exact: tuple[int, ...]
    finish: tuple[int, ...]
    read_wide: int
    read_single: int
    waiting: float
    start: int


def depthwise(arch: Arch) -> DepthwiseCosts:
    """Return the costs of the depthwise template on an architecture."""
    return tables.section(arch.name, "conv.depthwise", DepthwiseCosts)


def halo(arch: Arch) -> HaloCosts:
    """Return the costs of the kernel with channel slices on an architecture."""
    return tables.section(arch.name, "conv.halo", HaloCosts)


def direct(arch: Arch) -> DirectCosts:
    """Return the costs of the kernel that holds all channels on an architecture."""
    return tables.section(arch.name, "conv.direct", DirectCosts)
