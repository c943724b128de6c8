"""Partition of a row: to part of a warp, a warp, a block, several blocks, or an iterating block."""

from dataclasses import dataclass, replace

from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.plan_request import PlanRequest
from onnxfuse.cuda.templates.reduction import costs
from onnxfuse.cuda.templates.reduction.row_operands import RowOperand
from onnxfuse.cuda.templates.reduction.variant import RowVariant
from onnxfuse.symbolic.branching import gcd, larger, settled
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import vector_width


@dataclass(frozen=True)
class RowPartition:
    """Partition of a row: `threads` threads hold `items` vectors of `width` elements each."""

    threads: int
    """Threads of all blocks that share the row."""
    items: int
    """0: the row does not fit the registers, and the block iterates over it."""
    width: int
    exact: bool
    """Whether the threads' vectors cover the row exactly."""
    shifted: bool
    """Whether rows start and end inside vectors."""
    inner_items: int = 0
    """For shifted rows: the number of a thread's vectors, after the first, that always lie inside the row."""
    late: bool = False
    """Whether operands of the outputs alone are loaded after the reductions, to save registers."""
    min_blocks: int = 0
    """Minimum resident blocks per multiprocessor for the compiler; 0 = its own choice."""
    cluster: int = 1
    """Cluster size: blocks that share a row."""

    def fetches_late(self, p: RowOperand) -> bool:
        """Return whether the kernel loads this input after the reductions."""
        # Dense operands come from memory, where late loads cost time. An iterating block would reload them in every
        # round.
        return self.late and not p.reduced and not (p.dense and self.items)


@dataclass(frozen=True)
class Choice:
    """A candidate partition of a row."""

    threads: int
    elements: int
    """Maximum elements per thread."""
    held_bytes: int
    """Maximum raw operand bytes per thread."""
    late: bool = False
    min_blocks: int = 0
    cluster: int = 1


