"""Launch program of an op for one family of shapes, which differ in some extents only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from onnxfuse.codegen.emit.source import KernelSource
from onnxfuse.cuda.launch_programs import leaf
from onnxfuse.cuda.planning.launch_plan import LaunchPlan, difference
from onnxfuse.symbolic.evaluation import evaluated
from onnxfuse.symbolic.operations import UnansweredError
from onnxfuse.symbolic.recording import DecisionNode, Recording, extents_of, recorded
from onnxfuse.symbolic.strides import Shape

MOST_ANSWERS = 512
"""Maximum number of leaves: beyond that the planner branches too much on its integers, and is called itself."""

Plan = Callable[[tuple[Shape, ...]], LaunchPlan]
"""Planner of an op for shapes, recorded or concrete; raises if there is no plan."""


@dataclass(frozen=True)
class Key:
    """Identity of a family: ranks, and constant extents."""

    ranks: tuple[int, ...]
    fixed: tuple[int | None, ...]
    """For all inputs, concatenated; None: any extent."""

    def takes(self, shapes: Sequence[Shape]) -> bool:
        """Return whether shapes belong to the family."""
        dims = [n for s in shapes for n in s]
        return self.ranks == tuple(map(len, shapes)) and all(
            f is None or f == n for f, n in zip(self.fixed, dims, strict=True)
        )


@dataclass
class Family:
    """A decision tree of the planner's branches, with launches as leaves."""

    key: Key
    plan: Plan
    cache: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    """Results of operations on expressions that were computed before."""
    root: DecisionNode = field(default_factory=DecisionNode)
    kernels: list[KernelSource] = field(default_factory=list)
    """Kernels by their index in the answers."""
    numbers: dict[KernelSource, int] = field(default_factory=dict)
    answers: int = 0
    pins: dict[str, None] = field(default_factory=dict)
    """Values that a planner used as plain integers, for diagnosis."""

    def record(self, shapes: tuple[Shape, ...]) -> None:
        """Record the planner's answer for these shapes of the family; raises what the planner raises.

        Values beyond 64 bits are left to the planner: `UnansweredError`.
        """
        if self.answers >= MOST_ANSWERS:
            raise UnansweredError
        dims = [n for s in shapes for n in s]
        recording = Recording(self.cache, self.root, dims)
        positions = iter(range(len(dims)))
        traced = [
            tuple(n if self.key.fixed[p] is not None else recording.dim(p) for n, p in zip(s, positions, strict=False))
            for s in shapes
        ]
        with recorded(recording):
            launch = self.plan(cast("tuple[Shape, ...]", tuple(traced)))
        self.pins.update(dict.fromkeys(recording.pins))
        if recording.at.answer is None:
            answer = leaf.of(launch, self._number)
            for expression in answer.expressions():
                recording.value_of(expression)
            recording.at.answer = answer
            self.answers += 1

    def learn(self, shapes: tuple[Shape, ...], expected: LaunchPlan) -> bool:
        """Extend the program to these shapes, for which the planner's plan is `expected`; return whether that is new.

        Raises what `record` raises, and AssertionError, a defect, if the answer is a different launch.
        """
        before = self.answer(shapes)
        if before is None:
            self.record(shapes)
        answer = before or self.answer(shapes)
        if answer is None:
            raise UnansweredError
        if answer != expected:
            raise AssertionError(f"the launch program's plan is not the planner's: {difference(answer, expected)}")
        return before is None

    def _number(self, kernel: KernelSource) -> int:
        if kernel not in self.numbers:
            self.numbers[kernel] = len(self.kernels)
            self.kernels.append(kernel)
        return self.numbers[kernel]

    def answer(self, shapes: tuple[Shape, ...]) -> LaunchPlan | None:
        """Return the launch for these shapes; None if the planner must be called."""
        if not self.key.takes(shapes):
            return None
        dims = [n for s in shapes for n in s]
        values = extents_of(dims)
        node = self.root
        try:
            while node.condition is not None:
                value = evaluated(node.condition, values)
                if value not in node.children:
                    return None
                node = node.children[value]
            if node.answer is None:
                return None
            return leaf.launch(node.answer, self.kernels, lambda e: evaluated(e, values))
        except UnansweredError:
            return None
