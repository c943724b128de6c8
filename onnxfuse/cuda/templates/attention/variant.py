"""Variants of the attention template's kernels."""

from dataclasses import dataclass

from onnxfuse.cuda.planning.variant import Variant


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
    stages: int = 0
    """Steps of keys and values in shared memory at a time, of streamed ones; 0: two, one of which is filled."""

    def __str__(self) -> str:
        how = f" streamed in {self.stages}" if self.streamed and self.stages else ""
        how = how or " streamed" if self.streamed else f" in {self.parts}" if self.parts else ""
        how = " ahead by warpgroups" if self.ahead else " by warpgroups" if self.warpgroups else how
        return f"{self.warps}x{self.tiles}x{self.passes}x{self.step}{how}"


@dataclass(frozen=True)
class AttentionVariant(Variant):
    """A partition of the queries, and the registers of its threads."""

    queries: Queries | None = None
    """For the attention template; None = by the sizes."""
    min_blocks: int = 0
    """Minimum resident blocks per multiprocessor for the compiler (__launch_bounds__); 0 = its own choice."""
