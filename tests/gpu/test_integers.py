"""Products of 8-bit integers on a real GPU: exact sums, by every tile and block, of every two signs."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from bench.cases import ops
from bench.cases.ops import INT32
from onnxfuse import cuda
from onnxfuse.cuda.planning.arch import A100
from onnxfuse.cuda.templates.gemm import costs
from onnxfuse.cuda.templates.gemm.variant import Block, GemmTile, GemmVariant
from onnxfuse.model.fused import FusedOp
from tests.emulator.test_integers import DYNAMIC, GATED, INT8, PAIRS, SUMS, TILES, UINT8, case, drawn
from tests.gpu.test_gemm import launch
from tests.gpu.test_kernels import DeviceBuffer, _gpu
from tests.support.kernels import quantized

cupy = pytest.importorskip("cupy", reason="needs CuPy")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_gpu() is not None, reason=_gpu() or "")]

BLOCKS = [*costs.mma(A100).rounded]


def check(
    fused: FusedOp, shapes: Sequence[tuple[int, ...]], variant: GemmTile | Block | None = None, aligned: bool = True
) -> None:
    tuning = GemmVariant(tile=variant) if isinstance(variant, GemmTile) else GemmVariant(block=variant)
    inputs, plan = drawn(fused, shapes), cuda.plan(fused, tuple(shapes), aligned, cuda.arch_of(0), tuning)
    if isinstance(variant, GemmTile):
        assert "wgmma" in plan.kernel.text
    sources = [DeviceBuffer(x.shape, x.dtype, aligned, x) for x in inputs]
    results = [DeviceBuffer(s, ops.NUMPY[t], aligned) for s, t in zip(plan.output_shapes, fused.outputs, strict=True)]
    launch(plan, [b.address for b in (*sources, *results)])
    cupy.cuda.Device(0).synchronize()
    got = [r.read() for r in results]
    if fused.outputs == (INT32,):
        np.testing.assert_array_equal(got[0], quantized.product(*inputs[:2]))
    else:
        ops.within_budget(fused, inputs, got)


@pytest.mark.skipif(_gpu() is not None or cuda.arch_of(0).name != "sm_90a", reason="needs a Hopper GPU")
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("text", [SUMS, DYNAMIC], ids=["sums", "dynamic"])
def test_every_tile_sums_exactly(tile: GemmTile, text: str) -> None:
    """Of rows and columns that end within a tile, and terms that end within a step."""
    for rows, n, k in (((1000,), 1288, 784), ((200,), 320, 16), ((4096,), 3072, 768)):
        check(*case(text, (UINT8, INT8), rows, n if tile.n >= 64 else 24, k), tile)


@pytest.mark.skipif(_gpu() is not None or cuda.arch_of(0).name != "sm_90a", reason="needs a Hopper GPU")
@pytest.mark.parametrize("tile", costs.wgmma().split, ids=str)
@pytest.mark.parametrize("text", [SUMS, DYNAMIC], ids=["sums", "dynamic"])
def test_blocks_share_the_terms(tile: GemmTile, text: str) -> None:
    """Sums beyond 2^24 of blocks are added as integers."""
    for rows, n, k in (((128,), 768, 3072), ((49,), 2048, 4608), ((1000,), 1288, 784)):
        check(*case(text, (UINT8, INT8), rows, n, k), tile)


@pytest.mark.parametrize("variant", [None, *TILES], ids=str)
def test_products_of_one_input_have_scales_of_their_own(variant: GemmTile | None) -> None:
    """Queries, keys and values of a static file in one launch."""
    if variant is not None and cuda.arch_of(0).name != "sm_90a":
        pytest.skip("needs a Hopper GPU")
    fused, shapes = quantized.three_case((1000,), 768 if variant is None or variant.n >= 64 else 24, 768)
    inputs = quantized.three_drawn(shapes)
    plan = cuda.plan(fused, tuple(shapes), True, cuda.arch_of(0), GemmVariant(tile=variant))
    sources = [DeviceBuffer(x.shape, x.dtype, True, x) for x in inputs]
    results = [DeviceBuffer(s, np.int8, True) for s in plan.output_shapes]
    launch(plan, [b.address for b in (*sources, *results)])
    cupy.cuda.Device(0).synchronize()
    for result, wanted in zip(results, quantized.three_wanted(inputs), strict=True):
        quantized.assert_same_steps(result.read(), wanted)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.parametrize("aligned", [True, False])
def test_every_block_sums_exactly(block: Block, aligned: bool) -> None:
    for rows, n, k in (((1000,), 1288, 784), ((70,), 33, 131), ((5,), 7, 12), ((9,), 8, 1)):
        check(*case(SUMS, (UINT8, INT8), rows, n, k), block, aligned)


@pytest.mark.parametrize("pair", PAIRS)
def test_both_signs_on_both_sides(pair: tuple[int, int]) -> None:
    """By the plan's own choice: wgmma where lines are multiples of 16 bytes and the GPU has it, mma.sync elsewhere."""
    for rows, n, k in (((512,), 768, 768), ((512,), 768, 772), ((3, 5), 33, 131), ((1,), 3072, 768)):
        check(*case(SUMS, pair, rows, n, k))


