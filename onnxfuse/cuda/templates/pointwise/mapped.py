"""Launch plans of pointwise work with data movement: inputs are read through index maps, outputs written dense.

The source depends on the structure of the maps, and their values are parameters: another batch size or sequence length
uses the same kernel.
"""

import math
from dataclasses import dataclass

from onnxfuse.codegen.emit import access, concat_table, expressions, index_maps
from onnxfuse.codegen.emit.access import Operand
from onnxfuse.codegen.emit.entry import entry_point
from onnxfuse.codegen.emit.lower_movement import LoweredProgram, Read, lower
from onnxfuse.codegen.emit.source import DEVICE, KernelSource, Section, generated, template
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.planning.plan_request import PlanRequest
from onnxfuse.cuda.templates.pointwise import costs, dense, sources, transpose_tile
from onnxfuse.cuda.templates.pointwise.sources import Fetch
from onnxfuse.cuda.templates.pointwise.variant import PointwiseVariant
from onnxfuse.symbolic import element_types, strides
from onnxfuse.symbolic.branching import gcd

SHARED = tuple(template(f) for f in (DEVICE, "include/math.cuh", "include/memory.cuh"))
"""The sections that all works of a kernel have in common."""


def plan(request: PlanRequest[PointwiseVariant]) -> LaunchPlan:
    """Return the launch plan of a program with data movement."""
    lowered = lower(request.program, request.input_shapes)
    small = launch_plan.is_small(math.prod(request.output_shapes[0]), request.arch)
    tile = None if small else transpose_tile.choose(lowered, request.arch)
    return _direct(request, lowered) if tile is None else transpose_tile.plan(request, lowered, tile)


@dataclass(frozen=True)
class MappedWork:
    """What a kernel's entry point calls: a function of typed pointers and of `Parameters`."""

    sections: tuple[Section, ...]
    """Its source behind SHARED: its own constants, so that each work of a kernel needs a namespace."""
    function: str
    tensors: tuple[Operand, ...]
    blocks: int
    words: tuple[int, ...]
    """The parameters."""
    bits: int
    """Bits of the index type and of each parameter."""


def work(request: PlanRequest[PointwiseVariant], lowered: LoweredProgram) -> MappedWork:
    """Return the work in which every thread loads the operands of a vector of outputs directly."""
    entry, arch, tuning = request.entry, request.arch, request.tuning
    count = math.prod(lowered.extents)
    tensors = sources.operands(request.program, lowered, request.input_shapes)
    width = launch_plan.vector_width(_width(tensors, lowered, request, costs.mapped(arch)), count, arch)
    tail = index_maps.tail(lowered.extents, width)
    fetches = [sources.fetch(n, s, lowered, width, tail, request.aligned) for n, s in sorted(lowered.sources.items())]
    vectors = count // width
    fetches = [sources.looked_up(f, lowered, width, tuning.mapped_threads) for f in fetches]
    by_tables = any(f.starts is not None for f in fetches)
    flight = tuning.bytes_in_flight * (concat_table.FLIGHT if by_tables else 1)
    unroll = _unroll(fetches, lowered, width, vectors, arch, flight)
    numbers = index_maps.MapScalars(sources.index_bits(lowered, request.input_shapes))
    finders = sources.finders(fetches, lowered, numbers)
    tables = sources.tables(fetches, lowered, numbers)
    constants = sources.constants(lowered, numbers, width, unroll, tail, tuning.mapped_threads)
    return MappedWork(
        sections=(
            generated(entry, constants + expressions.source(lowered.program)),
            *(template(f) for f in ("include/coordinates.cuh", "include/place.cuh", "pointwise/mapped.cuh")),
            generated(entry, finders + access.pointers(tensors)),
            *([template("concat/beside.cuh")] if by_tables else []),
            generated(entry, tables + dense.around(sources.loads(fetches), sources.stores(tensors))),
            template("pointwise/pointwise.cu"),
            generated(entry, sources.after_tables(fetches, "pointwise") if by_tables else ""),
        ),
        function="by_tables" if by_tables else "pointwise",
        tensors=tensors,
        blocks=max(1, -(-vectors // (tuning.mapped_threads * unroll))),
        words=sources.words(count, lowered, numbers),
        bits=numbers.bits,
    )


def _direct(request: PlanRequest[PointwiseVariant], lowered: LoweredProgram) -> LaunchPlan:
    """Return the plan of a kernel of that work alone."""
    entry, tuning, own = request.entry, request.tuning, work(request, lowered)
    end = entry_point(entry, own.function, request.op, own.tensors, tuning.min_blocks)
    return LaunchPlan(
        kernel=KernelSource(entry, (*SHARED, *own.sections, generated(entry, end))),
        grid=(own.blocks, 1, 1),
        block=(tuning.mapped_threads, 1, 1),
        shared_bytes=0,
        parameters=launch_plan.packed(own.words, own.bits),
        output_shapes=request.output_shapes,
    )


def _width(
    tensors: tuple[Operand, ...],
    lowered: LoweredProgram,
    request: PlanRequest[PointwiseVariant],
    cost: costs.MappedCosts,
) -> int:
    """Return the elements of a vector."""
    if not request.aligned:
        return 1
    sizes = tuple(t.size for t in tensors if 2 * math.prod(t.shape) >= math.prod(lowered.extents))
    width = request.tuning.width or strides.vector_width(sizes)
    narrow = gcd(width, lowered.extents[-1])
    inner = len(lowered.extents) - 1
    along = [s for s in lowered.sources.values() if isinstance(s, Read) and not index_maps.fixed(s, (inner,))]
    if narrow == width and along and all(abs(c.position.factor(inner)) > 1 for s in along for c in s.cases):
        # Results of 8 bits leave as words, too.
        return min(width, max(cost.strided, 4 // min(t.size for t in tensors if t.is_output)))
    least = cost.narrowest
    if any(index_maps.run(s, lowered.extents, width) == width for s in lowered.sources.values() if isinstance(s, Read)):
        least *= 2
    return narrow if narrow * min(t.size for t in tensors if t.is_output) >= least else width


def _unroll(fetches: list[Fetch], lowered: LoweredProgram, width: int, vectors: int, arch: Arch, flight: int) -> int:
    """Return the vectors per thread: enough bytes in flight, but one if a single wave of threads covers everything."""
    if vectors <= arch.sm_count * arch.threads_per_sm:
        return 1
    sizes = [
        element_types.TYPES[lowered.program.inputs[f.number]].size * width
        for f in fetches
        if f.holder.startswith("Pack")
    ]
    # Narrow accesses need many: Pad of 56x56 48.2 us by 4 or 8 of 4 bytes, 52.1 by 2; SpaceToDepth 38.7 and 43.0.
    in_flight = flight * (costs.mapped(arch).narrow_in_flight if max(sizes, default=16) < 16 else 1)
    return max(1, min(8, in_flight // max(sum(sizes), 8)))
