"""Launch programs that a session records per op, one for each family of shapes, from the planner's results.

Recording a text detector's 80 ops takes 4 s of one core, so another thread does it: a run gets what is recorded so far.
"""

import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from onnxfuse import cuda
from onnxfuse.cuda.launch_programs.family import Family, Key
from onnxfuse.cuda.launch_programs.tape import written
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.model.fused import FusedOp
from onnxfuse.runtime.engine.launch import LaunchProgram, LoadedKernel, Shape, Varied, words_of
from onnxfuse.support.errors import KernelError
from onnxfuse.symbolic.operations import UnansweredError

Later = Callable[[Callable[[], None]], None]
"""Does some work, now or on another thread."""

MOST_WAITING = 4
"""Largest number of plans of a family that wait to be recorded; what is left out is asked for again."""
MOST_FAMILIES = 64
"""Largest number of families per op and device; further ones are not recorded."""

DEFECTS = (AssertionError, ArithmeticError, AttributeError, KernelError, LookupError, TypeError, ValueError)
"""Exceptions of a planner that cannot be traced: a defect that tests detect, but no reason to fail a session."""

_numbers = count()


def next_number() -> int:
    """Return a family identifier that is unique in this process."""
    return next(_numbers)


@dataclass
class _Learned:
    key: Key
    number: int = field(default_factory=next_number)
    lock: threading.Lock = field(default_factory=threading.Lock)
    family: Family | None = None
    """Loaded when the first plan is recorded."""
    recorded: tuple[bytes, tuple[cuda.KernelSource, ...]] | None = None
    """The tape and its kernels."""
    waiting: int = 0
    wrong: bool = False


def now(work: Callable[[], None]) -> None:
    """Do it on this thread."""
    work()


class Programs:
    """The launch programs of one op."""

    def __init__(self, op: FusedOp) -> None:
        self.op = op
        self.learned: dict[tuple[int, bool, Key], _Learned] = {}

    def learn(
        self,
        shapes: tuple[Shape, ...],
        aligned: bool,
        device: int,
        varied: Varied,
        plan: LaunchPlan,
        tuned_shapes: Sequence[tuple[Shape, ...]],
        later: Later = now,
    ) -> LaunchProgram | None:
        """Record `plan`, `later`, and return the program for the family of these shapes; None if none is recorded yet.

        `tuned_shapes`: shapes that no program covers.
        """
        dims = [n for s in shapes for n in s]
        free = [v for s in varied for v in s]
        key = Key(tuple(map(len, shapes)), tuple(None if v else n for n, v in zip(dims, free, strict=True)))
        slot = (device, aligned, key)
        if slot not in self.learned:
            if len(self.learned) >= MOST_FAMILIES:
                return None
            self.learned[slot] = _Learned(key)
        mine = self.learned[slot]
        if not mine.wrong and mine.waiting < MOST_WAITING:
            with mine.lock:
                mine.waiting += 1
            later(partial(self._record, mine, shapes, aligned, device, plan))
        if mine.wrong or mine.recorded is None:
            return None
        tape, kernels = mine.recorded
        return LaunchProgram(
            mine.number,
            tape,
            tuple(self._kernel(k, device) for k in kernels),
            tuple(map(words_of, tuned_shapes)),
        )

    def _record(self, mine: _Learned, shapes: tuple[Shape, ...], aligned: bool, device: int, plan: LaunchPlan) -> None:
        """Extend the family by a plan, and write its tape."""
        arch = cuda.arch_of(device)
        with mine.lock:
            mine.waiting -= 1
            if mine.wrong:
                return
            if mine.family is None:
                mine.family = cuda.cached_family(self.op, mine.key, aligned, arch)
            try:
                is_new = mine.family.learn(shapes, plan)
            except UnansweredError:  # beyond 64 bits, or more branches than a program holds: left to the planner
                return
            except DEFECTS as error:
                mine.wrong = True
                warnings.warn(
                    f"{self.op.name}: no launch program for {shapes} ({type(error).__name__}: {error}); each new shape "
                    "is planned by itself. Please report it: the fault is onnxfuse's",
                    stacklevel=1,
                )
                return
            tape = None if mine.recorded is not None and not is_new else written(mine.family)
            if tape is not None:
                mine.recorded = tape, tuple(mine.family.kernels)
            if tape is not None and is_new:
                cuda.keep_family(self.op, mine.family, aligned, arch)

    def _kernel(self, source: cuda.KernelSource, device: int) -> LoadedKernel:
        early = cuda.arch_of(device).isa.starts_early
        if not cuda.is_compiled(source, device):  # compiled on demand: the planner is asked again
            return LoadedKernel(0, early, None)
        function = cuda.load(source, device)
        return LoadedKernel(function.kernel.ptr, early, function)
