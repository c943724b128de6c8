"""Properties of a GPU that launch plans depend on."""

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Arch:
    """A GPU, as far as plans and the compiler are concerned."""

    name: str
    """The architecture for NVRTC, such as `sm_90a`."""
    sm_count: int
    """Number of streaming multiprocessors."""
    threads_per_sm: int = 2048
    """Maximum resident threads per multiprocessor."""

    @property
    def starts_early(self) -> bool:
        """Supports programmatic dependent launch: a kernel may start while its predecessor on the stream still runs;
        from 9.0 on."""
        return self._from_hopper_on

    @property
    def cluster(self) -> int:
        """Maximum cluster size in blocks, whose shared memory is accessible to each other; 1 before Hopper."""
        return 8 if self._from_hopper_on else 1

    @property
    def has_warpgroups(self) -> bool:
        """Has wgmma and TMA: `sm_90a` only."""
        return self.name == "sm_90a"

    @cached_property
    def number(self) -> int:
        """The compute capability, times ten."""
        return int("".join(c for c in self.name if c.isdigit()))

    @cached_property
    def shared_bytes(self) -> int:
        """Maximum shared memory per block (CUDA C++ programming guide, technical specifications)."""
        return next(size for least, size in _SHARED if self.number >= least) * 1024

    @property
    def _from_hopper_on(self) -> bool:
        return self.number >= 90


_SHARED = ((120, 99), (90, 227), (89, 99), (87, 163), (86, 99), (80, 163), (75, 64), (0, 48))
"""Maximum shared memory per block in kilobytes, by minimum compute capability."""

SUPPORTED = (
    Arch("sm_80", 108), Arch("sm_86", 72, 1536), Arch("sm_89", 58, 1536), Arch("sm_90a", 132), Arch("sm_100", 148),
    Arch("sm_120", 170, 1536),
)  # fmt: skip
"""One GPU of each supported architecture: A100, A10, L4, H200, B200, RTX 5090."""
