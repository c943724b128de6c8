"""Launch plans of the direct template: convolutions of few channels with a pointwise epilogue."""

import itertools
import math
from collections.abc import Iterator

from onnxfuse.cuda.costs import tables
from onnxfuse.cuda.isa.factors import Rounding
from onnxfuse.cuda.isa.isa import WARP
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.templates.conv import convolution, costs, direct_cpp, halo
from onnxfuse.cuda.templates.conv.convolution import Convolution, ConvolutionProblem
from onnxfuse.cuda.templates.conv.costs import DirectCosts
from onnxfuse.cuda.templates.conv.direct_cpp import DirectSource, Group, Slab
from onnxfuse.cuda.templates.conv.variant import Area, DirectVariant
from onnxfuse.graph.channels import FIRST
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic.branching import gcd, least
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape


def plan(
    op: FusedOp, input_shapes: tuple[Shape, ...], aligned: bool, arch: Arch, variant: DirectVariant | None = None
) -> LaunchPlan:
    """Return the launch plan of `op` for inputs of these shapes."""
    tuning, cost = variant or DirectVariant(), costs.direct(arch)
    parts = parse_op(op)
    outputs = output_shapes(op, input_shapes)
    size = problem(parts, input_shapes)
    bits = launch_plan.index_bits(max(convolution.elements(op, size), math.prod(size.window.shape)))
    if tuning.area is None and not precise(op, parts) and halo.takes(op, parts, size):
        tiled = halo.plan(op, parts, size, input_shapes, aligned, bits, outputs, arch, tuning)
        if tiled is not None:
            return tiled
    if len(parts.images) > 1:
        raise UnsupportedError("images side by side, but not for windows that slide by one pixel")
    group = _group(op, parts, size, aligned)
    slab = choose(group, arch) if tuning.area is None else _slab(group, tuning.area)
    work = DirectSource(op, parts, size, bits, aligned, input_shapes, group, slab, cost.threads, bool(parts.packing))
    shared = 0 if slab is None else slab.shared_words(group) * 4
    if shared > arch.shared_bytes:
        raise UnsupportedError(f"{shared} bytes of shared memory, expected at most {arch.shared_bytes}")
    resident = tuning.min_blocks or _resident(shared, arch)
    if slab is None:
        grid = -(-math.prod(size.full) // cost.threads)
    else:
        grid = slab.blocks[0] * _workers(_tiles(group, slab), slab.blocks[0], resident, arch)
    grid = grid if math.prod(size.full) else 0
    if grid >= 2**31:
        raise UnsupportedError(f"{grid} blocks, expected fewer than 2^31")
    return LaunchPlan(
        kernel=direct_cpp.kernel(work, resident),
        grid=(grid, 1, 1),
        block=(cost.threads, 1, 1),
        shared_bytes=shared,
        parameters=direct_cpp.parameters(work, (1, 1, 1) if slab is None else slab.blocks),
        output_shapes=outputs,
    )


def refuses(op: FusedOp, arch: Arch) -> str | None:
    """Return why the body is preferred on `arch`; None if the kernel is."""
    parts, isa = parse_op(op), arch.isa
    if (
        isa.mma(convolution.factors(op, parts)) is None
        or isa.unused
        or arch.shared_bytes < costs.direct(arch).least_shared
    ):
        return f"the convolution's kernel is made for sm_80, sm_87 and sm_90, not for {arch.name}"
    if precise(op, parts) and halo.slides(parts):
        return "the kernel of windows that slide by one pixel rounds float32 to TF32, and use_tf32 is 0"
    return None


def precise(op: FusedOp, parts: Convolution) -> bool:
    """Return whether the factors are float32 and must not be rounded."""
    return convolution.factors(op, parts).rounding is Rounding.TF32 and not op.tf32


# ---- the body and its sizes


def parse_op(op: FusedOp) -> Convolution:
    """Parse the body of `op`; raises `UnsupportedError` with the reason if no kernel supports it."""
    parts = convolution.parse_op(op)
    if not parts.channels_last or parts.rank != 4:
        raise UnsupportedError("a convolution whose results do not have their channels last, in two dimensions")
    if parts.mean is not None:
        raise UnsupportedError("a mean of the results")
    if parts.packing not in ((), FIRST):
        raise UnsupportedError("weights that lie as those of depthwise convolutions do")
    if not parts.images_last and parts.groups > 1:
        raise UnsupportedError("groups of images that have their channels first")
    if convolution.factors(op, parts).is_integer and not parts.images_last:
        raise UnsupportedError("8-bit images that have their channels first")
    if convolution.factors(op, parts).bytes == 2 and not parts.images_last and parts.sliding.dilations[1] > 1:
        raise UnsupportedError("columns further apart, of 16-bit images that have their channels first")
    return parts


def problem(parts: Convolution, input_shapes: tuple[Shape, ...]) -> ConvolutionProblem:
    """Return the sizes of the convolution for these shapes of the op's inputs."""
    size = convolution.problem(parts, input_shapes)
    if 0 in (parts.groups, size.window.shape[3], size.full[-1]):
        raise UnsupportedError("a convolution without channels")
    return size


def output_shapes(op: FusedOp, input_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Return the shape of each output of `op` for these shapes of its inputs."""
    problem(parse_op(op), input_shapes)
    return convolution.output_shapes(op, input_shapes)


def _group(op: FusedOp, parts: Convolution, size: ConvolutionProblem, aligned: bool) -> Group:
    element = convolution.factors(op, parts)
    filters = size.full[-1] // parts.groups
    channels = size.window.shape[3] // parts.groups
    vector = direct_cpp.vector(op, filters, aligned)
    terms, planes = element.per_word, not parts.images_last
    if not aligned or (planes and terms > 1 and size.window.strides[1] % 2) or (not planes and channels % terms):
        read = 1
    elif planes:
        # Pieces of a row are aligned: each is either wholly inside the image or outside.
        read = gcd(4 * terms, size.window.shape[2], 8 * size.window.strides[1])
    else:
        read = gcd(4 * terms, size.window.shape[3])
    return Group(size.window, parts.groups, channels, filters, planes, terms, vector, read, precise(op, parts))


# ---- tiling


def _slab(group: Group, area: Area) -> Slab:
    """Derive the remaining parameters from an area; raises `UnsupportedError` if no kernel supports it."""
    window = group.window
    tiles = _columns(group, area.filters)
    high = 1 if area.rows == 1 else 2
    products = area.rows // high * (area.columns // (16 // high))
    fits = area.rows % high == 0 and area.columns % (16 // high) == 0 and products and products % area.stack == 0
    several = area.groups > 1 or group.groups > 1
    whole = area.filters == group.filters if several else area.filters % (8 * group.bundle) == 0
    if not fits or not (whole or area.filters == group.filters) or area.groups > group.groups:
        raise UnsupportedError(f"an area of {area}")
    columns = -(-area.filters // (8 * tiles)) * tiles
    reach = [(k - 1) * d + 1 for k, d in zip(window.kernel, window.dilations, strict=True)]
    rows_in, columns_in = (
        (n - 1) * s + r for n, s, r in zip((area.rows, area.columns), window.strides, reach, strict=True)
    )
    read = group.read if group.planes else gcd(group.read, area.groups * group.channels)
    if group.planes:
        copies = 2 if group.terms == 2 and window.strides[1] % 2 else 1
        reads = -(-(group.shift + columns_in) // read)
        copy = (group.channels * rows_in * -(-reads * read // group.terms) + 15) // 32 * 32 + 16
        patch, pieces = copies * copy, group.channels * rows_in * reads
    else:
        patch = rows_in * columns_in * ((area.groups * group.run_words + 3) // 8 * 8 + 4)
        pieces = rows_in * columns_in * area.groups * group.channels // read
    shares = -(-group.groups // area.groups) if several else -(-group.filters // area.filters)
    return Slab(
        area=area,
        tiles=tiles,
        blocks=(shares, -(-window.out[1] // area.columns), -(-window.out[0] // area.rows)),
        weight_words=area.groups * columns * group.steps * 64,
        patch_words=patch,
        units=products // area.stack * area.groups * (columns // tiles),
        fills=-(-pieces // 32),
        read=read,
    )


def _columns(group: Group, filters: int) -> int:
    """Return how many columns of products a warp computes at once: few idle ones first, then many."""
    columns = -(-filters // (8 * group.bundle)) * group.bundle
    options = [n for n in range(1, 9) if n % group.bundle == 0]
    return min(options, key=lambda n: (-(-columns // n) * n, -n))


def _areas(group: Group, cost: DirectCosts) -> Iterator[Area]:
    """Yield candidate areas: at most whole images, with accumulators that fit the registers."""
    down, around = (max(n, 1) for n in group.window.out)
    sizes = [(r, c) for r in (2, 4, 8, 16) if r < 2 * down or r == 2 for c in (8, 16, 32) if c < 2 * around or c == 8]
    if down == 1:  # a signal
        sizes = [(1, c) for c in (16, 32, 64, 128, 256, 512) if c < 2 * around or c == 16]
    if group.groups > 1:
        shares = [(g, group.filters) for g in (1, 2, 4, 8, 16, 32) if g <= group.groups]
        shares = [(g, f) for g, f in shares if g == 1 or g * group.channels <= cost.channels]
    else:
        step = 8 * group.bundle
        parts = {-(-group.filters // n // step) * step for n in (1, 2, 3, 4, 6, 8)}
        shares = [(1, group.filters), *((1, f) for f in sorted(parts) if f < group.filters)]
    for (r, c), (g, f), stack in itertools.product(sizes, shares, (1, 2, 4)):
        if r * c // 16 % stack == 0 and stack * _columns(group, f) <= cost.tiles:
            yield Area(r, c, g, f, stack)


def choose(group: Group, arch: Arch) -> Slab | None:
    """Return the slab with the least estimated time; None if none fits the shared memory."""
    return least(_fitting(group, arch), lambda s: _cycles(group, s, arch))


def _fitting(group: Group, arch: Arch) -> list[Slab]:
    slabs = (_slab(group, area) for area in _areas(group, costs.direct(arch)))
    return [s for s in slabs if s.shared_words(group) * 4 <= arch.shared_bytes]


def _tiles(group: Group, slab: Slab) -> int:
    """Return the number of areas in all images."""
    return group.window.shape[0] * slab.blocks[1] * slab.blocks[2]


def _resident(shared: int, arch: Arch) -> int:
    """Return how many blocks share a multiprocessor, which has one kilobyte more than a single block may use."""
    return 2 if 2 * (shared + 1024) <= arch.shared_bytes + 1024 else 1


def _workers(tiles: int, shares: int, resident: int, arch: Arch) -> int:
    """Return how many persistent blocks share the tiles of a channel range: as many as fit the GPU, evenly loaded."""
    share = -(-tiles // max(arch.sm_count * resident // shares, 1))
    return -(-tiles // max(share, 1))


def _cycles(group: Group, slab: Slab, arch: Arch) -> float:
    """Estimate the cycles of the convolution: a scheduler issues one warp instruction per cycle."""
    cost = costs.direct(arch)
    warps = cost.threads // WARP
    area, resident = slab.area, _resident(slab.shared_words(group) * 4, arch)
    tiles = _tiles(group, slab)
    rounds = -(-tiles // max(_workers(tiles, slab.blocks[0], resident, arch), 1))
    # If there are more shares than resident blocks, they run in several waves.
    rounds *= max(-(-slab.blocks[0] // (arch.sm_count * resident)), 1)
    pick = cost.pick * area.stack * (2 if group.masked else 1)
    once, each = cost.exact if group.precise else cost.rounded
    convolve = group.steps * (cost.step + pick + slab.tiles * (once + each * area.stack))
    store_once, store_each = cost.finish
    finish = area.stack * 2 * slab.tiles // group.bundle * (store_once + store_each * group.vector)
    units = -(-slab.units // warps) * warps
    work = slab.fills * (cost.read_wide if slab.read > 1 else cost.read_single) + units * (convolve + finish)
    waiting = cost.waiting if resident == 1 else 1.0
    blocks = -(-slab.blocks[0] * _workers(tiles, slab.blocks[0], resident, arch) // arch.sm_count)
    return rounds * (work * resident / 4 * waiting + cost.start) + slab.weight_words * blocks


def candidates(op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch) -> tuple[DirectVariant, ...]:
    """Return the eight areas of the least estimated time, and tiles with channel slices if those are supported."""
    parts = parse_op(op)
    size = problem(parts, input_shapes)
    sliced = not precise(op, parts) and halo.takes(op, parts, size)
    tiles = halo.candidates(halo.slices_of(op, parts, size, input_shapes, True), arch) if sliced else []
    if len(parts.images) > 1:
        return tuple(tiles)
    group = _group(op, parts, size, True)
    slabs = sorted(_fitting(group, arch), key=lambda s: _cycles(group, s, arch))
    return (*tiles, *(DirectVariant(area=s.area) for s in slabs[:8]))


def estimates(op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch) -> dict[DirectVariant, float]:
    """Return the estimated microseconds, at the card's boost clock, of the areas or, if used, channel slices."""
    parts = parse_op(op)
    size = problem(parts, input_shapes)
    per_microsecond = tables.card(arch.name).clock * 1000
    if not precise(op, parts) and halo.takes(op, parts, size):
        slices = halo.slices_of(op, parts, size, input_shapes, True)
        return {DirectVariant(halo=h): cycles / per_microsecond for h, cycles in halo.estimates(slices, arch).items()}
    group = _group(op, parts, size, True)
    slabs = _fitting(group, arch)
    return {DirectVariant(area=s.area): _cycles(group, s, arch) / per_microsecond for s in slabs}
