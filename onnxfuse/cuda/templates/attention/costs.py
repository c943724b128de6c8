"""Measured costs of the attention template's kernels; their files say what was measured."""

from dataclasses import dataclass
from typing import cast

from onnxfuse.cuda.costs import tables
from onnxfuse.cuda.costs.roofline import Roofline
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


def costs_of(arch: Arch) -> AttentionCosts:
    """Return the costs of the attention template on an architecture."""
    return tables.section(arch.name, "attention", AttentionCosts)
