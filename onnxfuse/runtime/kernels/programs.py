"""Launch programs that a session records per op, one for each family of shapes, from the planner's results."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from onnxfuse import cuda
from onnxfuse.cuda.launch_programs.family import Family, Key
from onnxfuse.cuda.launch_programs.tape import written
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.model.fused import FusedOp
from onnxfuse.runtime.engine.launch import LaunchProgram, LoadedKernel, Rooms, Shape, Varied, words_of
from onnxfuse.support.errors import KernelError
from onnxfuse.symbolic.operations import UnansweredError

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
    family: Family
    number: int = field(default_factory=next_number)
    wrong: bool = False


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
    ) -> LaunchProgram | None:
        """Return the program for the family of these shapes, recorded from `plan`; None if there is no new one.

        `tuned_shapes`: shapes that no program covers.
        """
        dims = [n for s in shapes for n in s]
        free = [v for s in varied for v in s]
        key = Key(tuple(map(len, shapes)), tuple(None if v else n for n, v in zip(dims, free, strict=True)))
        slot = (device, aligned, key)
        if slot not in self.learned:
            if len(self.learned) >= MOST_FAMILIES:
                return None
            self.learned[slot] = _Learned(cuda.cached_family(self.op, key, aligned, cuda.arch_of(device)))
        mine = self.learned[slot]
        if mine.wrong:
            return None
        try:
            is_new = mine.family.learn(shapes, plan)
        except UnansweredError:  # beyond 64 bits, or more branches than a program holds: left to the planner
            return None
        except DEFECTS as error:
            mine.wrong = True
            warnings.warn(
                f"{self.op.name}: no launch program for {shapes} ({type(error).__name__}: {error}); each new shape is "
                "planned by itself. Please report it: the fault is onnxfuse's",
                stacklevel=1,
            )
            return None
        tape = written(mine.family)
        if tape is None:
            return None
        if is_new:
            cuda.keep_family(self.op, mine.family, aligned, cuda.arch_of(device))
        return LaunchProgram(
            mine.number,
            tape,
            tuple(self._kernel(k, device) for k in mine.family.kernels),
            tuple(map(words_of, tuned_shapes)),
            partial(rooms, device=device),
        )

    def _kernel(self, source: cuda.KernelSource, device: int) -> LoadedKernel:
        early = cuda.arch_of(device).isa.starts_early
        if not cuda.is_compiled(source, device):  # compiled on demand: the planner is asked again
            return LoadedKernel(0, early, None)
        function = cuda.load(source, device)
        return LoadedKernel(function.kernel.ptr, early, function)


def rooms(size: int, device: int) -> Rooms:
    """Return an allocator of scratch memory of this size, which lives as long as this object."""
    buffers: list[Any] = []

    def scratch() -> int:
        buffers.append(cuda.zeros(size, device))
        return int(buffers[-1].ptr)

    return Rooms(scratch)
