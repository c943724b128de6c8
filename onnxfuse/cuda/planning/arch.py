"""Properties of a GPU that launch plans depend on."""

import re
from dataclasses import dataclass
from functools import cached_property

from onnxfuse.cuda.isa.capabilities import capability, isa_of
from onnxfuse.cuda.isa.isa import Isa


@dataclass(frozen=True)
class Arch:
    """A GPU, as far as plans and the compiler are concerned."""

    name: str
    """The architecture for NVRTC, such as `sm_90a`."""
    sm_count: int
    """Number of streaming multiprocessors."""
    threads_per_sm: int = 2048
    """Maximum resident threads per multiprocessor."""

    @cached_property
    def isa(self) -> Isa:
        """Its instructions and their limits."""
        return isa_of(self.name)

    @cached_property
    def number(self) -> int:
        """The compute capability, times ten, by which packs and compilers name it."""
        return capability(self.name)

    @property
    def shared_bytes(self) -> int:
        """Maximum shared memory per block."""
        return self.isa.shared_bytes


A100, A10, L4 = Arch("sm_80", 108), Arch("sm_86", 72, 1536), Arch("sm_89", 58, 1536)
H200, B200, RTX5090 = Arch("sm_90a", 132), Arch("sm_100", 148), Arch("sm_120", 170, 1536)
ORIN = Arch("sm_87", 16, 1536)
"""Jetson AGX Orin: no other architecture's cubin runs on a Tegra."""

SUPPORTED = (A100, A10, L4, H200, B200, RTX5090, ORIN)
"""One GPU of each supported architecture. A new one is a row here, and an `Isa` if its instructions are new."""


def named(name: str) -> Arch | None:
    """Return the GPU of an architecture by a name such as `sm_90` or `sm_90a`; None for a name of another form.

    One that is not among SUPPORTED has the numbers of the nearest.
    """
    match = re.fullmatch(r"sm_(\d+)[af]?", name)
    if match is None:
        return None
    number = int(match[1])
    nearest = min(SUPPORTED, key=lambda a: abs(a.number - number))
    return Arch("sm_90a" if number == 90 else f"sm_{number}", nearest.sm_count, nearest.threads_per_sm)