@pytest.mark.parametrize("text", [DYNAMIC, GATED], ids=["dynamic", "gated"])
def test_what_quantization_writes_behind_a_product_is_its_epilogue(text: str) -> None:
    for rows, n, k in (((512,), 768, 768), ((7,), 17, 35)):
        check(*case(text, (UINT8, INT8), rows, n, k))


def requantize(
    fused: FusedOp,
    shapes: Sequence[tuple[int, ...]],
    sums: Callable[[Sequence[np.ndarray]], np.ndarray],
    variant: GemmVariant | None = None,
    aligned: bool = True,
) -> None:
    """Check a product that is quantized again; `sums` of its inputs are exact."""
    to = fused.outputs[0]
    inputs = quantized.drawn(shapes, to)
    plan = cuda.plan(fused, tuple(shapes), aligned, cuda.arch_of(0), variant)
    sources = [DeviceBuffer(np.shape(x), x.dtype, aligned, np.asarray(x)) for x in inputs]
    result = DeviceBuffer(plan.output_shapes[0], ops.NUMPY[to], aligned)
    launch(plan, [b.address for b in (*sources, result)])
    cupy.cuda.Device(0).synchronize()
    quantized.assert_same_steps(result.read(), quantized.wanted(sums(inputs), inputs))


def product(inputs: Sequence[np.ndarray]) -> np.ndarray:
    return quantized.product(*inputs[:2])


@pytest.mark.skipif(_gpu() is not None or cuda.arch_of(0).name != "sm_90a", reason="needs a Hopper GPU")
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("to", [INT8, UINT8])
def test_every_tile_quantizes_its_sums(tile: GemmTile, to: int) -> None:
    """Bytes by the copy engine: rows that end within a tile, columns that end within one."""
    for rows, n, k in (((1000,), 1296, 784), ((200,), 336, 16), ((4096,), 3072, 768)):
        fused, shapes = quantized.case(quantized.PRODUCT, rows, n if tile.n >= 64 else 32, (k,), to)
        requantize(fused, shapes, product, GemmVariant(tile=tile))


@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.parametrize("aligned", [True, False])
def test_every_block_quantizes_its_sums(block: Block, aligned: bool) -> None:
    for rows, n, k in (((1000,), 1288, 784), ((70,), 33, 131), ((5,), 7, 12)):
        requantize(*quantized.case(quantized.PRODUCT, rows, n, (k,)), product, GemmVariant(block=block), aligned)


@pytest.mark.parametrize("attributes", ["pads = [1,1,1,1]", "strides = [2,2], pads = [1,1,1,1]"])
@pytest.mark.parametrize(
    ("images", "filters", "channels"),
    [((4, 28, 28), 128, 128), ((2, 56, 57), 64, 64), ((3, 9, 8), 24, 16), ((1, 14, 14), 512, 512)],
)
def test_windows_over_quantized_images(
    attributes: str, images: tuple[int, int, int], filters: int, channels: int
) -> None:
    """By the plan's own choice, of one small image in blocks that share its terms, and by every tile."""
    fused, shapes = quantized.case(quantized.WINDOW, images, filters, (3, 3, channels), attributes=attributes)
    tiles = [GemmVariant(tile=t) for t in TILES if t.n >= 64 and t.split == 1] if filters % 16 == 0 else []
    for variant in (None, *tiles):
        requantize(fused, shapes, lambda inputs: quantized.convolved(inputs, attributes), variant)


@pytest.mark.parametrize("aligned", [True, False])
def test_a_gelu_of_quantized_steps_is_looked_up(aligned: bool) -> None:
    """By every tile and block, bit for bit."""
    variants = [None, *(GemmVariant(block=b) for b in BLOCKS)]
    if aligned and cuda.arch_of(0).name == "sm_90a":
        variants += [GemmVariant(tile=t) for t in TILES if t.n >= 64]
    fused, shapes = quantized.gelu_case((1000,), 1296, 784)
    inputs = quantized.gelu_drawn(shapes)
    wanted = quantized.gelu_wanted(inputs)
    for variant in variants:
        plan = cuda.plan(fused, tuple(shapes), aligned, cuda.arch_of(0), variant)
        sources = [DeviceBuffer(np.shape(x), x.dtype, aligned, np.asarray(x)) for x in inputs]
        result = DeviceBuffer(plan.output_shapes[0], np.dtype(np.uint8), aligned)
        launch(plan, [b.address for b in (*sources, result)])
        cupy.cuda.Device(0).synchronize()
        np.testing.assert_array_equal(result.read(), wanted)
