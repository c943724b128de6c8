"""The gemm template's kernel for skinny products by weights in few bits: where it is used, its strips, the launch."""

from onnxfuse.cuda.isa.factors import BFLOAT16, FLOAT16
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.templates.gemm import costs, few
from onnxfuse.cuda.templates.gemm import cpp as gemm_cpp
from onnxfuse.cuda.templates.gemm.body import LEAST_STAGES, PADDING
from onnxfuse.cuda.templates.gemm.variant import Strip
from onnxfuse.cuda.templates.gemm.work import GemmSource, SkinnyParameters
from onnxfuse.symbolic.branching import gcd, least
from onnxfuse.symbolic.packing import Packing

FACTORS = (FLOAT16, BFLOAT16)


def takes(work: GemmSource, aligned: bool, arch: Arch) -> bool:
    """Return whether the kernel supports products of this size, layout and number."""
    parts, size = work.parts, work.size
    if (
        parts.packed is None
        or parts.factors not in FACTORS
        or arch.isa.mma(parts.factors) is None
        or not aligned
        or parts.prologue is not None
        or parts.products[0].a_transposed
    ):
        return False
    packing = parts.packed.packing
    if packing.bits not in gemm_cpp.PAIRED_BITS or packing.block * packing.bits // 8 < costs.PIECE:
        return False
    if size.m > costs.PACKED_ROWS[-1] or 0 in (size.m, *size.widths):
        return False
    return gcd(8, size.pitch, *size.widths) == 8 and bool(fitting(work, arch))


def _line(packing: Packing) -> int:
    """Return the bytes of a column's numbers in a step of a warp."""
    return next(line for line in costs.LINES if packing.terms * packing.bits // 8 % line == 0)


def _terms(packing: Packing) -> int:
    """Return the terms of a step of a warp."""
    return _line(packing) * 8 // packing.bits


def _packing(work: GemmSource) -> Packing:
    packed = work.parts.packed
    assert packed is not None
    return packed.packing


def _rows(work: GemmSource) -> int:
    return costs.PACKED_ROWS[0] if work.size.m <= costs.PACKED_ROWS[0] else costs.PACKED_ROWS[1]


def fitting(work: GemmSource, arch: Arch) -> list[Strip]:
    """Return the strips that fit, the narrowest first."""
    return [
        strip
        for strip in costs.PACKED_STRIPS
        if strip.columns * work.first_operand <= costs.skinny(arch).most_columns
        and _shared_bytes(work, strip) + work.left_bytes <= arch.shared_bytes
    ]


def choose(work: GemmSource, arch: Arch) -> Strip:
    """Return the strip of which no multiprocessor has more columns than it must; of several the widest.

    Where each has one block at most that has all of its threads, else half of them.
    """

    def columns(strip: Strip) -> int:
        return -(-work.size.across(strip.columns) // arch.sm_count) * strip.columns

    def shares(strip: Strip) -> bool:
        return (strip.threads < costs.RESIDENT_THREADS) == (work.size.across(strip.columns) > arch.sm_count)

    best = least(reversed(fitting(work, arch)), columns, shares)
    return fitting(work, arch)[0] if best is None else best


def _step_bytes(work: GemmSource, strip: Strip) -> int:
    """Return the bytes that all warps of a block load per step: numbers, scales and zero points."""
    packed, packing = work.parts.packed, _packing(work)
    assert packed is not None
    scales = max(4, 2 * _terms(packing) // packing.block)
    zeros = 0 if packed.zeros is None else 4 if packed.zeros_packed else scales
    return strip.warps * work.first_operand * strip.columns * (_line(packing) + scales + zeros)


def _stages(work: GemmSource, strip: Strip) -> int:
    """Return the stages of a warp's ring: as many as its share has steps, or as the ring holds."""
    held = max(LEAST_STAGES, _ring_bytes(work, strip) // _step_bytes(work, strip))
    return min(_steps(work, strip) + 1, held)


def _ring_bytes(work: GemmSource, strip: Strip) -> int:
    """Return the bytes of a block's rings, which are less where a left factor lies behind them."""
    return strip.ring * 1024 - max(work.left_bytes - costs.BESIDE_RING, 0)


def _steps(work: GemmSource, strip: Strip) -> int:
    return -(-_packing(work).terms // (_terms(_packing(work)) * strip.warps))


def _shared_bytes(work: GemmSource, strip: Strip) -> int:
    """Return the bytes of the rings, or of the sums that reuse their memory."""
    sums = strip.warps * work.first_operand * _rows(work) * (strip.columns + PADDING) * 4
    return max(_stages(work, strip) * _step_bytes(work, strip), sums)


def plan(work: GemmSource, strip: Strip, _: Arch) -> LaunchPlan:
    """Return the launch plan of products of few rows."""
    size = work.size
    fit = SkinnyParameters(
        strip,
        _rows(work),
        _stages(work, strip),
        _shared_bytes(work, strip) + work.left_bytes,
        gcd(costs.SKINNY_WIDTH, *(s.width for s in work.stored)),
        _line(_packing(work)),
        costs.RESIDENT_THREADS // strip.threads,
        all(i in work.op.constants for product in work.parts.products for i in product.weights),
        few.left_rows(work, strip),
    )
    return LaunchPlan(
        kernel=gemm_cpp.few(work, fit),
        grid=(size.across(strip.columns), 1, 1),
        block=(strip.threads, 1, 1),
        shared_bytes=fit.shared_bytes,
        parameters=launch_plan.packed(
            (*work.store_words, *fit.left_words, *size.side_words(strip.columns),
             size.m, size.k, _steps(work, strip), size.pitch,
             size.lines), 32,
        ),
        output_shapes=work.output_shapes,
    )  # fmt: skip
