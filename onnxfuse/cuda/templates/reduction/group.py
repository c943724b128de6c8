"""Launch plans of the group template: norms over positions and adjacent channels, moments first, normalization second.

Rows of such a group are short scattered runs: 10 channels of 320 are 20 bytes. Blocks process adjacent whole groups
with full vectors, and combine per-channel moments by group. If the blocks of a cluster can hold some groups of an image
in shared memory, the image is read once.
"""

import math
from dataclasses import dataclass, replace

from onnxfuse.codegen.emit import access, expressions
from onnxfuse.codegen.emit.access import Operand, Pointer, RegisterGroup, Store, element, store
from onnxfuse.codegen.emit.entry import entry_point
from onnxfuse.codegen.emit.source import CLUSTER, DEVICE, KernelSource, constants, generated, template
from onnxfuse.codegen.program.moments import Moments, moments
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.planning.limits import ACCESS_BYTES, RESERVED_BYTES
from onnxfuse.cuda.templates.reduction import costs
from onnxfuse.cuda.templates.reduction.problem import Reduced
from onnxfuse.cuda.templates.reduction.vector_operands import VectorOperand, pointers_at, space_words
from onnxfuse.symbolic.branching import gcd, larger, least, settled, smaller
from onnxfuse.symbolic.strides import Shape, StridedLayout, divisor, vector_width

MOMENTS_BYTES, PART_BYTES = 8, 16


@dataclass(frozen=True)
class GroupSpaces:
    """The dimensions of the work, with each group merged as far as possible."""

    outer: StridedLayout
    positions: StridedLayout
    """Reduced."""
    columns: StridedLayout
    """Groups, and the reduced channels of a group."""
    groups: int


@dataclass(frozen=True)
class GroupOperand(VectorOperand):
    """An operand; its inner dimensions are the columns, and the moments are the reduction."""

    moves: bool
    """Whether it varies with the position."""


