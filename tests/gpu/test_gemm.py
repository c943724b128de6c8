"""Matrix products on a real GPU, through CuPy alone: every body, tile and odd size against float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxfuse import kernels
from onnxfuse.kernels import Tuning
from onnxfuse.kernels.plans import Tile
from onnxfuse.runtime.bridge import bridge
from tests.gpu.test_kernels import DeviceBuffer, _gpu
from tests.kernels import ops, products
from tests.kernels.ops import BRAIN, HALF
from tests.kernels.products import GELU, PLAIN, QKV, RESIDUAL, SEVERAL, SWIGLU, TRANSPOSED

cupy = pytest.importorskip("cupy", reason="needs CuPy")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_gpu() is not None, reason=_gpu() or "")]

BODIES = [PLAIN, GELU, TRANSPOSED, RESIDUAL, SWIGLU, QKV, SEVERAL]
SHAPES = [(64, 64, 1), (64, 128, 1), (128, 64, 1), (128, 64, 2), (128, 128, 1), (128, 128, 2), (128, 192, 1)]
TILES = [Tile(*shape) for shape in SHAPES]


def launch(plan, addresses):
    function = kernels.load(plan.kernel, 0)
    if plan.shared_bytes > 48 * 1024:
        function.max_dynamic_shared_size_bytes = plan.shared_bytes
    blobs = [bridge().encoded_tensor_maps(plan.tensor_maps, addresses)] if plan.tensor_maps else []
    by_value = [np.frombuffer(b, np.dtype((np.void, len(b)))) for b in (*blobs, plan.parameters)]
    function(plan.grid, plan.block, (*map(np.uint64, addresses), *by_value), shared_mem=plan.shared_bytes)


def check(text, dtype, rows, n, k, tile=None, aligned=True, times=1):
    """Fresh inputs, poisoned outputs between guards."""
    fused, shapes = products.case(text, dtype, rows, n, k)
    rng = np.random.default_rng(n * 7919 + k)
    inputs = [ops.random(rng, t, s) for t, s in zip(fused.inputs, shapes, strict=True)]
    for i in range(1, 1 + 3 * (text == QKV) + 2 * (text == SWIGLU) or 2):
        inputs[i] = (inputs[i].astype(np.float32) / max(k, 1) ** 0.5).astype(inputs[i].dtype)
    plan = kernels.plan(fused, tuple(shapes), aligned, kernels.arch_of(0), Tuning(tile=tile))
    sources = [DeviceBuffer(x.shape, x.dtype, aligned, x) for x in inputs]
    results = [DeviceBuffer(s, ops.NUMPY[t], aligned) for s, t in zip(plan.output_shapes, fused.outputs, strict=True)]
    for _ in range(times):
        launch(plan, [b.address for b in (*sources, *results)])
    cupy.cuda.Device(0).synchronize()
    ops.within_budget(fused, inputs, [r.read() for r in results])


@pytest.mark.parametrize("text", BODIES)
@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("size", [((1,), 8, 8), ((100,), 72, 40), ((3, 67), 264, 520), ((300,), 128, 64)])
def test_every_body_and_tile(text, dtype, tile, size):
    """Tiles that stick out on every side, one step and many, one block and several of a cluster."""
    if text == SWIGLU and tile.n >= 128:
        pytest.skip("a gate's two accumulators of this width do not fit the registers")
    check(text, dtype, *size, tile)


@pytest.mark.parametrize("text", [GELU, QKV, SWIGLU])
@pytest.mark.parametrize("size", [((1500,), 768, 256), ((2048,), 1024, 128)])
def test_blocks_that_take_many_tiles(text, size):
    """Both warpgroups in turns, the ring in many rounds, the plan's own tile; over and over."""
    check(text, HALF, *size, times=200)


@settings(max_examples=40)
@given(
    text=st.sampled_from(BODIES),
    rows=st.integers(1, 400),
    n=st.integers(1, 70).map(lambda i: 8 * i),
    k=st.integers(1, 70).map(lambda i: 8 * i),
    dtype=st.sampled_from([HALF, BRAIN]),
)
def test_any_size(text, rows, n, k, dtype):
    check(text, dtype, (rows,), n, k)


@pytest.mark.parametrize("text", BODIES)
@pytest.mark.parametrize("size", [((5,), 3, 7), ((65,), 200, 33)])
def test_the_plain_kernel(text, size):
    """Pointers off the boundary, sizes that are no multiples of 8."""
    check(text, HALF, *size, aligned=False)
