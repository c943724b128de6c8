"""Total lengths among an op's inputs: numbers on the CPU, each of which a planner sees as an extent, its value."""

from collections.abc import Iterator
from dataclasses import dataclass

from onnxfuse import ops
from onnxfuse.model.fused import FusedOp
from onnxfuse.ops.inputs import TotalLength
from onnxfuse.runtime.engine.launch import Shape

TOKENS, ROWS = 1, 2
"""The axes of the new tokens, and of the rows of a cache."""


@dataclass(frozen=True)
class Total:
    """Positions of inputs."""

    position: int
    """The total length."""
    fresh: int
    """The new tokens, along TOKENS."""
    past: int
    """The cache, along ROWS."""


def totals(op: FusedOp) -> Iterator[Total]:
    """Yield the inputs of `op` that are total lengths, each with those of the new tokens and of the cache."""
    places = [*op.body.input]
    for node in op.body.node:
        entry = ops.operator(node.op_type, node.domain)
        for position in () if entry is None else entry.positions(TotalLength):
            assert entry is not None
            total, x, cache = (node.input[i] for i in (position, 0, entry.position("past_key")))
            if {total, x, cache} <= {*places}:
                yield Total(places.index(total), places.index(x), places.index(cache))


def of_grown_caches(op: FusedOp, shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Return the shapes that a launch has which come from a graph, where a total length is a scalar: its value is what
    the cache holds and the new tokens are together, as in each run of caches that grow."""
    found = [*shapes]
    for total in totals(op):
        if not shapes[total.position] and len(shapes[total.fresh]) > TOKENS and len(shapes[total.past]) > ROWS:
            found[total.position] = (shapes[total.fresh][TOKENS] + shapes[total.past][ROWS],)
    return tuple(found)
