"""Memory of a session on the GPU: what it is used for, and how ONNX Runtime's arena is kept near what runs need.

ONNX Runtime allocates all values of a session from an arena, which asks the driver for regions and returns none. Values
of a larger shape do not fit the free pieces of regions made for smaller ones, so a stream of changing shapes leaves
regions that nothing fits any more. An `ArenaKeeper` looks after runs of new shapes: where the arena has far more than
was ever in use at a time, the next run returns the free regions when it ends, and the arena gets one region as large as
the most that was in use, which all later values of such shapes fit into.
"""

import contextlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import onnxruntime

from onnxfuse import cuda
from onnxfuse.runtime.engine.bridge import bridge
from onnxfuse.runtime.engine.engine import SessionMemory
from onnxfuse.runtime.kernels.loader import LIMIT_SHARE
from onnxfuse.runtime.sessions.opening import ORT_ERRORS
from onnxfuse.support.errors import MemoryLimitError
from onnxfuse.support.log import LOG
from onnxfuse.support.plurals import plural
from onnxfuse.support.screen import Blocks, Line, Rows, Screen, plain_table
from onnxfuse.support.units import size_text

SHRINK = "memory.enable_memory_arena_shrinkage"
"""Run option that lets arenas return free regions when the run ends (onnxruntime_run_options_config_keys.h)."""
SURPLUS = 1.15
"""Bytes of the arena per byte that was in use at the most, above which it is consolidated."""
SMALL = 32 << 20
"""Bytes of surplus that are left alone: less than CUDA's own context by far."""
MARGINS = (1.03, 1.08, 1.13)
"""Sizes of the one region, in what was in use at the most: pieces between values take some, the first is often enough.
The next one is taken where runs needed more although no more was in use."""
GROWTH = 1.03
"""Growth of what is in use at the most that makes another consolidation worth its time."""

ARENA_FAULT = re.compile(r"Available memory of (\d+) is smaller than requested bytes of (\d+)")
"""ONNX Runtime's message where an arena meets its limit (bfc_arena.cc)."""

SCRATCH_FAULT = re.compile(r"(onnxfuse\.\S+ with inputs.* memory_limit leaves .*?) (memory_limit=\d+ is enough.*)")
"""A planner's message (runtime/kernels/loader.py)."""

WATCHED = 3
"""Runs that are looked at after one of new shapes: where ONNX Runtime plans memory for a set of shapes (mem_pattern),
the second run allocates it all in one piece besides what the first one had."""
STEPS = 64
"""Runs that made memory grow which are remembered, the latest."""

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class MemoryStep:
    """Memory after a run that made it grow."""

    shapes: Shapes
    """Of the run's inputs, by name; empty where the caller bound them."""
    arena: int
    peak: int
    workspaces: int


@dataclass(frozen=True, repr=False)
class MemoryUse(Screen):
    """What a session uses of the GPU's memory, in bytes; CUDA's own context and libraries come on top."""

    weights: int
    """In the arena when the session had been opened."""
    activations: int
    """Other values, the most that was in use at a time."""
    arena: int
    """What ONNX Runtime's arena has allocated for weights and activations."""
    workspaces: int
    """Scratch memory of fused kernels, of all streams that the session runs on."""
    kernels: int
    """Code of all fused kernels that this process has loaded, of other sessions, too."""
    graphs: int
    """CUDA graphs of a runner, with the inputs and outputs that belong to them."""
    steps: tuple[MemoryStep, ...]
    """The latest runs that made it grow, in order: which shapes took how much."""

    @property
    def total(self) -> int:
        """Everything that is allocated."""
        return self.arena + self.workspaces + self.kernels + self.graphs

    @property
    def summary(self) -> str:
        """The verdict in one line."""
        return (
            f"{size_text(self.total)} on the GPU: arena {size_text(self.arena)} (weights {size_text(self.weights)}, "
            f"activations {size_text(self.activations)} at most), workspaces {size_text(self.workspaces)}, "
            f"kernels {size_text(self.kernels)}, CUDA graphs {size_text(self.graphs)}"
        )

    def screen(self) -> Blocks:
        """Return the summary, and by shape what made it grow."""
        yield Line(f"[bold]{self.summary}[/]")
        table = plain_table("after a run of", "arena", "in use at most", "workspaces")
        for step in self.steps:
            numbers = map(size_text, (step.arena, step.peak, step.workspaces))
            table.add_row(_text(step.shapes) or "bound inputs", *numbers)
        if self.steps:
            yield Line(f"grown in {plural(self.steps, 'run')}", "dim")
            yield Rows(table)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        steps = [{**asdict(s), "shapes": {n: list(x) for n, x in s.shapes.items()}} for s in self.steps]
        return {**asdict(replace(self, steps=())), "total": self.total, "steps": steps}


