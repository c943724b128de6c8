"""Products of 8-bit integers on a real GPU: sums equal those of int64, by every tile and block, of every two signs."""

from collections.abc import Sequence

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

cupy = pytest.importorskip("cupy", reason="needs CuPy")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_gpu() is not None, reason=_gpu() or "")]

BLOCKS = [b for b in costs.mma(A100).rounded if b.warps_k == 1]


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
        np.testing.assert_array_equal(got[0], inputs[0].astype(np.int64) @ inputs[1].astype(np.int64).T)
    else:
        ops.within_budget(fused, inputs, got)


@pytest.mark.skipif(_gpu() is not None or cuda.arch_of(0).name != "sm_90a", reason="needs a Hopper GPU")
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("text", [SUMS, DYNAMIC], ids=["sums", "dynamic"])
def test_every_tile_sums_exactly(tile: GemmTile, text: str) -> None:
    """Of rows and columns that end within a tile, and terms that end within a step."""
    for rows, n, k in (((1000,), 1288, 784), ((200,), 320, 16), ((4096,), 3072, 768)):
        check(*case(text, (UINT8, INT8), rows, n if tile.n >= 64 else 24, k), tile)


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
