"""What a launch plan has to know about a GPU."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Arch:
    """A GPU, as far as plans and the compiler care."""

    name: str
    """The architecture that NVRTC compiles for, such as `sm_90a`."""
    sm_count: int
    """Number of streaming multiprocessors."""
    threads_per_sm: int = 2048
    """Threads that one multiprocessor can hold."""