def _text(shapes: Shapes) -> str:
    return ", ".join(f"{n} {'x'.join(map(str, s)) or 'scalar'}" for n, s in shapes.items())


def shapes_of(inputs: Mapping[str, Any]) -> Shapes:
    """Return the shapes of arrays, or of ONNX Runtime's values."""
    return {n: tuple(x.shape() if callable(x.shape) else x.shape) for n, x in inputs.items() if hasattr(x, "shape")}


@dataclass(frozen=True)
class MemoryLimit:
    """The `memory_limit` of a session, in bytes."""

    size: int

    @property
    def scratch(self) -> int:
        """The share of the kernels' scratch memory; the rest is the arena's."""
        return self.size // LIMIT_SHARE

    @property
    def arena(self) -> int:
        """The share of weights and values."""
        return self.size - self.scratch

    @contextlib.contextmanager
    def named_faults(self, largest: Shapes | None) -> Iterator[None]:
        """Raise MemoryLimitError where ONNX Runtime's arena meets its limit, or a kernel that of scratch memory.

        `largest`: the shapes that took the most memory of those that fit.
        """
        try:
            yield
        except ORT_ERRORS as error:
            in_scratch = SCRATCH_FAULT.search(f"{error}")
            if in_scratch is not None:
                raise MemoryLimitError(in_scratch[1], in_scratch[2]) from error
            fault = ARENA_FAULT.search(f"{error}")
            if fault is None:
                raise
            available, requested = map(int, fault.groups())
            least = -(-(self.arena - available + requested) * self.size // self.arena)
            fits = "" if not largest else f", or inputs no larger than {_text(largest)}, which fit"
            raise MemoryLimitError(
                f"memory_limit is {self.size}: of {size_text(self.arena)} for weights and values "
                f"{size_text(available)} are left, and one value needs {size_text(requested)}",
                f"memory_limit={least} is the least for it{fits}.",
            ) from error


class ArenaKeeper:
    """Watches the memory of one session after runs of new shapes, and consolidates its arena.

    `ops` is the engine's handle of the session's fused ops, `limit` the session's. `consolidates`: whether regions may
    be returned at all; CUDA graphs have their addresses.
    """

    def __init__(self, ops: int, device: int, limit: MemoryLimit | None, *, consolidates: bool) -> None:
        self.ops, self.device, self.limit, self.consolidates = ops, device, limit, consolidates
        if limit is not None:
            bridge().limit_scratch(ops, limit.scratch)
        self.weights = self.now().in_use
        self.steps: list[MemoryStep] = []
        self._lock = threading.Lock()
        self._new_shapes = bridge().new_shapes(ops)
        self._pending, self._watched = False, 0
        self._peak = self._reported = self.now().peak
        self._margin, self._consolidated = 0, 0

    def now(self) -> SessionMemory:
        """Return the memory as it is now."""
        return bridge().memory(self.ops)

    def use(self, graphs: int = 0) -> MemoryUse:
        """Return what the session uses, with so many bytes of CUDA graphs."""
        now = self.now()
        with self._lock:
            peak = max(self._peak, now.peak if now.peak > self._reported else 0)
            return MemoryUse(
                self.weights, peak - self.weights, now.allocated, now.scratch, cuda.loaded_bytes(), graphs,
                tuple(self.steps),
            )  # fmt: skip

    def settle(self, run: Callable[[], object]) -> None:
        """Run, as often as it takes to consolidate the arena, while regions may still be returned."""
        for _ in MARGINS:
            if self._pending and self.consolidates:
                run()

    def before_capture(self) -> SessionMemory:
        """Return the memory as it is, in front of the capture of a CUDA graph: from now on all addresses stay."""
        with self._lock:
            self.consolidates = self._pending = False
        return self.now()

    def grown_since(self, before: SessionMemory) -> int:
        """Return the bytes that the GPU has less since then, but for what arena and workspaces took."""
        now = self.now()
        ours = now.allocated + now.scratch - before.allocated - before.scratch
        return max(before.free - now.free - ours, 0)

    def run(
        self, options: onnxruntime.RunOptions | None, shapes: Callable[[], Shapes], work: Callable[[Any], Any]
    ) -> Any:
        """Return what a run returns, `work(options)`. A run with options of the caller never consolidates the arena.

        Where it meets the session's limit it runs again, after the arena has returned what is free in pieces.
        """
        if self.limit is None:
            return self._run(options, shapes, work)
        try:
            return self._run(options, shapes, work)
        except ORT_ERRORS as error:
            if not ARENA_FAULT.search(f"{error}") or not self.consolidates or options is not None:
                with self.limit.named_faults(self._largest()):
                    raise
        self._pending = True
        with contextlib.suppress(*ORT_ERRORS):  # the free pieces are returned when it ends, well or not
            return self._run(options, shapes, work)
        with self.limit.named_faults(self._largest()):
            return self._run(options, shapes, work)

    def _largest(self) -> Shapes | None:
        return max(self.steps, key=lambda step: step.peak).shapes if self.steps else None

    def _run(
        self, options: onnxruntime.RunOptions | None, shapes: Callable[[], Shapes], work: Callable[[Any], Any]
    ) -> Any:
        result = self._shrinking_run(work) if self._pending and options is None else work(options)
        if self._watched or bridge().new_shapes(self.ops) != self._new_shapes:
            self._look(shapes)
        return result

    def _shrinking_run(self, work: Callable[[Any], Any]) -> Any:
        """Return what a run returns at whose end the arena returns its free regions and gets one."""
        self._pending = False
        options = onnxruntime.RunOptions()
        options.add_run_config_entry(SHRINK, f"gpu:{self.device}")
        result = work(options)
        self._consolidate()
        return result

    def _look(self, shapes: Callable[[], Shapes]) -> None:
        with self._lock:
            seen, now = bridge().new_shapes(self.ops), self.now()
            self._watched = self._watched - 1 if seen == self._new_shapes else WATCHED
            self._new_shapes = seen
            if now.peak > self._reported:
                self._peak = self._reported = now.peak
            last = self.steps[-1] if self.steps else None
            if last is None or now.allocated > last.arena or self._peak > last.peak or now.scratch > last.workspaces:
                self.steps.append(MemoryStep(shapes(), now.allocated, self._peak, now.scratch))
                del self.steps[:-STEPS]
            if not self.consolidates or now.allocated < max(SURPLUS * self._peak, self._peak + SMALL):
                return
            if self._peak > GROWTH * self._consolidated:
                self._margin, self._consolidated, self._pending = 0, self._peak, True
            elif self._margin + 1 < len(MARGINS):
                self._margin, self._pending = self._margin + 1, True
            self._watched = WATCHED if self._pending else self._watched

    def _consolidate(self) -> None:
        """Give the arena one region for all that is in use at the most, besides what is in use now."""
        with self._lock:
            size = int(MARGINS[self._margin] * self._peak)
            size = size if self.limit is None else min(size, self.limit.arena)
            try:
                bridge().extend_arena(self.ops, size - self.now().allocated)
            except RuntimeError as why:  # others have the memory: the next run asks for it in pieces
                LOG.info("the arena has not been given one region: %s", why)
            now = self.now()
            self._reported = max(self._reported, now.peak)  # the region was in use for a moment, too
            shapes = self.steps[-1].shapes if self.steps else {}
            self.steps.append(MemoryStep(shapes, now.allocated, self._peak, now.scratch))
