"""The gemm template on sm_80 and later: selection of the block shape, resource limits, the launch."""

import math
from collections.abc import Iterable
from dataclasses import replace

from onnxfuse.cuda.isa.isa import SWIZZLED_BYTES
from onnxfuse.cuda.isa.sm_80 import SM_80
from onnxfuse.cuda.planning import launch_plan, limits
from onnxfuse.cuda.planning.arch import H200, Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.templates.gemm import costs, prologue_cpp
from onnxfuse.cuda.templates.gemm import cpp as gemm_cpp
from onnxfuse.cuda.templates.gemm.body import PADDING, Anatomy
from onnxfuse.cuda.templates.gemm.problem import GemmProblem
from onnxfuse.cuda.templates.gemm.variant import Block
from onnxfuse.cuda.templates.gemm.work import Fit, GemmSource
from onnxfuse.support.plurals import plural
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.branching import gcd, larger, least
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.traced_numbers import selected

STAGES = range(6, 1, -1)


def most_products() -> int:
    """Return the maximum number of products of one body: a warp of the widest block has 16 columns of each.

    The blocks are those where the GPU is not known: a model is optimized for any.
    """
    return max(block.n // block.warps_n for block in costs.mma(H200).spare) // 16


def refuses(parts: Anatomy, arch: Arch) -> str | None:
    """Return why the body is preferred on `arch`; None if a tensor-core kernel is."""
    if arch.isa.mma(parts.factors) is None:
        return f"the product's kernels are made for {SM_80.name} and later, not for {arch.name}"
    if arch.isa.unused:
        return f"the library multiplies by instructions of {arch.name} that the product's kernels do not use"
    return None


def takes(parts: Anatomy, size: GemmProblem, arch: Arch) -> bool:
    """Return whether `arch` multiplies such factors by warps, and 32 bits count the elements of implicit GEMM."""
    counted = size.window is None or math.prod(size.window.shape) < limits.INDICES
    return arch.isa.mma(parts.factors) is not None and bool(counted)


def plan(work: GemmSource, aligned: bool, block: Block | None, arch: Arch) -> LaunchPlan:
    """Return the launch plan on tensor cores, for any size and alignment."""
    size = work.size
    fit = _fit(work, block or choose(work.parts, size, arch), aligned, arch)
    block = fit.block
    return LaunchPlan(
        kernel=gemm_cpp.sm80(work, fit),
        grid=(_tiles(block, size), 1, 1),
        block=(block.threads, 1, 1),
        shared_bytes=fit.shared_bytes,
        parameters=launch_plan.packed(
            (
                *gemm_cpp.source_fields(size),
                *work.store_words,
                *work.group_words,
                *work.product_words,
                *size.side_words(block.n),
                size.m,
                size.k,
                _steps(block, work.parts, size),
                -(-size.m // block.m),
                size.pitch,
                size.lines,
            ),
            32,
        ),
        output_shapes=work.output_shapes,
    )


def choose(parts: Anatomy, size: GemmProblem, arch: Arch) -> Block:
    """Return the block shape with the least estimated time."""
    best = least(candidates(parts, arch), lambda block: microseconds(block, parts, size, arch))
    if best is not None:
        return best
    spare = _fitting(costs.mma(arch).spare, parts, arch)
    if not spare:
        raise UnsupportedError(f"{plural(len(parts.epilogues[0].products), 'product')} in one body")
    return spare[0]


def candidates(parts: Anatomy, arch: Arch) -> list[Block]:
    """Return the timed block shapes that fit `arch` with the body's products and layouts."""
    return _fitting(costs.mma(arch).blocks(parts), parts, arch)


def _fitting(kinds: Iterable[Block], parts: Anatomy, arch: Arch) -> list[Block]:
    """Return the block shapes that fit, given total columns, with the columns of each product."""
    accumulated, fitting = len(parts.epilogues[0].products), []
    for kind in kinds:
        block = replace(kind, n=kind.n // accumulated)
        # For a factor stored [k, n], a tile must be whole lines of 128 bytes wide.
        lines = (parts.products[0].transposed or block.n % parts.terms == 0) and (
            not parts.products[0].a_transposed or block.m % parts.terms == 0
        )
        if lines and block.n // block.warps_n % 16 == 0 and _shared_bytes(parts, block, 2) <= arch.shared_bytes:
            fitting.append(block)
    return fitting


def adding_alike(parts: Anatomy, size: GemmProblem, chosen: Block, arch: Arch) -> list[Block]:
    """Return the other block shapes with bit-identical sums, fastest first; none if blocks share the terms."""
    alike = [b for b in candidates(parts, arch) if b.warps_k == chosen.warps_k == 1 and b != chosen]
    return sorted(alike, key=lambda block: microseconds(block, parts, size, arch))


def estimates(parts: Anatomy, size: GemmProblem, arch: Arch) -> dict[Block, float]:
    """Return the estimated microseconds of the timed block shapes that fit."""
    return {block: microseconds(block, parts, size, arch) for block in candidates(parts, arch)}


def worth_measuring(parts: Anatomy, size: GemmProblem, arch: Arch) -> list[Block]:
    """Return the block shapes whose estimated time is near the least one; none without an instruction."""
    if arch.isa.mma(parts.factors) is None:
        return []
    times = estimates(parts, size, arch)
    return [block for block, time in times.items() if time <= costs.mma(arch).near * min(times.values())]


def _tiles(block: Block, size: GemmProblem) -> int:
    return -(-size.m // block.m) * size.across(block.n) * size.products


def _steps(block: Block, parts: Anatomy, size: GemmProblem) -> int:
    return -(-size.k // (parts.terms * block.warps_k))


def _pace(block: Block, parts: Anatomy, arch: Arch) -> costs.Pace:
    pace = costs.mma(arch).blocks(parts)[replace(block, n=block.n * len(parts.epilogues[0].products))]
    # Products of float8 are two of float16 (float8.cuh); not measured.
    return replace(pace, alone=2 * pace.alone, together=2 * pace.together) if parts.factors.promoted_after else pace


def microseconds(block: Block, parts: Anatomy, size: GemmProblem, arch: Arch, known: costs.Pace | None = None) -> float:
    """Return the estimated time of a block; by its measured cost unless given another."""
    pace, (_, resident) = known or _pace(block, parts, arch), _ring(parts, block, arch)
    steps, unaligned = (
        _steps(block, parts, size),
        _unaligned_bytes(block, parts, size) / 1e6 * costs.mma(arch).unaligned,
    )
    computed = prologue_cpp.microseconds(parts, block.m * block.warps_k, arch)
    rounds, rest = divmod(_tiles(block, size), arch.sm_count * resident)

    def among(count: int) -> float:
        share = (count - 1) / (pace.resident - 1) if pace.resident > 1 else 0.0
        step = larger(pace.alone + (pace.together - pace.alone) * share, count * unaligned)
        return steps * (step + count * computed) + count * pace.finish

    last = -(-rest // arch.sm_count)
    return pace.start + rounds * among(resident) + (among(last) if last else 0.0)


def _unaligned_bytes(block: Block, parts: Anatomy, size: GemmProblem) -> int:
    """Return the bytes of a step whose lines of terms begin inside a sector, of which more than they have are read.

    Right factors stored [k, n] were not measured.
    """
    item = parts.factors.bytes
    columns = block.n * len(parts.epilogues[0].products) if parts.products[0].transposed else 0
    left_lines: int = selected(size.pitch * item % limits.SECTOR_BYTES == 0, 0, block.m)
    right_lines: int = selected(size.k * item % limits.SECTOR_BYTES == 0, 0, columns)
    return block.warps_k * (left_lines + right_lines) * SWIZZLED_BYTES


def _shared_bytes(parts: Anatomy, block: Block, stages: int) -> int:
    """Return the bytes of the ring, or of the sums that reuse its memory."""
    accumulated = len(parts.epilogues[0].products)
    extra = 0 if parts.prologue is None else parts.terms * parts.prologue.extra_bytes
    ring = stages * block.warps_k * ((block.m + accumulated * block.n) * SWIZZLED_BYTES + block.m * extra)
    sums = block.warps_k * accumulated * block.m * (block.n + PADDING) * 4
    seen = block.m * 16 if parts.products[0].sliding is not None else 0
    return max(ring, sums) + seen


def _ring(parts: Anatomy, block: Block, arch: Arch) -> tuple[int, int]:
    """Return the stages of the longest ring that does not reduce the resident blocks, and their number."""
    accumulated = len(parts.epilogues[0].products)
    kind, paces = replace(block, n=block.n * accumulated), costs.mma(arch).blocks(parts)
    for resident in range(paces[kind].resident if kind in paces else 1, 0, -1):
        # A block uses a kilobyte more than it requests; a multiprocessor has one more than a block may request.
        limit = (arch.shared_bytes + 1024) // resident - 1024
        least = STAGES[-1] + (resident > 1)
        for stages in STAGES:
            if stages >= least and _shared_bytes(parts, block, stages) <= limit:
                return stages, resident
    raise UnsupportedError(f"a block of {block.m} by {block.n} does not fit the shared memory of {arch.name}")


def _fit(work: GemmSource, block: Block, aligned: bool, arch: Arch) -> Fit:
    parts, size = work.parts, work.size
    sums = block.m * block.n * len(parts.epilogues[0].products) // (32 * block.warps_m * block.warps_n)
    if sums > costs.mma(arch).accumulators:
        raise UnsupportedError(
            f"a block of {block.m} by {block.n} does not fit the registers of {block.threads} threads"
        )
    stages, resident = _ring(parts, block, arch)
    item = parts.factors.bytes
    product = parts.products[0]
    a_piece = _piece(size.pitch, item, aligned)
    if product.terms is not None and a_piece < 16:  # only whole pieces are truncated at the end
        a_piece = gcd(a_piece, size.k * item)
    stored = [element_types.TYPES[o.dtype].size for o in work.program.outputs]
    width = gcd(*size.widths, 16 // min(stored), *(s.width for s in work.stored)) if aligned and size.n else 1
    return Fit(
        block,
        stages,
        _shared_bytes(parts, block, stages),
        width,
        a_piece,
        _b_piece(parts, size, aligned),
        gcd(size.k, 16, *(() if parts.prologue is None else parts.prologue.terms)) if aligned else 1,
        resident if parts.precise else 0,
    )


def _b_piece(parts: Anatomy, size: GemmProblem, aligned: bool) -> int:
    """Return the bytes per copy of the right factor; of numbers in few bits those for 16 bytes of the factor, 1 = read
    without copies."""
    product, item = parts.products[0], parts.factors.bytes
    if product.packed is None:
        return _piece(size.k if product.transposed else gcd(*size.widths), item, aligned)
    numbers = 16 // item * product.packed.packing.bits // 8
    # Words of scales and zero points that straddle the end of a column lie within the array.
    return numbers if aligned and numbers % 4 == 0 and gcd(4, *size.widths) == 4 else 1


def _piece(along: int, item: int, aligned: bool) -> int:
    """Return the alignment in bytes of every line of a factor with so many elements per line; of bytes four or one."""
    piece = gcd(along * item, 16) if aligned and along else item
    return piece if item > 1 or piece % 4 == 0 else item
