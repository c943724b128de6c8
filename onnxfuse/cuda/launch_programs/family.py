"""The launch program of an op for one family of shapes: those that differ in some extents alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from onnxfuse.codegen.emit.source import KernelSource
from onnxfuse.cuda.launch_programs import leaf
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.symbolic.expressions import ExpressionGraph, UnansweredError
from onnxfuse.symbolic.recording import DecisionNode, Recording, recorded
from onnxfuse.symbolic.strides import Shape

MOST_ANSWERS = 512
"""Ends of a tree: beyond that a planner asks too much about its numbers, and is asked itself."""

Plan = Callable[[tuple[Shape, ...]], LaunchPlan]
"""What the planner of an op makes of shapes, whether they are recorded or not; raises where there is no plan."""


@dataclass(frozen=True)
class Key:
    """Which shapes: their ranks, and the extents that never change."""

    ranks: tuple[int, ...]
    fixed: tuple[int | None, ...]
    """Of all inputs, one after the other; None: any extent."""

    def takes(self, shapes: Sequence[Shape]) -> bool:
        """Return whether shapes are of the family."""
        dims = [n for s in shapes for n in s]
        return self.ranks == tuple(map(len, shapes)) and all(
            f is None or f == n for f, n in zip(self.fixed, dims, strict=True)
        )


@dataclass
class Family:
    """A tree of what the planner asked, with launches at its ends."""

    key: Key
    plan: Plan
    graph: ExpressionGraph = field(default_factory=ExpressionGraph)
    root: DecisionNode = field(default_factory=DecisionNode)
    kernels: list[KernelSource] = field(default_factory=list)
    """By their numbers in the answers."""
    numbers: dict[KernelSource, int] = field(default_factory=dict)
    answers: int = 0
    pins: dict[str, None] = field(default_factory=dict)
    """What a planner asked the bare number of, for people."""

    def record(self, shapes: tuple[Shape, ...]) -> None:
        """Add what the planner answers for these shapes, which are of the family; raises what the planner raises.

        Numbers beyond 64 bits are left to the planner: `UnansweredError`.
        """
        if self.answers >= MOST_ANSWERS:
            raise UnansweredError
        dims = [n for s in shapes for n in s]
        recording = Recording(self.graph, self.root, dims)
        places = iter(range(len(dims)))
        taken = [
            tuple(n if self.key.fixed[p] is not None else recording.dim(p) for n, p in zip(s, places, strict=False))
            for s in shapes
        ]
        with recorded(recording):
            made = self.plan(cast("tuple[Shape, ...]", tuple(taken)))
        self.pins.update(dict.fromkeys(recording.pins))
        if recording.at.answer is None:
            recording.at.answer = leaf.of(made, self.graph, self._number)
            self.answers += 1

    def learn(self, shapes: tuple[Shape, ...], expected: LaunchPlan) -> bool:
        """Answer these shapes, too, as the planner does, which is by `expected`; return whether that is new.

        Raises what `record` raises, and AssertionError, a defect, where the answer is another launch.
        """
        known = self.answer(shapes)
        if known is None:
            self.record(shapes)
        answer = known or self.answer(shapes)
        if answer is None:
            raise UnansweredError
        if answer != expected:
            raise AssertionError(f"the launch program for {shapes} is not what is planned")
        return known is None

    def _number(self, kernel: KernelSource) -> int:
        if kernel not in self.numbers:
            self.numbers[kernel] = len(self.kernels)
            self.kernels.append(kernel)
        return self.numbers[kernel]

    def answer(self, shapes: tuple[Shape, ...]) -> LaunchPlan | None:
        """Return the launch for these shapes, None where the planner has to be asked."""
        if not self.key.takes(shapes):
            return None
        dims = [n for s in shapes for n in s]
        known: dict[int, Any] = {}
        node = self.root
        try:
            while node.asked is not None:
                value = self.graph.evaluated(node.asked, dims, known)
                if value not in node.children:
                    return None
                node = node.children[value]
            if node.answer is None:
                return None
            return leaf.launch(node.answer, self.kernels, lambda n: self.graph.evaluated(n, dims, known))
        except UnansweredError:
            return None
