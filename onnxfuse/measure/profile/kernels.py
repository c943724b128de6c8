"""Attribute the kernels on the device to the nodes that launched them.

Kernels and nodes are joined by time: CUPTI records when each launch was called on the host, ONNX Runtime's profiler
when each node ran there. ONNX Runtime launches from one thread, node by node, so a launch lies within its node's time.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import Match, SequenceMatcher

import numpy as np

from onnxfuse.measure.profile.nodes import Ran


@dataclass(frozen=True)
class TracedKernel:
    """One kernel, copy or fill on the device; times are microseconds from the start of ONNX Runtime's profile."""

    name: str
    begin: float
    duration: float
    launched: float | None
    """Launch time on the host; None if the API call is unknown."""
    copy: bool = False
    """Whether it is a copy or fill by the driver instead of a kernel."""
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    registers: int | None = None
    shared_bytes: int | None = None
    node: str = ""
    """The node that launched it; empty if none was found."""
    op: str = ""
    """The node's `op_type`."""

    @property
    def end(self) -> float:
        return self.begin + self.duration


ALIKE = 0.75
"""Share of kernels that two runs of a model must have in common for transferring node attribution."""

TICK = 1.0
"""Resolution of ONNX Runtime's profiler: whole microseconds, rounded down."""


def kernels_with_nodes(kernels: Sequence[TracedKernel], nodes: Sequence[Ran]) -> list[TracedKernel]:
    """Return the kernels of a run, each with the node during which it was launched; the innermost of nested nodes."""
    begins = [n.begin for n in nodes]
    traced = []
    for kernel in kernels:
        at = -1 if kernel.launched is None else int(np.searchsorted(begins, kernel.launched, "right")) - 1
        node = next(
            (n for n in reversed(nodes[: at + 1]) if (kernel.launched or 0.0) <= n.begin + n.duration + TICK), None
        )
        traced.append(kernel if node is None else replace(kernel, node=node.name, op=node.op))
    return traced


def follow(kernels: Sequence[TracedKernel], reference: Sequence[TracedKernel]) -> list[TracedKernel] | None:
    """Transfer the nodes of `reference`, another run of the same model, to `kernels`; None if they differ too much.

    Both are aligned in order, by name: ONNX Runtime's libraries may choose other kernels for a product in another
    session. Unmatched kernels between two kernels of one node belong to that node; others have no known node.
    """
    names, theirs = [k.name for k in kernels], [k.name for k in reference]
    blocks = SequenceMatcher(None, names, theirs, autojunk=False).get_matching_blocks()
    if sum(b.size for b in blocks) < ALIKE * max(len(names), len(theirs)):
        return None
    source: list[TracedKernel | None] = [None] * len(kernels)
    for block in blocks:
        source[block.a : block.a + block.size] = reference[block.b : block.b + block.size]
    for left, right in itertools.pairwise([Match(0, 0, 0), *blocks]):
        between = {k.node for k in reference[left.b + left.size : right.b]}
        if len(between) == 1 and right.a > left.a + left.size:
            source[left.a + left.size : right.a] = [reference[left.b + left.size]] * (right.a - left.a - left.size)
    return [k if o is None else replace(k, node=o.node, op=o.op) for k, o in zip(kernels, source, strict=True)]