def share_out(
    placed: tuple[RowOperand, ...], rows: int, columns: int, width: int, request: PlanRequest[RowVariant]
) -> RowPartition:
    """Return the partition of a row: to part of a warp, a warp, a block, several blocks, or an iterating block.

    `width`: elements per vector if already determined, else 0.
    """
    arch, tuning, shifted = request.arch, request.tuning, False
    cost = costs.row(arch)
    small = launch_plan.is_small(rows * columns, arch)
    if not width:
        width, shifted = _width(placed, columns, request.aligned, cost.small_elements if small else 0, tuning)
    # A row of 197 halves, shifted by at most 7 of them, touches 26 vectors of 8.
    vectors = -(-(columns + (width - gcd(columns, width) if shifted else 0)) // width)
    inputs = [p for p in placed if not p.operand.is_output and p.along != "scalar"]
    size = min((p.operand.size for p in placed if p.dense), default=1)
    written = any(p.operand.is_output and p.along != "scalar" for p in placed)
    aside = tuning.row_segment if written or not shifted else tuning.row_segment // cost.read_segments
    segment = min(32, max(1, aside // (width * size)))
    few = arch.isa.cluster if rows < arch.sm_count else 1

    for choice in _choices(arch, tuning, few > 1, shifted):
        split = RowPartition(
            choice.threads, 1, width, False, shifted, late=choice.late, min_blocks=choice.min_blocks,
            cluster=choice.cluster,
        )  # fmt: skip
        items = max(1, -(-vectors // choice.threads))
        loaded = sum(p.operand.size for p in inputs if not split.fetches_late(p)) * items * width
        narrow = choice.threads < segment and items > 1
        narrow = narrow or (small and items * width > cost.small_elements and choice.threads < cost.long_threads)
        # Few rows: a second block helps if each thread still has two vectors, more than a cluster's barrier costs.
        narrow = narrow or (choice.cluster < few and vectors >= 2 * choice.threads * 2 and choice.threads >= 256)
        # One vector per thread always fits.
        fits = items == 1 or (items * width <= choice.elements and loaded <= choice.held_bytes)
        if fits and not narrow:
            exact = not shifted and vectors == choice.threads * items
            inner = columns // (choice.threads * width) if shifted else 0
            crowded = shifted and choice.threads <= 32 and loaded > cost.crowded_bytes
            blocks = 512 // max(tuning.row_threads, 32) if crowded else split.min_blocks
            return replace(split, items=items, exact=exact, inner_items=inner, min_blocks=blocks)
    # An iterating block reads operands repeatedly: blocks that share a row keep fewer rows in the cache at a time.
    cluster = max(c for c in (1, 2, 4, 8) if c <= arch.isa.cluster and (c == 1 or vectors >= 4 * cost.loop_threads * c))
    return RowPartition(cost.loop_threads * cluster, 0, width, exact=False, shifted=shifted, late=True, cluster=cluster)


def within_block(
    placed: tuple[RowOperand, ...], columns: int, width: int, request: PlanRequest[RowVariant], threads: int
) -> RowPartition:
    """Return the partition of a row among so many threads of a block, which hold it; raises if they cannot."""
    tuning, shifted = request.tuning, False
    if not width:
        width, shifted = _width(placed, columns, request.aligned, 0, tuning)
    vectors = -(-columns // width)
    items = larger(1, -(-vectors // threads))
    inputs = [p for p in placed if not p.operand.is_output and p.along != "scalar"]
    late = items > 1
    split = RowPartition(threads, settled(items), width, bool(vectors == threads * items), shifted, late=late)
    loaded = sum(p.operand.size for p in inputs if not split.fetches_late(p)) * items * width
    if shifted or items * width > tuning.long_elements or loaded > tuning.held_bytes:
        raise UnsupportedError(f"rows of {columns} elements that {threads} threads would hold beside a product")
    return split


def _choices(arch: Arch, tuning: RowVariant, few: bool, shifted: bool) -> tuple[Choice, ...]:
    """Return the candidate partitions with register-resident rows, best first; `few` rows do not saturate the GPU."""
    lanes = (Choice(n, tuning.warp_elements, tuning.held_bytes) for n in (1, 2, 4, 8, 16, 32))
    blocks = (Choice(n, tuning.block_elements, tuning.held_bytes) for n in (64, 128, 256, 512))
    # A shifted row has one vector more than fills the threads: many vectors per thread waste the least. Scale and bias
    # are loaded late to save registers. Residual + LayerNormalization over 1025 columns 94% of copy bandwidth, without
    # 73%; over 2049 columns 93% and 66%.
    full = (Choice(n, tuning.warp_elements, tuning.held_bytes, late=True) for n in (32, 64, 128, 256))
    # One block of 1024 threads leaves the memory idle while it reduces and computes: 82% of a copy at 16384 columns
    # (H200, 2026-11). Of two blocks with 512 threads one can load while the other computes; they fit because scale and
    # bias are loaded late.
    cost = costs.row(arch)
    room = min(tuning.held_bytes, cost.held_bytes_at_max_threads)
    long = min(room, cost.long_held_bytes)
    # Four blocks of 256 where the rows are short enough: planes of 128x128 93%, by two blocks of 512 85%.
    four = Choice(cost.long_threads // 2, tuning.long_elements, long, late=True, min_blocks=2 * cost.long_blocks)
    pair = Choice(cost.long_threads, tuning.long_elements, long, late=True, min_blocks=cost.long_blocks)
    several = (replace(pair, threads=cost.long_threads * n, cluster=n) for n in (2, 4, 8) if n <= arch.isa.cluster)
    whole = Choice(1024, tuning.block_elements, room)
    last = Choice(1024, max(tuning.block_elements, tuning.long_elements), room, late=True)
    # A cluster's barriers cost more than a second block hides: only for rows that no block can hold.
    one, clusters = (whole, last), tuple(several)
    return (
        *lanes,
        *(full if shifted else ()),
        *blocks,
        *((four, pair) if tuning.long_elements > 1 else ()),
        *((*clusters, *one) if few else (*one, *clusters)),
    )


def _width(
    placed: tuple[RowOperand, ...], columns: int, aligned: bool, most: int, tuning: RowVariant
) -> tuple[int, bool]:
    """Return (elements per vector, whether rows start and end inside vectors); `most`: elements, 0 for any number.

    The widest vector for the element sizes of the row and column operands. If it does not divide the row, one of half
    the width may; below that rows are shifted, because narrow accesses cost more instructions than memory leaves time
    for: softmax over 197 columns took 20 per element, 40% over the time of a copy.
    """
    if not aligned:
        return 1, False
    sizes = tuple(p.operand.size for p in placed if p.dense and p.along == "columns")
    widest = vector_width(sizes or tuple(p.operand.size for p in placed))
    # 8-byte indices next to 16-bit scores: a warp coalesces only two adjacent accesses per thread.
    widest = tuning.width or min(widest, 32 // max((p.operand.size for p in placed if p.along == "columns"), default=1))
    divides = gcd(columns, widest)
    if most:
        return min(divides, most), False
    if tuning.shifted and sizes and divides < widest // 2 and columns > widest:
        return widest, True
    return divides, False
