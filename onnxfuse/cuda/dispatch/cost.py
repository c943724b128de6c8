"""Estimated cost of a fused op with data movement, as bytes of traffic: decides whether absorbing a movement pays.

A model, not a measurement: it must distinguish a kernel that reads whole sectors from one that reads two bytes of each.
Both alternatives are estimated by it alike.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from onnxfuse.codegen.emit import index_maps
from onnxfuse.codegen.emit.lower_movement import MAX_CASES, LoweredProgram, Read, lower
from onnxfuse.codegen.program.program import Apply, BodyProgram
from onnxfuse.cuda.costs import tables
from onnxfuse.cuda.costs.tables import Bandwidth, InstructionBytes
from onnxfuse.cuda.planning.limits import SECTOR_BYTES
from onnxfuse.cuda.templates.memory_bound import schedule
from onnxfuse.cuda.templates.pointwise import transpose_tile
from onnxfuse.model.fused import FusedOp
from onnxfuse.support.plurals import plural
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape, vector_width


@dataclass(frozen=True)
class TrafficCosts:
    """What a launch, an evaluation and an access cost."""

    launch: float
    bandwidth: Bandwidth
    cheap: InstructionBytes
    dear: InstructionBytes
    narrow: InstructionBytes

    @property
    def launch_bytes(self) -> int:
        """Launch overhead as bytes of memory traffic."""
        return round(self.launch * self.bandwidth * 1e6)


def traffic_costs(arch: str = tables.REFERENCE) -> TrafficCosts:
    """Return what a launch costs on an architecture; by default for models that are optimized for any GPU."""
    return tables.section(arch, "traffic", TrafficCosts)


def launch_bytes() -> int:
    """Return the launch overhead as bytes of memory traffic, while a model is optimized for any GPU."""
    return traffic_costs().launch_bytes


BLOCK = 2048
"""Approximate elements per block: what one of its threads fetches, the others find in the cache."""

SAMPLED = 5
"""Number of blocks that are sampled, from the first to the last one."""


def estimate(op: FusedOp, input_shapes: tuple[Shape, ...]) -> float:
    """Return the cost of a launch of `op` on inputs of these shapes; raises `UnsupportedError` if there is none."""
    program = schedule.program(op)
    shapes = program.shapes(input_shapes)
    if any(0 in s for s in shapes):
        raise UnsupportedError("an extent of 0")
    lowered = lower(program, input_shapes)
    count = math.prod(lowered.extents)
    written = sum(element_types.TYPES[o.dtype].size for o in program.outputs) * count
    again = max(0.0, _evaluations(lowered.program, [count] * len(lowered.program.values)) - _own(program, shapes))
    return written + again + _reading(program, lowered, input_shapes)


def _own(program: BodyProgram, shapes: tuple[Shape, ...]) -> float:
    """Evaluations of the body, each of its values computed once."""
    return _evaluations(program, [math.prod(s) for s in shapes])


def _evaluations(program: BodyProgram, counts: list[int]) -> float:
    live, costs = program.live(), traffic_costs()
    return sum(
        (costs.cheap if v.op.cheap else costs.dear) * n
        for i, (v, n) in enumerate(zip(program.values, counts, strict=True))
        if i in live and isinstance(v, Apply)
    )


def _reading(program: BodyProgram, lowered: LoweredProgram, input_shapes: tuple[Shape, ...]) -> float:
    """Traffic and accesses of all reads; repeated reads of an input mostly hit the cache."""
    _, share = _sampled(lowered.extents)
    tile = transpose_tile.choose(lowered, None)
    widest = vector_width(tuple(element_types.TYPES[o.dtype].size for o in program.outputs))
    traffic: dict[int, list[float]] = {}
    total, narrow = 0.0, traffic_costs().narrow
    for number, source in lowered.sources.items():
        if not isinstance(source, Read):
            continue
        inner = len(lowered.extents) - 1
        in_tile = tile is not None and number in tile.sources
        along = not in_tile and not index_maps.fixed(source, (inner,))
        run = index_maps.run(source, lowered.extents, widest)
        for position in source.inputs:
            own = Read(tuple(c for c in source.cases if c.input == position))
            if len(own.cases) > MAX_CASES:
                raise UnsupportedError(f"a read at {plural(own.cases, 'place')}, expected at most {MAX_CASES}")
            size = element_types.TYPES[program.inputs[position]].size
            touched, distinct, sectors = _footprint(own, lowered.extents, size)
            wanted = min(math.prod(input_shapes[position]) * size, distinct * share * size)
            waste = 1.0 if in_tile or not distinct else max(1.0, sectors * SECTOR_BYTES / (distinct * size))
            traffic.setdefault(position, []).append(wanted * waste)
            total += narrow * touched * share / run if along else 0.0
    return total + sum(max(t) + (sum(t) - max(t)) / 4 for t in traffic.values())


@lru_cache(maxsize=16)
def _sampled(extents: Shape) -> tuple[list[list[np.ndarray]], float]:
    """Return the output coordinates of sampled blocks, and the scale from them to the whole output."""
    count = math.prod(extents)
    blocks = max(1, min(SAMPLED, count // BLOCK))
    length = min(BLOCK, count)
    starts = [i * (count - length) // max(blocks - 1, 1) for i in range(blocks)]
    blocks_of = [[np.asarray(c) for c in np.unravel_index(np.arange(s, s + length), extents)] for s in starts]
    return blocks_of, count / (blocks * length)


# While a region grows, its cost with each neighbor is requested: most of its reads are those of the previous request.
@lru_cache(maxsize=4096)
def _footprint(source: Read, extents: Shape, size: int) -> tuple[int, int, int]:
    """Return the number of elements read in sampled blocks, of distinct ones, and of the sectors that contain them."""
    touched = distinct = sectors = 0
    for coordinates in _sampled(extents)[0]:
        open_ = np.ones(coordinates[0].shape, bool)
        parts = [np.empty(0, np.int64)]
        for case in source.cases:
            inside = open_.copy()
            for bound in case.bounds:
                values = bound.index.at(coordinates)
                inside &= (values >= bound.low) & (values < bound.high)
            parts.append(np.broadcast_to(case.position.at(coordinates), inside.shape)[inside])
            open_ &= ~inside
        # Sort once and count distinct values by comparing neighbors: np.unique took a quarter of the time of optimizing
        # RWKV.
        positions = np.sort(np.concatenate(parts))
        touched += positions.size
        distinct += _different(positions)
        sectors += _different(positions * size // SECTOR_BYTES)
    return touched, distinct, sectors


def _different(ordered: np.ndarray) -> int:
    """Return the number of distinct values in a sorted array."""
    return int(np.count_nonzero(ordered[1:] != ordered[:-1])) + bool(ordered.size)