@dataclass(frozen=True)
class GroupPartition:
    """Partition of the work among blocks and threads."""

    width: int
    """Elements of a vector."""
    across: int
    """Adjacent vectors: all columns."""
    rows: int
    """Threads in position direction."""
    prefetch: int
    """Prefetch depth in vectors."""
    cluster: int = 0
    """Blocks that hold these columns of an image together; 0: the image is read twice."""

    @property
    def columns(self) -> int:
        """Adjacent elements."""
        return self.width * self.across

    @property
    def threads(self) -> int:
        """Threads per block: whole warps."""
        return -(-self.across * self.rows // 32) * 32


@dataclass(frozen=True)
class Norm:
    """A norm that this template supports."""

    work: Reduced
    of: Moments
    spaces: GroupSpaces
    placed: tuple[GroupOperand, ...]
    split: GroupPartition


def norm(work: Reduced) -> Norm | None:
    """Return the plan input for a program that is a norm over positions and the inner part of the columns; else
    None."""
    of, spaces = moments(work.program), _spaces(work)
    if of is None or spaces is None or work.lookups:
        return None
    placed = _access(work, spaces)
    wide = [d for d, n in enumerate(work.full) if n != 1]
    outputs = [p for p in placed if p.operand.is_output]
    if any(p.along != "vector" or not all(work.strides[p.slot][d] for d in wide) for p in outputs):
        return None
    if any(p.moves and p.along == "gather" for p in placed):
        return None
    split, cost = _share_out(work, spaces, placed), costs.group(work.request.arch)
    if split.across > cost.most_across or spaces.groups * expressions.reduced_bytes(work.program) > cost.shared_bytes:
        return None
    return Norm(work, of, spaces, placed, split)


def pays(norm: Norm) -> bool:
    """Return whether reading an image twice is faster than the row and column templates.

    Not for small tensors, which are cached. For groups of channels always: their rows are partial cache lines. For
    single channels unless a cluster can hold segments in registers.
    """
    work, arch = norm.work, norm.work.request.arch
    cost = costs.group(arch)
    if launch_plan.is_small(math.prod(work.full), arch):
        return False
    size = math.prod(norm.spaces.positions.extents) * cost.held_segment
    return norm.spaces.groups != norm.split.columns or size > arch.isa.cluster * cost.held_threads * cost.held_bytes


def plan(norm: Norm) -> LaunchPlan:
    """Return the launch plan of a norm: one launch if clusters can hold the input, else two."""
    split = _resident(norm)
    return _in_two(norm) if split is None else _at_once(replace(norm, split=split))


def _at_once(norm: Norm) -> LaunchPlan:
    """Return the single launch of clusters, each of which holds some groups of an image."""
    work, spaces, split = norm.work, norm.spaces, norm.split
    images, positions = (math.prod(s.extents) for s in (spaces.outer, spaces.positions))
    slabs = math.prod(spaces.columns.extents) // split.columns
    bits = launch_plan.index_bits(max(math.prod(work.full), images, positions))
    return LaunchPlan(
        kernel=_kernel(norm, bits, "held", 32),
        grid=(images * slabs * split.cluster, 1, 1),
        block=(split.threads, 1, 1),
        shared_bytes=_shared_bytes(norm, split, positions),
        parameters=_parameters(positions, _each(split, positions), slabs, spaces, bits),
        output_shapes=work.request.output_shapes,
    )


def _resident(norm: Norm) -> GroupPartition | None:
    """Return how clusters hold an image's groups in shared memory; None if they cannot."""
    work, all_columns = norm.work, norm.split
    images, positions = (math.prod(s.extents) for s in (norm.spaces.outer, norm.spaces.positions))
    arch, group = work.request.arch, all_columns.columns // norm.spaces.groups
    unit = math.lcm(group, all_columns.width) // all_columns.width
    cost, size = costs.group(arch), _moving_bytes(norm)
    stages = max(1, min(8, cost.kept_bytes_in_flight // size))
    ways = [
        GroupPartition(all_columns.width, across, threads // across, stages, cluster)
        for across in range(unit, all_columns.across + 1, unit)
        for threads in (cost.threads, cost.blocks * cost.threads)
        for cluster in (1, 2, 4, 8)
        if all_columns.across % across == 0 and across <= threads and cluster <= arch.isa.cluster
    ]

    def blocks(split: GroupPartition) -> int:
        return images * (all_columns.across // split.across) * split.cluster

    def order(split: GroupPartition) -> tuple[int, ...]:
        # All blocks resident, on the most multiprocessors; then small clusters, and many threads if each has enough
        # positions.
        each = -(-_each(split, positions) // split.rows)
        threads = split.threads if each < cost.least_kept else -split.threads
        return (blocks(split) > arch.sm_count, -blocks(split), split.cluster, each < cost.least_kept, threads)

    def fits(split: GroupPartition) -> bool:
        if blocks(split) > arch.sm_count:  # without a cluster two blocks of a multiprocessor overlap
            room = arch.shared_bytes // cost.blocks - RESERVED_BYTES if split.cluster == 1 else 0
        else:
            room = arch.shared_bytes
        enough = split.cluster == 1 or _resident_bytes(norm, split, positions) <= cost.most_kept
        return enough and _shared_bytes(norm, split, positions) <= room

    return least(ways, order, fits)


def _shared_bytes(norm: Norm, split: GroupPartition, positions: int) -> int:
    """Return the shared memory of a block: results by thread, warp team and group, and the resident input."""
    groups = norm.spaces.groups * split.across // norm.split.across
    teams = max(1, split.threads // 32 // groups)
    size = split.rows * (split.columns + 1) * MOMENTS_BYTES
    size += groups * (teams * PART_BYTES + expressions.reduced_bytes(norm.work.program))
    return size + 3 * ACCESS_BYTES + _resident_bytes(norm, split, positions)


def _resident_bytes(norm: Norm, split: GroupPartition, positions: int) -> int:
    """Return the bytes of a block's resident input: the same number of positions for each thread."""
    return -(-_each(split, positions) // split.rows) * split.threads * _moving_bytes(norm)


def _each(split: GroupPartition, positions: int) -> int:
    """Return the positions per block of a cluster."""
    return -(-positions // split.cluster)


def _moving_bytes(norm: Norm) -> int:
    """Return the bytes of the struct `Moving`: consecutive packs, each aligned."""
    at, widest = 0, 1
    for p in norm.placed:
        if p.moves and not p.operand.is_output:
            size = p.operand.size * (norm.split.width if p.along == "vector" else 1)
            boundary = min(size, 16)
            at = -(-at // boundary) * boundary + size
            widest = max(widest, boundary)
    return -(-at // widest) * widest


def _in_two(norm: Norm) -> LaunchPlan:
    """Return two launches, of which the first passes partial moments of image parts to the second."""
    work, spaces, split = norm.work, norm.spaces, norm.split
    images, positions = (math.prod(s.extents) for s in (spaces.outer, spaces.positions))
    bits = launch_plan.index_bits(max(math.prod(work.full), images, positions))
    arch, cost = work.request.arch, costs.group(work.request.arch)
    most = larger(1, positions // (split.rows * cost.least_places))
    parts = larger(1, smaller(_blocks(norm) * arch.sm_count // larger(1, images), most))
    each = larger(1, -(-positions // parts))
    parts = -(-positions // each)
    items = split.rows * split.columns // spaces.groups
    launch = LaunchPlan(
        kernel=_kernel(norm, bits, "sums", _lanes(norm, items)),
        grid=(images * parts, 1, 1),
        block=(split.threads, 1, 1),
        shared_bytes=0,
        parameters=_parameters(positions, each, parts, spaces, bits),
        output_shapes=work.request.output_shapes,
        scratch_bytes=images * spaces.groups * parts * MOMENTS_BYTES,
    )
    return replace(launch, then=(replace(launch, kernel=_kernel(norm, bits, "apply", _lanes(norm, 32))),))


def _spaces(work: Reduced) -> GroupSpaces | None:
    """Return [outer, reduced positions, kept groups, reduced channels or none]; None for other axes."""
    wide = [d for d, n in enumerate(work.full) if n != 1]
    runs: list[tuple[bool, list[int]]] = []
    for d in wide:
        reduced = d in work.axes
        if runs and runs[-1][0] == reduced:
            runs[-1][1].append(d)
        else:
            runs.append((reduced, [d]))
    outer = runs.pop(0)[1] if runs and not runs[0][0] else []
    if len(runs) not in (2, 3):
        return None
    positions, groups, *channels = (tuple(axes) for _, axes in runs)
    columns = (*groups, *(channels[0] if channels else ()))
    count = settled(math.prod(work.extents(groups)))
    return GroupSpaces(work.layout(tuple(outer)), work.layout(positions), work.layout(columns), count)


def _access(work: Reduced, spaces: GroupSpaces) -> tuple[GroupOperand, ...]:
    reduced = frozenset(f"in{i}" for i in expressions.reduced_inputs(work.program))

    def along(strides: Shape) -> str:
        if not any(strides):
            return "splat"
        return "vector" if strides == spaces.columns.contiguous else "gather"

    return tuple(
        GroupOperand(o, n, along(spaces.columns.strides[n]), o.name in reduced, any(spaces.positions.strides[n]))
        for n, o in enumerate(work.operands)
    )


def _share_out(work: Reduced, spaces: GroupSpaces, placed: tuple[GroupOperand, ...]) -> GroupPartition:
    vectors = [p for p in placed if p.along == "vector"]
    steps = [s for p in vectors for s in (*spaces.outer.strides[p.slot], *spaces.positions.strides[p.slot])]
    columns, cost = settled(math.prod(spaces.columns.extents)), costs.group(work.request.arch)
    widest = min(cost.most_width, work.request.tuning.width or vector_width(tuple(p.operand.size for p in vectors)))
    width = settled(gcd(widest, columns, *steps)) if work.request.aligned else 1
    across = columns // width
    fetched = [p for p in placed if p.moves and not p.operand.is_output]
    size = sum(p.operand.size * (width if p.along == "vector" else 1) for p in fetched)
    stages = max(1, min(4, cost.bytes_in_flight // max(size, 1)))
    return GroupPartition(width, across, max(1, cost.threads // across), stages)


def _blocks(norm: Norm) -> int:
    """Return the blocks per multiprocessor, for each launch."""
    cost = costs.group(norm.work.request.arch)
    return max(1, cost.blocks * cost.threads // norm.split.threads)


def _lanes(norm: Norm, most: int) -> int:
    """Return how many lanes of a warp combine a group: as many as there are, a power of 2."""
    there = max(1, min(32, most, norm.split.threads // norm.spaces.groups))
    return 1 << there.bit_length() - 1


def _kernel(norm: Norm, bits: int, which: str, lanes: int) -> KernelSource:
    work, split = norm.work, norm.split
    entry, program = work.request.entry, work.program
    group = math.prod(norm.spaces.columns.extents) // norm.spaces.groups
    facts = {
        "OUTER_RANK": len(norm.spaces.outer.extents), "PLACE_RANK": len(norm.spaces.positions.extents),
        "COLUMN_RANK": len(norm.spaces.columns.extents), "OPERANDS": len(norm.placed),
        "WIDTH": split.width, "ACROSS": split.across, "ROWS": split.rows, "THREADS": split.threads,
        "GROUPS": split.columns // group, "GROUP": group, "AHEAD": split.prefetch, "LANES": lanes,
        "HELD": bool(split.cluster), "CLUSTER": max(1, split.cluster),
    }  # fmt: skip
    if split.cluster:
        facts["MOST_HELD"] = work.request.arch.shared_bytes // _moving_bytes(norm)
    pointers: tuple[Operand | Pointer, ...] = (*work.operands, access.scratch(used=not split.cluster))
    computed = expressions.source(program) + expressions.norm(program, norm.of)
    first = f"using Index = {launch_plan.index_type(bits)};\n{constants(facts)}{computed}{access.pointers(pointers)}"
    work_of = {"sums": "sums", "apply": "apply_norm", "held": "hold_norm"}[which]
    return KernelSource(
        entry,
        (
            *(template(f) for f in (DEVICE, CLUSTER, "include/math.cuh", "include/memory.cuh")),
            generated(entry, first),
            *(template(f) for f in ("include/coordinates.cuh", "include/reduce.cuh", "reduction/group.cuh")),
            generated(entry, _around(norm.placed, sums=which == "sums")),
            *((template("reduction/group_found.cuh"),) if which != "apply" else ()),
            template(f"reduction/group_{which}.cu"),
            generated(
                entry,
                entry_point(
                    entry,
                    work_of,
                    work.request.op,
                    pointers,
                    work.request.tuning.min_blocks or _blocks(norm),
                    max(1, split.cluster),
                ),
            ),
        ),
    )


def _around(placed: tuple[GroupOperand, ...], sums: bool) -> str:
    """Return the code around a core: the first one reads the operands of the moments, the second one all."""
    inputs, outputs = ([p for p in placed if p.operand.is_output is output] for output in (False, True))
    read = [p for p in inputs if p.reduced or not sums]
    moving = RegisterGroup("Moving", "moving", tuple(p.load(_at(p), "column_stride") for p in read if p.moves))
    still = RegisterGroup("Still", "still", tuple(p.load(_at(p), "column_stride") for p in read if not p.moves))
    names = [p.operand.name if p in read else "{}" for p in inputs]
    to = "const Pointers& base, const Result (&result)[WIDTH], const Place& at, const Parameters& p"
    return "".join((
        moving.hold(),
        still.hold(),
        pointers_at(placed),
        moving.fill("fetch", "const Pointers& base, const Place& at, Index column, const Parameters& p"),
        still.load("load_still", "const Pointers& base, Index column, const Parameters& p"),
        element(names, (moving, still), "const Moving& moving, const Still& still, int w"),
        "" if sums else store("store_all", to, map(_store, outputs), "WIDTH"),
    ))  # fmt: skip


def _at(p: GroupOperand) -> str:
    return f"base.{p.operand.name}" + (f" + at.offset(p.place_stride[{p.slot}])" if p.moves else "")


def _store(p: GroupOperand) -> Store:
    return Store.of(p.operand, f"store_values<WIDTH>({_at(p)}, {p.operand.name})")


def _parameters(positions: int, each: int, parts: int, spaces: GroupSpaces, bits: int) -> bytes:
    words = [positions, each, *divisor(parts, bits)]
    words += space_words((spaces.outer, spaces.positions, spaces.columns), bits)
    return launch_plan.packed(words, bits)
