"""Variants of the gemm template's kernels."""

from dataclasses import dataclass

from onnxfuse.cuda.planning.variant import Variant


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

    def __str__(self) -> str:
        shared = f"x{self.warps_k}" if self.warps_k > 1 else ""
        return f"{self.m}x{self.n} by {self.warps_m}x{self.warps_n}{shared} warps"


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
class GemmVariant(Variant):
    """One of the three; none: by the sizes."""

    tile: GemmTile | None = None
    """For the gemm template's kernel for Hopper; None = by the sizes."""
    block: Block | None = None
    """For its kernel for sm_80 and later, wherever that can run; None = by the sizes, on Hopper for what the other
    kernel does not support."""
    strip: Strip | None = None
    """For its kernel for few rows, wherever that can run; None = by the sizes, unless a tile or block is given."""
