"""Launch plans of the direct template for windows of stride 1: few filters, any number of channels."""

import itertools
from collections.abc import Iterator

from onnxfuse.cuda.isa.factors import Rounding
from onnxfuse.cuda.planning import launch_plan, limits
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.templates.conv import convolution, costs, direct_cpp, halo_cpp
from onnxfuse.cuda.templates.conv.convolution import Convolution, ConvolutionProblem
from onnxfuse.cuda.templates.conv.halo_cpp import LINE, HaloSource, Slices, Tiling
from onnxfuse.cuda.templates.conv.variant import DirectVariant, Halo
from onnxfuse.graph.channels import FIRST
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic.branching import gcd, least, settled
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape

MOST_TAPS = 25
"""Maximum elements of a window, which determine the length of the source."""


def takes(op: FusedOp, parts: Convolution, size: ConvolutionProblem) -> bool:
    """Return whether the kernel is used for such a convolution of floating-point numbers.

    Only it supports concatenated images. For a single image, fewer channels than a slice would leave it half empty, and
    one-row windows have no reuse of loaded pixels.
    """
    window, factors = size.window, convolution.factors(op, parts)
    slice_of_them = window.shape[3] * factors.bytes >= LINE
    return (
        slides(parts)
        and not factors.is_integer
        and (len(parts.images) > 1 or (slice_of_them and window.kernel[0] > 1))
        and window.kernel[0] * window.kernel[1] <= MOST_TAPS
    )


def slides(parts: Convolution) -> bool:
    """Return whether the window has stride 1 over channels-last images, in one group."""
    steps = (*parts.sliding.strides, *parts.sliding.dilations)
    return parts.images_last and parts.packing == FIRST and parts.groups == 1 and max(steps) == 1


def plan(
    op: FusedOp, parts: Convolution, size: ConvolutionProblem, input_shapes: tuple[Shape, ...], aligned: bool,
    bits: int, outputs: tuple[Shape, ...], arch: Arch, tuning: DirectVariant,
) -> LaunchPlan | None:  # fmt: skip
    """Return the launch plan of `op`; None if no tile fits the shared memory."""
    slices = slices_of(op, parts, size, input_shapes, aligned)
    tiling = choose(slices, arch) if tuning.halo is None else _tiling(slices, tuning.halo, arch)
    if tiling is None:
        return None
    if tiling.halo.together and not _multiplies_together(slices, arch):
        raise UnsupportedError(f"a tile of {tiling.halo} of elements of {slices.size} bytes on {arch.name}")
    if tiling.shared_bytes > arch.shared_bytes:
        raise UnsupportedError(f"{tiling.shared_bytes} bytes of shared memory, expected at most {arch.shared_bytes}")
    work = HaloSource(op, parts, size, bits, aligned, input_shapes, slices, tiling)
    grid = tiling.blocks[0] * tiling.blocks[1] * tiling.blocks[2] * slices.images
    if grid >= 2**31:
        raise UnsupportedError(f"{grid} blocks, expected fewer than 2^31")
    return LaunchPlan(
        kernel=halo_cpp.kernel(work, tuning.min_blocks or _resident(tiling, arch)),
        grid=(grid, 1, 1),
        block=(tiling.warps * 32, 1, 1),
        shared_bytes=launch_plan.residency_padding(tiling.shared_bytes, grid, arch),
        parameters=direct_cpp.parameters(work, tiling.blocks),
        output_shapes=outputs,
    )


def slices_of(
    op: FusedOp, parts: Convolution, size: ConvolutionProblem, input_shapes: tuple[Shape, ...], aligned: bool
) -> Slices:
    """Return the channel slices of the convolution."""
    factors, filters = convolution.factors(op, parts), settled(size.full[-1])
    element = factors.bytes
    channels = tuple(settled(input_shapes[i][-1]) for i in parts.images)
    height, width = size.window.kernel
    rows, columns = size.window.out
    return Slices(
        (settled(height), settled(width)), (rows, columns), size.window.shape[0], channels, filters, factors,
        direct_cpp.vector(op, filters, aligned), gcd(16, *(n * element for n in channels)) if aligned else element,
    )  # fmt: skip


def _multiplies_together(slices: Slices, arch: Arch) -> bool:
    """Return whether warpgroup products support such elements: float32 must be rounded before the products."""
    instruction = arch.isa.wgmma(slices.factors)
    return instruction is not None and slices.factors.rounding is Rounding.NONE


