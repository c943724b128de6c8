"""What a launch plan has to know about a GPU."""

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Arch:
    """A GPU, as far as plans and the compiler care."""

    name: str
    """The architecture that NVRTC compiles for, such as `sm_90a`."""
    sm_count: int
    """Number of streaming multiprocessors."""
    threads_per_sm: int = 2048
    """Threads that one multiprocessor can hold."""

    @property
    def starts_early(self) -> bool:
        """Whether a kernel can be launched while the one ahead of it on the stream still runs: from 9.0 on."""
        return self._from_hopper_on

    @property
    def cluster(self) -> int:
        """Blocks that may share their shared memory, at most: none with another one before Hopper."""
        return 8 if self._from_hopper_on else 1

    @property
    def has_warpgroups(self) -> bool:
        """Whether four warps multiply together, and a copy engine fetches what they multiply: on `sm_90a` alone."""
        return self.name == "sm_90a"

    @cached_property
    def number(self) -> int:
        """The compute capability, times ten."""
        return int("".join(c for c in self.name if c.isdigit()))

    @cached_property
    def shared_bytes(self) -> int:
        """Shared memory that one block may have (CUDA C++ programming guide, technical specifications)."""
        return next(size for least, size in _SHARED if self.number >= least) * 1024

    @property
    def _from_hopper_on(self) -> bool:
        return self.number >= 90


_SHARED = ((120, 99), (90, 227), (89, 99), (87, 163), (86, 99), (80, 163), (75, 64), (0, 48))
"""Kilobytes of shared memory that a block may have, from this compute capability on."""

SUPPORTED = (
    Arch("sm_80", 108), Arch("sm_86", 72, 1536), Arch("sm_89", 58, 1536), Arch("sm_90a", 132), Arch("sm_100", 148),
    Arch("sm_120", 170, 1536),
)  # fmt: skip
"""A GPU of each architecture that kernels are made for: A100, A10, L4, H200, B200, RTX 5090."""
