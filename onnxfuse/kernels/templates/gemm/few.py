"""The gemm template's kernel for few rows: where it runs, which strip of columns a block computes, the launch."""

from onnx import TensorProto

from onnxfuse.kernels import launch_plan, limits
from onnxfuse.kernels.arch import Arch
from onnxfuse.kernels.ir import types
from onnxfuse.kernels.ir.types import UnsupportedError
from onnxfuse.kernels.launch_plan import LaunchPlan, Strip
from onnxfuse.kernels.programs.choice import gcd, least, smaller
from onnxfuse.kernels.templates.gemm import cpp as gemm_cpp
from onnxfuse.kernels.templates.gemm import sm90, tensor_maps
from onnxfuse.kernels.templates.gemm.work import Columns, Work

LEAST = 80
"""The compute capability, times ten, from which a GPU has the copies and the products that the kernel is made of."""
MOST_ROWS = 8
"""That the lanes of a warp have beside each other. With 16, which each block reads: 4096x4096 13.4 us, tiles 10.2."""
LEAST_STAGES = 2
"""Of a warp's ring: one is multiplied, one is on its way."""
PADDING = 8
"""Columns between the rows of the sums in shared memory."""
COLUMNS = (64, 32, 16)
"""Of a strip. A line of 64 is 128 bytes, which the memory's caches bring at once."""
PARTS = (1, 2, 4, 8)
"""Blocks of a cluster."""
BOUNDARY = 1024
"""Bytes on whose boundary the rings begin."""
LINE = 128
"""Bytes that a line of a transposed right factor brings at once, whatever the strip."""
START, MEET = 1.6, 0.6
"""Microseconds of a launch beside what the memory takes; and of the sums of a cluster's blocks."""
RATE, RATE_OF_ALL = 50_000, 29_500
"""Bytes in a microsecond that come to a multiprocessor by itself, and to each while all have some on their way."""
SHORT_LINES = {32: 0.65, 64: 0.8}
"""What is left of that where a strip has so many bytes of a line."""
NEAR = 1.5
"""The fastest strip is not estimated at more than so many times the least estimate."""
WIDTH = 2
"""Neighbouring cells that a thread finishes: rows are few, and all threads add up what the warps have found."""


def takes(work: Work, aligned: bool, arch: Arch) -> bool:
    """Return whether the kernel runs products of this size, layout and number."""
    parts, size = work.parts, work.size
    if (
        arch.number < LEAST
        or parts.dtype not in (TensorProto.FLOAT16, TensorProto.BFLOAT16)
        or not aligned
        or size.places is not None
        or size.batch is not None
        or parts.prologue is not None
        or parts.products[0].turned
    ):
        return False
    if size.m > MOST_ROWS or 0 in (size.m, size.n, size.k):
        return False
    return size.n % 8 == 0 and size.k % 8 == 0 and size.pitch % 8 == 0 and bool(fitting(work, arch))


def fitting(work: Work, arch: Arch) -> list[Strip]:
    """Return the strips that fit, the widest first, of the fewest blocks first."""
    found = []
    for columns in COLUMNS:
        for parts in PARTS:
            strip = Strip(columns, parts)
            shared = parts == 1 or bool(_terms(work) * _shares(work, strip) * parts <= work.size.k)
            if shared and parts <= arch.cluster and _shared_bytes(work, strip, LEAST_STAGES) <= arch.shared_bytes:
                found.append(strip)
    return found


def worth_measuring(work: Work, arch: Arch) -> list[Strip]:
    """Return the strips whose estimated time is near the least one."""
    estimates = {strip: microseconds(work, strip, arch) for strip in fitting(work, arch)}
    return [strip for strip, time in estimates.items() if time <= NEAR * min(estimates.values())]


def choose(work: Work, arch: Arch) -> Strip:
    """Return the strip with the least estimated time."""
    best = least(fitting(work, arch), lambda strip: microseconds(work, strip, arch))
    assert best is not None  # the kernel takes what has a strip
    return best


