"""The gemm template's kernel for skinny products: where it is used, its strip of columns per block, the launch."""

from onnxfuse.cuda.isa.factors import BFLOAT16, FLOAT16
from onnxfuse.cuda.isa.isa import FRAGMENT_COLUMNS
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.templates.gemm import costs
from onnxfuse.cuda.templates.gemm import cpp as gemm_cpp
from onnxfuse.cuda.templates.gemm.body import LEAST_STAGES, PADDING
from onnxfuse.cuda.templates.gemm.variant import Strip
from onnxfuse.cuda.templates.gemm.work import GemmSource, LeftRows, SkinnyParameters
from onnxfuse.symbolic.branching import gcd, smaller

FACTORS = (FLOAT16, BFLOAT16)
MOST_ROWS = FRAGMENT_COLUMNS
"""Maximum rows, which the lanes of a warp cover. With 16, which each block reads: 4096x4096 13.4 us, tiles 10.2."""
TERMS = 32
"""Terms per step of a warp."""
STRIPS = costs.STRIPS


def takes(work: GemmSource, aligned: bool, arch: Arch) -> bool:
    """Return whether the kernel supports products of this size, layout and number."""
    parts, size = work.parts, work.size
    if (
        parts.factors not in FACTORS
        or arch.isa.mma(parts.factors) is None
        or not aligned
        or size.window is not None
        or size.batch is not None
        or parts.prologue is not None
        or parts.packed is not None
        or parts.products[0].a_transposed
    ):
        return False
    if size.m > MOST_ROWS or 0 in (size.m, size.k, *size.widths):
        return False
    return gcd(8, size.k, size.pitch, *size.widths) == 8 and bool(fitting(work, arch))


def fitting(work: GemmSource, arch: Arch) -> list[Strip]:
    """Return the strips that fit: that of many strips of gates, then the widest first."""
    return [
        strip
        for strip in (costs.GATE_STRIP, *STRIPS)
        if strip.columns * work.first_operand <= costs.skinny(arch).most_columns
        and _shared_bytes(work, strip, arch) + work.left_bytes <= arch.shared_bytes
        and (strip in STRIPS or _of_gates(work, arch))
    ]


def _of_gates(work: GemmSource, arch: Arch) -> bool:
    """Return whether a gate has more strips than places for blocks, and one block may have all shared memory."""
    return work.first_operand > 1 and _several(work, STRIPS[-1], arch) and arch.shared_bytes >= costs.RESIDENT_BYTES


def choose(work: GemmSource, arch: Arch) -> Strip:
    """Return the strip of many gates; else the widest that occupies enough multiprocessors; the narrowest if none does,
    or of weights [n, k].

    Those lie in runs of 64 bytes however narrow a strip is, and more blocks have more bytes on their way, unless they
    are many with few terms each.
    """
    strips, cost = fitting(work, arch), costs.skinny(arch)
    if strips[0] == costs.GATE_STRIP:
        return strips[0]
    if work.parts.products[0].transposed:
        waits = work.size.k <= cost.short_terms and _count(work, strips[-1]) >= cost.short_share * arch.sm_count
        return strips[0] if waits else strips[-1]
    for strip in strips[:-1]:
        if _count(work, strip) >= arch.sm_count * cost.least_share:
            return strip
    return strips[-1]


def _count(work: GemmSource, strip: Strip) -> int:
    return work.size.across(strip.columns)


def _step_bytes(work: GemmSource, strip: Strip) -> int:
    """Return the bytes that all warps of a block load per step."""
    return strip.warps * work.first_operand * TERMS * strip.columns * work.parts.factors.bytes


def _resident(strip: Strip) -> int:
    """Return the blocks that a multiprocessor has at once."""
    return costs.RESIDENT_THREADS // strip.threads


def _several(work: GemmSource, strip: Strip, arch: Arch) -> bool:
    """Return whether there are more strips than places for blocks, each of which then takes several in turns."""
    return bool(work.size.across(strip.columns) > _resident(strip) * arch.sm_count)


def _stages(work: GemmSource, strip: Strip, arch: Arch) -> int:
    return max(LEAST_STAGES, _ring_bytes(work, strip, arch) // _step_bytes(work, strip))


def _ring_bytes(work: GemmSource, strip: Strip, arch: Arch) -> int:
    """Return the bytes of a block's rings, which are less where much lies beside them: a left factor, and sums."""
    share = costs.RESIDENT_BYTES // _resident(strip)
    if not _several(work, strip, arch):
        return min(strip.ring * 1024, share - work.left_bytes)
    return min(strip.ring * 1024, min(share, arch.shared_bytes) - work.left_bytes - _sum_bytes(work, strip))


def _sum_bytes(work: GemmSource, strip: Strip) -> int:
    return strip.warps * work.first_operand * MOST_ROWS * (strip.columns + PADDING) * 4


def _shared_bytes(work: GemmSource, strip: Strip, arch: Arch) -> int:
    """Return the bytes of the rings and the sums, which reuse the rings' memory if a block has a strip only."""
    rings, sums = _stages(work, strip, arch) * _step_bytes(work, strip), _sum_bytes(work, strip)
    return rings + sums if _several(work, strip, arch) else max(rings, sums)


def left_rows(work: GemmSource, strip: Strip) -> LeftRows | None:
    """Return what computes the left factor in a block; None if it is an input."""
    return None if work.left is None else work.left(strip.threads, work.left_rows)


def plan(work: GemmSource, strip: Strip, arch: Arch) -> LaunchPlan:
    """Return the launch plan of products of few rows."""
    parts, size = work.parts, work.size
    fit = SkinnyParameters(
        strip,
        MOST_ROWS,
        _stages(work, strip, arch),
        _shared_bytes(work, strip, arch) + work.left_bytes,
        gcd(costs.SKINNY_WIDTH, *(s.width for s in work.stored)),
        0,
        _resident(strip),
        all(product.b in work.op.constants for product in parts.products),
        left_rows(work, strip),
        several=_several(work, strip, arch),
    )
    return LaunchPlan(
        kernel=gemm_cpp.few(work, fit),
        grid=(smaller(_count(work, strip), _resident(strip) * arch.sm_count), 1, 1),
        block=(strip.threads, 1, 1),
        shared_bytes=fit.shared_bytes,
        parameters=launch_plan.packed(
            (*work.store_words, *fit.left_words, *size.side_words(strip.columns),
             size.m, size.k, -(-size.k // (TERMS * strip.warps)),
             size.pitch, size.lines), 32,
        ),
        output_shapes=work.output_shapes,
    )  # fmt: skip
