"""Measured costs of the attention template's kernels; their files say what was measured."""

from dataclasses import dataclass
from typing import cast

from onnxfuse.cuda.costs import tables
from onnxfuse.cuda.costs.roofline import Roofline
from onnxfuse.cuda.costs.tables import ClockTime, OperationSpeed
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.templates.attention.variant import Queries


@dataclass(frozen=True)
class FewCosts:
    """Partitions of the kernel for few queries."""

    least_keys: int
    least_keys_float32: int
    most_parts: int
    warps: int
    cluster: int


@dataclass(frozen=True)
class ResidentCosts:
    """Partitions of the kernel with resident keys."""

    warps: int
    blocks: int
    step: int
    few_keys: int


@dataclass(frozen=True)
class WarpgroupCosts:
    """Partitions of the kernel by warpgroup products."""

    rings: tuple[tuple[int, ...], ...]
    uneven: Queries


@dataclass(frozen=True)
class CachedCosts:
    """The kernel that puts many tokens into KV caches."""

    warps: int
    blocks: int


@dataclass(frozen=True)
class AttentionCosts:
    """Sizes by which the template chooses its kernel and partitions."""

    short: int
    few_rows: int
    together_keys: int
    together_share: float
    long: int
    stages: int
    few: FewCosts
    resident: ResidentCosts
    warpgroups: WarpgroupCosts
    cached: CachedCosts


@dataclass(frozen=True)
class TileTimes:
    """How fast a kernel is for few keys and values, in whole tiles of queries and of keys."""

    start: ClockTime
    """Microseconds of a launch."""
    scores: OperationSpeed
    """Scores per second of all multiprocessors, in 10^12."""
    tile: ClockTime
    """Microseconds of a tile of keys, one after the other."""

    def microseconds(self, queries: int, keys: int, heads: int, side: int, *, causal: bool) -> float:
        """Return the time of so many queries and keys of each head by tiles of so many of each."""
        rows, columns = -(-queries // side), -(-keys // side)
        tiles = columns * (columns + 1) // 2 if causal else rows * columns
        return self.start + columns * self.tile + heads * tiles * side * side / (self.scores * 1e6)


@dataclass(frozen=True)
class ShortTimes:
    """Times of the kernels that compete for few keys, of heads that fill a panel."""

    kept: TileTimes
    warpgroups: TileTimes


@dataclass(frozen=True)
class SplitTimes:
    """What several blocks that share the keys of few queries cost, and save."""

    combine: ClockTime
    """Microseconds to combine their results through memory."""
    fetch: ClockTime
    """Microseconds in which a multiprocessor fetches a megabyte of keys and values."""


@dataclass(frozen=True)
class AttentionTimes:
    """How fast each kernel is; without suffix for 16-bit elements."""

    kept: Roofline
    few: Roofline
    warpgroups: Roofline
    few_float32: Roofline
    streamed_float32: Roofline

    def of(self, kernel: str, element_bytes: int) -> Roofline | None:
        """Return the times of a kernel for elements of this size; None if they were not measured."""
        return cast(Roofline | None, vars(self).get(kernel if element_bytes < 4 else f"{kernel}_float32"))


def times_of(arch: Arch) -> AttentionTimes:
    """Return how fast the kernels are on an architecture."""
    return tables.section(arch.name, "times.attention", AttentionTimes)


@dataclass(frozen=True)
class CachedTimes:
    """How fast tokens behind KV caches are."""

    prompt: Roofline
    """To put many tokens into the caches, and of the attention over them, by 16 bits."""


def cached_times(arch: Arch) -> CachedTimes:
    """Return the times of tokens behind KV caches on an architecture."""
    return tables.section(arch.name, "times.cached_attention", CachedTimes)


def short_times(arch: Arch) -> ShortTimes:
    """Return the times of few keys on an architecture."""
    return tables.section(arch.name, "times.short_attention", ShortTimes)


def split_times(arch: Arch) -> SplitTimes:
    """Return the times of blocks that share keys on an architecture."""
    return tables.section(arch.name, "times.split_attention", SplitTimes)


def costs_of(arch: Arch) -> AttentionCosts:
    """Return the costs of the attention template on an architecture."""
    return tables.section(arch.name, "attention", AttentionCosts)
