"""Launch plans of the depthwise template: depthwise convolution or pooling, with a pointwise epilogue."""

import math
from dataclasses import replace

from onnxfuse.codegen.program.window import WindowGeometry
from onnxfuse.cuda.isa.factors import FactorType
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.templates.conv import convolution, costs, stencil_cpp
from onnxfuse.cuda.templates.conv.convolution import MOST_TAPS, Convolution, ConvolutionProblem
from onnxfuse.cuda.templates.conv.stencil_cpp import Patches, StencilSource, Strips
from onnxfuse.cuda.templates.conv.variant import Band, DepthwiseVariant, Patch
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.branching import gcd, least, settled
from onnxfuse.symbolic.element_types import ElementType, UnsupportedError
from onnxfuse.symbolic.strides import Shape


def plan(
    op: FusedOp, input_shapes: tuple[Shape, ...], aligned: bool, arch: Arch, variant: DepthwiseVariant | None = None
) -> LaunchPlan:
    """Return the launch plan of `op` for inputs of these shapes: on tensor cores where they support it."""
    tuning = variant or DepthwiseVariant()
    parts = parse_op(op)
    outputs = output_shapes(op, input_shapes)
    size = problem(parts, input_shapes)
    if math.prod(size.window.kernel) > MOST_TAPS:
        raise UnsupportedError(f"a kernel of {math.prod(size.window.kernel)} elements, expected at most {MOST_TAPS}")
    element = element_types.TYPES[op.inputs[parts.x]]
    counters = scratch = 0
    tile = (
        strips(parts, size, convolution.factors(op, parts), arch, tuning) if aligned and tuning.patch is None else None
    )
    if tile is None:
        patch = tuning.patch or choose(parts, size, element, arch)
        # Vectors of channels are aligned: use a power of 2 that divides all of them.
        channels = gcd(patch.channels, size.window.shape[3]) if aligned and parts.channels_last else 1
        laid = _patches(parts, size, replace(patch, channels=channels), arch)
        layout: Patches | Strips = laid
        grid = size.window.shape[0] * math.prod(laid.blocks)
        if parts.mean is not None and laid.sharing > 1:
            means = size.window.shape[0] * laid.blocks[0]
            counters = -(-means // 4) * 4  # words: the data that follows starts at a 16-byte boundary
            scratch = 4 * (counters + means * laid.partial_sums)
    else:
        layout = tile
        grid = layout.blocks[0] * _workers(size, layout, arch)
    grid = grid if math.prod(size.full) else 0
    if grid >= 2**31:
        raise UnsupportedError(f"{grid} blocks, expected fewer than 2^31")
    bits = launch_plan.index_bits(max(convolution.elements(op, size), math.prod(input_shapes[parts.x])))
    work = StencilSource(op, parts, size, bits, aligned, input_shapes, layout)
    return LaunchPlan(
        kernel=stencil_cpp.kernel(work, tuning.min_blocks),
        grid=(grid, 1, 1),
        block=(layout.threads, 1, 1),
        shared_bytes=0 if tile is None else tile.shared_words * 4,
        parameters=stencil_cpp.parameters(work),
        output_shapes=outputs,
        scratch_bytes=scratch,
        counter_bytes=4 * counters,
    )


def parse_op(op: FusedOp) -> Convolution:
    """Parse the body of `op`; raises `UnsupportedError` if images and results have different layouts."""
    parts = convolution.parse_op(op)
    if parts.images_last != parts.channels_last or (parts.packing and not parts.packed):
        raise UnsupportedError("a depthwise convolution between transposes of another kind")
    if parts.mean is not None and parts.resizing is not None:
        raise UnsupportedError("a mean of a resized image")
    if parts.mean is not None and parts.w >= 0 and convolution.factors(op, parts).is_integer:
        raise UnsupportedError("a mean of sums of integers")
    if parts.others:
        raise UnsupportedError("images side by side")
    return parts


def problem(parts: Convolution, input_shapes: tuple[Shape, ...]) -> ConvolutionProblem:
    """Return the sizes of the convolution for these shapes of the op's inputs."""
    size = convolution.problem(parts, input_shapes)
    channels, filters = size.window.shape[3], size.full[-1 if parts.channels_last else 1]
    if parts.w >= 0 and not parts.groups == channels == filters:
        raise UnsupportedError(f"{parts.groups} groups, {channels} channels to {filters}: not depthwise")
    # The kernel's text is unrolled over its taps.
    return replace(size, window=replace(size.window, kernel=tuple(map(settled, size.window.kernel))))


def output_shapes(op: FusedOp, input_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Return the shape of each output of `op` for these shapes of its inputs."""
    problem(parse_op(op), input_shapes)
    return convolution.output_shapes(op, input_shapes)


# ---- tensor cores


def strips(
    parts: Convolution, size: ConvolutionProblem, factors: FactorType, arch: Arch, tuning: DepthwiseVariant
) -> Strips | None:
    """Return the tiles on the tensor cores; None if CUDA cores are faster or tensor cores cannot be used."""
    window, cost = size.window, costs.depthwise(arch)
    channels = window.shape[3]
    if (
        parts.pooling is not None
        or parts.mean is not None
        or not parts.channels_last
        or factors.bytes != 2
        or channels % 8
        or not math.prod(size.full)
    ):
        return None
    if arch.isa.mma(factors) is None or window.kernel[0] * _span(window) > cost.strip_products * 16:
        return None
    if tuning.band is None and (math.prod(window.kernel) <= cost.few_taps or min(window.out) < cost.small):
        return None
    block_channels = 16 if channels > 8 else 8
    bands = _bands(window) if tuning.band is None else (tuning.band,)
    fitting = [b for b in bands if _shared_words(window, b, block_channels) * 4 <= cost.strip_bytes]
    if not fitting:
        return None
    band = least(fitting, lambda b: _instructions(window, b)) or fitting[0]
    tiles = -(-window.out[1] // (band.strips * 8)), -(-window.out[0] // (band.segments * band.rows))
    blocks = (-(-channels // block_channels), *tiles)
    if tuning.band is None and window.shape[0] * math.prod(blocks) < 2 * arch.sm_count:
        return None
    return Strips(band, block_channels, blocks, _shared_words(window, band, block_channels), cost.strip_threads)


def _bands(window: WindowGeometry) -> tuple[Band, ...]:
    """Return all bands of at most 16 strips, of at most 8 rows: more accumulators would not fit the registers."""
    down, across = window.out[0], -(-window.out[1] // 8)
    return tuple(
        Band(strips, below, rows)
        for strips in range(1, min(across, 16) + 1)
        for below in range(1, min(down, 16 // strips) + 1)
        for rows in range(1, min(-(-down // below), 8) + 1)
    )


def _span(window: WindowGeometry) -> int:
    """Return the columns of x that a strip reads, in whole products."""
    return -(-(7 * window.strides[1] + (window.kernel[1] - 1) * window.dilations[1] + 1) // 16) * 16


def _input(window: WindowGeometry, band: Band) -> tuple[int, int]:
    """Return the rows of x, and the words per row, that a tile reads."""
    rows = (band.segments * band.rows - 1) * window.strides[0] + (window.kernel[0] - 1) * window.dilations[0] + 1
    return rows, ((band.strips - 1) * 8 * window.strides[1] + _span(window)) // 2


def _shared_words(window: WindowGeometry, band: Band, channels: int) -> int:
    sums = band.segments * band.rows * band.strips * 8
    plane = -(-max(math.prod(_input(window, band)), sums) // 4) * 4 + 2
    weights = window.kernel[0] * 2 * ((7 * window.strides[1] + _span(window)) // 2 + 1)
    return channels * (plane + weights)


def _instructions(window: WindowGeometry, band: Band) -> float:
    """Estimate the warp instructions per channel of an image."""
    products = _span(window) // 16
    strip_rows = (band.rows - 1) * window.strides[0] + (window.kernel[0] - 1) * window.dilations[0] + 1
    convolve = products * (4 * strip_rows + window.kernel[0] * (band.rows + 2)) + 2 * band.rows + 20
    fill = 4 * math.prod(_input(window, band)) / 32
    finish = 14 * band.segments * band.rows * band.strips * 8 / 32
    tiles = -(-window.out[1] // (band.strips * 8)) * -(-window.out[0] // (band.segments * band.rows))
    return tiles * (convolve + fill + finish)


def _workers(size: ConvolutionProblem, tile: Strips, arch: Arch) -> int:
    """Return how many persistent blocks share the tiles of a channel range: as many as fit the GPU, evenly loaded."""
    tiles = size.window.shape[0] * tile.blocks[1] * tile.blocks[2]
    share = -(-tiles // max(arch.sm_count * costs.depthwise(arch).strip_blocks // tile.blocks[0], 1))
    return -(-tiles // share)


# ---- CUDA cores


def choose(parts: Convolution, size: ConvolutionProblem, element: ElementType, arch: Arch) -> Patch:
    """Return the outputs per thread: many, to reuse inputs, but with enough threads for the GPU."""
    cost = costs.depthwise(arch)
    down, across = size.window.out
    taps = math.prod(size.window.kernel)
    channels = 1
    if not parts.channels_last:
        # Vectors run along columns if they divide the row: 32 x 112 x 112, 3 x 3, batch 32: 4 x 8 25.5 us, 4 x 4 29.5;
        # of 14 columns (480 channels) 7 x 2 10.6 us, 4 x 4 21.8.
        columns = max(c for c in (1, 2, 4, 8) if across % c == 0)
        rows = min(4 if columns > 2 else 7, down)
    elif parts.resizing is not None:
        channels = gcd(16 // element.size, size.window.shape[3])
        rows, columns = 1, min(2, across)
    elif parts.pooling is not None:
        # 2 x 2 outputs of 4 and of 8 channels, batch 32, float16, H200, 2026-11, microseconds: 3 x 3, stride 2 over
        # 64 x 112 x 112 18.9 and 21.8; 2 x 2, stride 2 over 64 x 224 x 224 61.4 and 66.7; 3 x 3 over 512 x 14 x 14 6.5
        # and 7.2, over 192 x 28 x 28 9.9 and 8.7.
        channels = gcd(8 // element.size, size.window.shape[3])
        rows, columns = min(2, down), min(2, across)
    else:
        # 7 x 7 over 96 x 56 x 56, batch 32: float16 2 x 7 x 2 37.1 us, 4 x 4 x 2 38.1; float32 4 x 4 x 1 40.1, with 2
        # channels 61.3.
        # 3 x 3 of 8 bits over 144 x 56 x 56: 4 x 4 x 4 18.6 us, 2 x 4 x 4 19.2, 2 x 2 x 8 21.2, 4 x 4 x 2 21.9.
        channels = 2 if size.window.shape[3] % 2 == 0 and (taps <= cost.few_taps or element.size == 2) else 1
        channels = gcd(4, size.window.shape[3]) if element.size == 1 else channels
        rows, columns = (2, 7) if taps > cost.few_taps and element.size == 2 else (4, 4)
        rows, columns = min(rows, down), min(columns, across)
        many = math.prod(size.full) >= arch.sm_count * cost.mean_enough
        if parts.mean is not None and element.size == 2 and taps <= cost.mean_taps and many:
            channels = gcd(cost.mean_channels, size.window.shape[3])
    enough = arch.sm_count * next(threads for most, threads in cost.enough.items() if taps <= most)
    while rows * columns > 1 and math.prod(size.full) // (rows * columns * channels) < enough:
        if parts.mean is not None and rows * columns <= cost.mean_patch:
            break
        if rows >= columns:
            rows = -(-rows // 2)
        else:
            columns = -(-columns // 2)
    return Patch(max(rows, 1), max(columns, 1), channels, 128)


def _seats(size: ConvolutionProblem, rows: int, columns: int) -> int:
    """Return the number of patches of an image."""
    return -(-size.window.out[0] // rows) * -(-size.window.out[1] // columns)


def _patches(parts: Convolution, size: ConvolutionProblem, patch: Patch, arch: Arch) -> Patches:
    """Return the block shape: whole sectors of channels, and a nearly square part of the image with few idle
    threads."""
    across = -(-size.window.shape[3] // patch.channels)
    down, around = -(-size.window.out[0] // patch.rows), -(-size.window.out[1] // patch.columns)

    def block(channels: int, columns: int, rows: int) -> Patches:
        return Patches(
            patch, channels, columns, rows, (-(-across // channels), -(-around // columns), -(-down // rows))
        )

    if not parts.channels_last:
        columns = max(min(around, 32), 1)
        rows = max(min(down, patch.threads // columns), 1)
        return block(max(min(across, patch.threads // (columns * rows)), 1), columns, rows)
    channels = max((c for c in range(1, 33) if across % c == 0), default=1)
    if channels < 8:
        channels = min(across, 32)
    room = max(patch.threads // max(channels, 1), 1)
    if parts.mean is not None:
        cost = costs.depthwise(arch)
        seats, few = _seats(size, patch.rows, patch.columns), patch.rows * patch.columns <= cost.small_patch
        alone = seats <= cost.seats if few else seats * cost.sector <= 2 * patch.threads
        sector = cost.sector if few or alone else cost.line
        most = (cost.mean_threads if few else 2 * patch.threads) // seats if alone else sector
        even = [c for c in range(1, min(most, 32) + 1) if across % c == 0]
        sectors = [c for c in even if c % sector == 0] or [c for c in even if c > sector // 2] or [min(across, most)]
        # Known before the block is chosen among thousands, it leaves each estimate a tenth as long.
        channels = settled(next((c for c in sectors if c * seats >= patch.threads), sectors[-1]))
        if alone:
            return block(max(channels, 1), around, down)
        room = max((cost.mean_threads if few else patch.threads) // max(channels, 1), 1)
    candidates = [block(max(channels, 1), c, r) for c in range(1, room + 1) for r in range(1, room // c + 1)]
    return least(candidates, lambda b: _cost(size, b)) or candidates[0]


def _cost(size: ConvolutionProblem, block: Patches) -> float:
    """Return the redundant reads of a block per output, counting idle threads."""
    window, patch = size.window, block.patch
    if not math.prod(window.out):
        return 0.0
    reach = [(k - 1) * d + 1 for k, d in zip(window.kernel, window.dilations, strict=True)]
    rows, columns = block.rows * patch.rows, block.columns * patch.columns
    read = (rows - 1) * window.strides[0] + reach[0], (columns - 1) * window.strides[1] + reach[1]
    busy = window.out[0] * window.out[1] / (block.blocks[1] * columns * block.blocks[2] * rows)
    filled = block.threads / -(-block.threads // 32) / 32
    idle = max(64 / block.threads, 1.0)
    return math.prod(read) / (rows * columns) / (busy * filled) * idle