def microseconds(work: Work, strip: Strip, arch: Arch) -> float:
    """Return the estimated time of a strip."""
    size, blocks = work.size, _count(work, strip) * strip.parts
    weights = size.n * size.k * len(work.parts.products) * types.TYPES[work.parts.dtype].size
    line = LINE if work.parts.products[0].transposed else strip.columns * types.TYPES[work.parts.dtype].size
    rate = smaller(smaller(blocks, arch.sm_count) * RATE, arch.sm_count * RATE_OF_ALL) * SHORT_LINES.get(line, 1.0)
    return START + (MEET if strip.parts > 1 else 0.0) + weights / rate


def _count(work: Work, strip: Strip) -> int:
    return -(-work.size.n // strip.columns) * len(work.parts.epilogues)


def _shares(work: Work, strip: Strip) -> int:
    """Return the warps of each product."""
    return max(1, strip.warps // work.first_operand)


def _terms(work: Work) -> int:
    """Return the terms that a warp takes at a time."""
    return 64 if work.parts.products[0].transposed else 32


def _stage_bytes(work: Work, strip: Strip) -> int:
    """Return the bytes that all warps of a block fetch at a time."""
    warps = _shares(work, strip) * work.first_operand
    return warps * _terms(work) * strip.columns * types.TYPES[work.parts.dtype].size


def _steps(work: Work, strip: Strip) -> int:
    return -(-work.size.k // (_terms(work) * _shares(work, strip) * strip.parts))


def _stages(work: Work, strip: Strip) -> int:
    """Return the stages of a ring: as many as there are steps where they have room."""
    most, steps = max(LEAST_STAGES, strip.ring * 1024 // _stage_bytes(work, strip)), _steps(work, strip)
    return next((stages for stages in range(LEAST_STAGES, most) if steps <= stages), most)


def _shared_bytes(work: Work, strip: Strip, stages: int) -> int:
    """Return the bytes of the rings, or of the sums that take their place, and of what a cluster's blocks give away."""
    sums = _shares(work, strip) * work.first_operand * MOST_ROWS * (strip.columns + PADDING) * 4
    return BOUNDARY + max(stages * _stage_bytes(work, strip), sums) + _apart(work, strip)


def _apart(work: Work, strip: Strip) -> int:
    """Return the bytes of what a cluster's blocks give away, and of the barriers of the rings."""
    return MOST_ROWS * strip.columns * work.first_operand * 4 + 1024


def _boxes(work: Work, arch: Arch) -> bool:
    """Return whether the copy engine brings the right factors."""
    return arch.name == sm90.ARCH and len(work.parts.products) <= limits.TENSOR_MAPS


def plan(work: Work, strip: Strip, arch: Arch) -> LaunchPlan:
    """Return how to run products of few rows."""
    parts, size = work.parts, work.size
    if strip.parts > arch.cluster:
        raise UnsupportedError(f"a cluster of {strip.parts} blocks on {arch.name}")
    stages = _stages(work, strip)
    shared_bytes = _shared_bytes(work, strip, stages)
    boxes = _boxes(work, arch)
    fit = Columns(
        strip,
        _shares(work, strip),
        stages,
        shared_bytes - _apart(work, strip),
        gcd(WIDTH, *(s.width for s in work.stored)),
        all(product.b in work.op.constants for product in parts.products),
        boxes,
        2 * (shared_bytes + 1024) <= arch.shared_bytes,
    )
    columns = -(-size.n // strip.columns)
    return LaunchPlan(
        kernel=gemm_cpp.few(work, fit),
        grid=(columns * len(parts.epilogues) * strip.parts, 1, 1),
        block=(32 * fit.shares * work.first_operand, 1, 1),
        shared_bytes=fit.shared_bytes,
        parameters=launch_plan.packed(
            (*work.store_words, size.m, size.n, size.k, _steps(work, strip), columns, size.pitch, size.lines), 32,
        ),
        output_shapes=work.output_shapes,
        tensor_maps=tensor_maps.strips(work, strip.columns, _terms(work)) if boxes else (),
    )  # fmt: skip
