"""A stand-in for the package cupti-python: tests say what the device did, and it hands that over as CUPTI does.

`install()` puts it in the package's place. Kernels that the tests' stand-in driver launches are not seen by it.
"""

import sys
import time
from collections.abc import Callable, Iterable
from enum import IntEnum
from types import ModuleType, SimpleNamespace
from typing import Any


class ActivityKind(IntEnum):
    """Some of CUPTI's kinds, with its numbers."""

    MEMCPY = 1
    MEMSET = 2
    DRIVER = 4
    RUNTIME = 5
    CONCURRENT_KERNEL = 10


class CuptiError(Exception):
    """What the binding raises."""


class StandInCupti(ModuleType):
    """The module `cupti.cupti`; its clock is some seconds behind the system's."""

    BEHIND = 5_000_000_000

    def __init__(self) -> None:
        super().__init__("cupti.cupti")
        self.ActivityKind = ActivityKind
        self.cuptiError = CuptiError
        self.enabled: set[int] = set()
        self.pending: list[Any] = []
        self.refuses = ""

    def get_timestamp(self) -> int:
        return time.time_ns() - self.BEHIND

    def activity_register_callbacks(
        self, requested: Callable[[], tuple[int, int]], completed: Callable[[Iterable[Any]], None]
    ) -> None:
        assert requested()[0] > 0
        self.completed = completed

    def activity_enable(self, kind: int) -> None:
        if self.refuses:
            raise CuptiError(self.refuses)
        self.enabled.add(kind)

    def activity_disable(self, kind: int) -> None:
        self.enabled.discard(kind)

    def activity_flush_all(self, flag: int) -> None:
        assert flag == 1, "without it CUPTI keeps what is in buffers that are not full"
        self.completed(self.pending)
        for record in self.pending:
            record.__dict__.clear()  # as CUPTI's buffer, which is not ours once the callback has returned
        self.pending = []

    def launch(self, name: str, duration_us: float = 1.0, *, call: str = "RUNTIME", correlation: int = 0) -> None:
        """The host launches a kernel; it begins a microsecond later. A name `copy` or `fill` is the driver's."""
        if not self.enabled:
            return
        correlation = correlation or len(self.pending) + 1
        now = self.get_timestamp()
        end = now + 1000 + int(duration_us * 1000)
        kind = {"copy": ActivityKind.MEMCPY, "fill": ActivityKind.MEMSET}.get(name, ActivityKind.CONCURRENT_KERNEL)
        device = SimpleNamespace(kind=kind, start=now + 1000, end=end, correlation_id=correlation)
        if kind == ActivityKind.CONCURRENT_KERNEL:
            vars(device).update({
                "name": name, "grid_x": 3, "grid_y": 2, "grid_z": 1, "block_x": 128, "block_y": 1, "block_z": 1,
                "registers_per_thread": 40, "static_shared_memory": 16, "dynamic_shared_memory": 1024,
            })  # fmt: skip
        host = SimpleNamespace(kind=ActivityKind[call], start=now, end=now + 500, correlation_id=correlation)
        self.pending += [host, device]


def install() -> StandInCupti:
    """Put a new one in the place of the package and return it."""
    binding = StandInCupti()
    package = ModuleType("cupti")
    sys.modules["cupti"], sys.modules["cupti.cupti"] = package, binding
    return binding
