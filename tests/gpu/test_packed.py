"""Products by weights in few bits on a real GPU: every form, body, strip and tile against float64."""

from dataclasses import replace

import numpy as np
import pytest

from bench.cases import ops, packed
from bench.cases.ops import BRAIN, FLOAT, HALF
from bench.cases.packed import BODIES, shapes
from onnxfuse import cuda
from onnxfuse.cuda.templates.gemm import costs
from onnxfuse.cuda.templates.gemm.variant import Block, GemmTile, GemmVariant, Strip
from onnxfuse.support.errors import NoPlanError
from onnxfuse.symbolic.packing import Packing
from tests.gpu.test_kernels import DeviceBuffer, _gpu, launch

cupy = pytest.importorskip("cupy", reason="needs CuPy")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_gpu() is not None, reason=_gpu() or "")]

FORMS = [(4, 32, 1280), (4, 64, 2176), (4, 128, 1152), (4, 256, 1280), (4, 32, 96), (8, 32, 640), (8, 128, 256)]
"""Bits, block and terms."""
TILES = [t for t in costs.wgmma().float16 if t.cluster == 1 and t.n % 64 == 0]


def check(
    body: str,
    dtype: int,
    rows: tuple[int, ...],
    n: int,
    packing: Packing,
    zeros: str = "none",
    variant: GemmVariant | None = None,
    *,
    aligned: bool = True,
) -> None:
    """Two launches write the same to the last bit, and nothing beside their outputs; float32 keeps its digits."""
    fused, inputs = packed.case(body, dtype, rows, n, packing, zeros)
    fused = replace(fused, tf32=dtype != FLOAT)
    plan = cuda.plan(fused, shapes(inputs), aligned, cuda.arch_of(0), variant)
    sources, found = [DeviceBuffer(x.shape, x.dtype, aligned, x) for x in inputs], []
    for _ in range(2):
        results = [
            DeviceBuffer(s, ops.NUMPY[t], aligned) for s, t in zip(plan.output_shapes, fused.outputs, strict=True)
        ]
        launch(plan, [b.address for b in (*sources, *results)])
        cupy.cuda.Device(0).synchronize()
        found.append([b.read() for b in results])
    for first, second in zip(*found, strict=True):
        assert first.tobytes() == second.tobytes()
    ops.within_budget(fused, inputs, found[0], cuts=packing.terms // 8 if dtype == FLOAT else 0)


@pytest.mark.parametrize("zeros", packed.ZEROS)
@pytest.mark.parametrize(("bits", "block", "k"), FORMS)
@pytest.mark.parametrize("rows", [1, 11, 40, 300])
def test_every_form(bits: int, block: int, k: int, zeros: str, rows: int) -> None:
    """Few and many rows; columns that end within a tile."""
    check("biased", BRAIN if rows == 11 else HALF, (rows,), 200, Packing(bits, block, k), zeros)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("rows", [(1, 1), (2, 7), (3, 50)])
def test_every_body(body: str, rows: tuple[int, ...]) -> None:
    check(body, HALF, rows, 392, Packing(4, 32, 1408), "packed")


@pytest.mark.parametrize("strip", costs.PACKED_STRIPS, ids=str)
@pytest.mark.parametrize("rows", [1, 8, 16])
def test_every_strip(strip: Strip, rows: int) -> None:
    check("plain", HALF, (rows,), 1000, Packing(4, 32, 5632), "none", GemmVariant(strip=strip))


@pytest.mark.skipif(_gpu() is None and cuda.arch_of(0).isa.name != "sm_90a", reason="a kernel of Hopper's")
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_tile(tile: GemmTile) -> None:
    """One that has no registers beside the warpgroup that makes elements is refused."""
    fused, inputs = packed.case("residual", HALF, (300,), 520, Packing(4, 32, 704))
    try:
        cuda.plan(fused, shapes(inputs), True, cuda.arch_of(0), GemmVariant(tile=tile))
    except NoPlanError as error:
        pytest.skip(str(error))
    check("residual", HALF, (300,), 520, Packing(4, 32, 704), "packed", GemmVariant(tile=tile))


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize(
    ("bits", "block", "dtype"), [(4, 32, HALF), (8, 16, BRAIN), (2, 16, HALF), (4, 16, FLOAT), (8, 64, FLOAT)]
)
def test_every_form_by_warps(bits: int, block: int, dtype: int, aligned: bool) -> None:
    """The kernel for sm_80, which takes what the others do not."""
    block_of_warps = GemmVariant(block=Block(64, 128, 2, 4)) if aligned else None
    check("biased", dtype, (70,), 136, Packing(bits, block, 192), "packed", block_of_warps, aligned=aligned)


@pytest.mark.parametrize("rows", [1, 20])
def test_an_infinity_meets_the_numbers_as_they_are(rows: int) -> None:
    """Times a number of its zero point it is no number, times any other infinite; other rows do not see it."""
    fused, inputs = packed.case("plain", HALF, (rows,), 64, Packing(4, 32, 256))
    inputs[0][0, 70] = np.inf
    plan = cuda.plan(fused, shapes(inputs), True, cuda.arch_of(0))
    sources = [DeviceBuffer(x.shape, x.dtype, True, x) for x in inputs]
    result = DeviceBuffer((rows, 64), np.dtype(np.float16), True)
    launch(plan, [b.address for b in (*sources, result)])
    cupy.cuda.Device(0).synchronize()
    ops.within_budget(fused, inputs, [result.read()])