def _tiling(slices: Slices, halo: Halo, arch: Arch) -> Tiling:
    """Derive the remaining parameters from a tile; raises `UnsupportedError` if no kernel supports it."""
    bundle, across = max(slices.vector // 2, 1), halo.columns // 16
    tiles = -(-halo.filters // (8 * bundle * halo.parts)) * bundle
    whole = halo.filters == slices.filters or halo.filters % (8 * bundle) == 0
    if min(halo.rows, across, halo.stack, halo.parts) < 1 or halo.columns % 16 or halo.rows % halo.stack or not whole:
        raise UnsupportedError(f"a tile of {halo}")
    warps = halo.rows // halo.stack * across * halo.parts
    if (warps % 4 or halo.parts > 1 if halo.together else warps not in costs.halo(arch).warps) or halo.stages < 2:
        raise UnsupportedError(f"a tile of {halo}")
    (height, width), (down, rows_across) = slices.kernel, slices.out
    return Tiling(
        halo, tiles, warps,
        (-(-slices.filters // halo.filters), -(-rows_across // halo.columns), -(-down // halo.rows)),
        (halo.rows + height - 1) * ((halo.columns + width) // 2 * 2) * LINE,
        height * width * halo.parts * -(-tiles // 2) * 16 * LINE,
        min(halo.stages, slices.count),
        height,
    )  # fmt: skip


def _tiles_together(slices: Slices, arch: Arch) -> Iterator[Halo]:
    """Yield candidate tiles of one or two warpgroups."""
    filters, cost = slices.filters, costs.halo(arch)
    if not _multiplies_together(slices, arch) or not cost.few_together < filters <= cost.most_together:
        return
    for columns, stack, warps, stage in itertools.product((16, 32), (1, 2, 4, 7, 8), (4, 8), (2, 3, 4)):
        if 4 * stack * -(-filters // 8) <= cost.sums_together:
            yield Halo(stack * warps // (columns // 16), columns, filters, stack, 1, stage, 1)


def _tiles(slices: Slices, arch: Arch) -> Iterator[Halo]:
    """Yield candidate tiles with accumulators that fit the registers."""
    step, cost = 8 * max(slices.vector // 2, 1), costs.halo(arch)
    shares = {slices.filters, *(n for n in (32, 64, 128) if n < slices.filters)}
    columns, stacks, parts, stages = (16, 32), (1, 2, 4, 8), (1, 2, 4), (2, 3, 4)
    for filters, c, stack, part, warps, stage in itertools.product(
        sorted(shares), columns, stacks, parts, cost.warps, stages
    ):
        across = c // 16 * part
        tiles = -(-filters // (step * part)) * (step // 8)
        if warps % across == 0 and part <= -(-filters // step) and stack * tiles <= cost.tiles:
            yield Halo(stack * warps // across, c, filters, stack, part, stage)


def choose(slices: Slices, arch: Arch) -> Tiling | None:
    """Return the tiling with the least estimated time; None if none fits the shared memory."""
    return least(_fitting(slices, arch), lambda t: _cycles(slices, t, arch))


def estimates(slices: Slices, arch: Arch) -> dict[Halo, float]:
    """Return the estimated cycles of the tiles that fit."""
    return {t.halo: _cycles(slices, t, arch) for t in _fitting(slices, arch)}


def candidates(slices: Slices, arch: Arch) -> list[DirectVariant]:
    """Return the six tiles of the least estimated time."""
    fastest = sorted(_fitting(slices, arch), key=lambda t: _cycles(slices, t, arch))
    return [DirectVariant(halo=t.halo) for t in fastest[:6]]


def _fitting(slices: Slices, arch: Arch) -> list[Tiling]:
    tilings = (_tiling(slices, halo, arch) for halo in (*_tiles_together(slices, arch), *_tiles(slices, arch)))
    return [t for t in tilings if t.shared_bytes <= arch.shared_bytes]


def _resident(tiling: Tiling, arch: Arch) -> int:
    """Return how many blocks share a multiprocessor, which has one kilobyte more than a single block may use."""
    threads = tiling.warps * 32
    many = costs.halo(arch).threads // threads
    if tiling.halo.together:
        # Accumulators, two loads of pixels, and 26 registers that ptxas needed besides (CUDA 13.0).
        pixels = tiling.halo.stack + tiling.kernel_height - 1
        many = limits.REGISTERS // (threads * (4 * tiling.halo.stack * tiling.tiles + 8 * pixels + 32))
    return min((arch.shared_bytes + 1024) // (tiling.shared_bytes + 1024), many)


def _cycles(slices: Slices, tiling: Tiling, arch: Arch) -> float:
    """Estimate the GPU cycles of the convolution."""
    cost = costs.halo(arch)
    stack, warps, resident = tiling.halo.stack, tiling.warps, _resident(tiling, arch)
    blocks = tiling.blocks[0] * tiling.blocks[1] * tiling.blocks[2] * slices.images
    height, width = slices.kernel
    products = height * stack * tiling.tiles
    # Per warp step: shared memory loads the fragments of 16 rows, or the tensor cores multiply.
    step = max(cost.load * (stack + height - 1 + height * -(-tiling.tiles // 2)), cost.product * products)
    alone = width * 2 * (cost.alone_product * products + cost.alone_step)
    if tiling.halo.together:
        # Per warpgroup: the tensor cores, and shared memory, from which each product reads the filters.
        multiplied, across = height * stack, 8 * tiling.tiles
        step = max(multiplied * across / 2, 16 * (stack + height - 1) + multiplied * across / 4) / 4
        alone = width * 2 * (4 * step + cost.together_step)
    fill = (tiling.patch_bytes + tiling.weight_bytes) / cost.fetch

    def wave(count: int) -> float:
        """Return the cycles of so many resident blocks of a multiprocessor, including their first copy."""
        busy = count * max(width * 2 * warps * step, fill)
        return (
            slices.count * max(busy, alone, cost.arrival / (tiling.halo.stages - 1)) + fill + cost.arrival + cost.start
        )

    full = blocks // (arch.sm_count * resident)
    rest = -(-(blocks - full * arch.sm_count * resident) // arch.sm_count)
    return full * wave(resident) + (wave(rest) if rest else 0)
