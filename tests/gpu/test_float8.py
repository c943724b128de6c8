"""float8 e4m3 on the GPU: rounded by its own instruction from sm_89 on, in kernels of elements, rows and products."""

import ml_dtypes
import numpy as np
import pytest

import onnxfuse
from bench.cases import ops
from onnxfuse import cuda
from onnxfuse.cuda.planning.arch import A100
from onnxfuse.cuda.templates.gemm import costs
from onnxfuse.cuda.templates.gemm.variant import Block, GemmTile, GemmVariant
from onnxfuse.verification import verify
from tests.emulator.test_float8 import (
    EIGHT,
    FLOAT,
    LAYER,
    MOST,
    SUMS,
    SW,
    SX,
    TILES,
    by_wgmma,
    close,
    drawn,
    exact,
    kept,
    layer_of,
    product_of,
    rounded,
)
from tests.gpu.test_gemm import launch
from tests.gpu.test_kernels import DeviceBuffer, _gpu
from tests.support.small import parse
from tests.unit.passes.quantization.test_modelopt import COLUMNS, TERMS, layer, runs_by_quotient

cupy = pytest.importorskip("cupy", reason="needs CuPy")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_gpu() is not None, reason=_gpu() or "")]

ELEMENTS = """g (float[N,64] x) => (float8e4m3fn[N,64] q, float[N,64] y) <float s = {0.5}, float8e4m3fn z = {0}> {
  a = Neg (x)
  q = QuantizeLinear (a, s, z)
  d = DequantizeLinear (q, s, z)
  y = Relu (d)
}"""
NORM = """g (float16[N,64] x, float16[64] w) => (float16[N,64] y) <float16 s = {9503}, float8e4m3fn z = {0}> {
  a = LayerNormalization <axis = -1> (x, w)
  q = QuantizeLinear (a, s, z)
  d = DequantizeLinear (q, s, z)
  y = Neg (d)
}"""


def test_values_are_rounded_as_the_cpu_does() -> None:
    """All sizes, beside and in the middle of two numbers, what saturates, infinities, and what is no number."""
    every = np.sort(np.arange(0x7F, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)) / 2
    middle = (every[1:] + every[:-1]) / 2
    x = np.concatenate([every, middle, np.nextafter(middle, np.float32(np.inf)), [300, 1e30, np.inf, np.nan, 1e-30, 0]])
    x = np.resize(np.concatenate([x, -x]), (16, 64)).astype(np.float32)
    model = parse(ELEMENTS, 21)
    made = onnxfuse.optimize(model)
    session = onnxfuse.session(made, ["CUDAExecutionProvider", "CPUExecutionProvider"], wait_for_kernels=True)
    (y,) = session.run(["y"], {"x": x})
    steps = np.clip(-x / np.float32(0.5), -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    wanted = np.maximum(steps * np.float32(0.5), 0)
    np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize("text", [ELEMENTS, NORM], ids=["elements", "a norm"])
def test_kernels_give_what_the_model_gives(text: str) -> None:
    model = parse(text, 21)
    made = onnxfuse.optimize(model)
    report = verify(model, made, providers=["CPUExecutionProvider"], fused_providers=["CUDAExecutionProvider"])
    assert report.ok, report


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_layers_of_modelopt(dtype: type[np.floating], stored: bool) -> None:
    """By either quotient of QuantizeLinear, which stays ONNX Runtime's here: of its CPU or its CUDA provider."""
    model = layer(dtype, float8=True, stored=stored)
    made = onnxfuse.optimize(model)
    x = (np.random.default_rng(1).standard_normal((33, TERMS)) * 2).astype(dtype)
    session = onnxfuse.session(made, ["CUDAExecutionProvider", "CPUExecutionProvider"], wait_for_kernels=True)
    (y,) = session.run(None, {"x": x})
    assert y.shape == (33, COLUMNS)
    either = [wanted.astype(np.float64) for wanted in runs_by_quotient(model, x)]
    assert min(np.abs(y.astype(np.float64) - wanted).max() / np.abs(wanted).max() for wanted in either) <= 4e-3


# ---- products


def check(
    text: str, real: int, to: int, sizes: tuple[tuple[int, ...], int, int], variant: GemmTile | Block | None = None
) -> None:
    """Assert that a kernel gives the sums of a product in float64, and what stands after them."""
    inputs = drawn(*sizes)[: 2 + text.count(", c") + text.count(", r")]
    inputs[2:] = [x.astype(ops.NUMPY[real]) for x in inputs[2:]]
    fused, shapes = product_of(text, real, inputs, to)
    tuning = GemmVariant(tile=variant) if isinstance(variant, GemmTile) else GemmVariant(block=variant)
    plan = cuda.plan(fused, shapes, True, cuda.arch_of(0), tuning)
    if isinstance(variant, GemmTile):
        assert by_wgmma(plan)
    sources = [DeviceBuffer(x.shape, x.dtype, True, x) for x in inputs]
    result = DeviceBuffer(plan.output_shapes[0], np.dtype(ops.NUMPY[to]), True)
    launch(plan, [b.address for b in (*sources, result)])
    cupy.cuda.Device(0).synchronize()
    sums = exact(inputs[0], inputs[1], SX * SW)
    if to == EIGHT:
        rounded(result.read(), layer_of(sums, *inputs[2:]), sums)
    else:
        close(result.read(), sums, 2.0**-11)


SIZES = [((1000,), 1296, 784), ((200,), 320, 16), ((2048,), 768, 3072)]
hopper = pytest.mark.skipif(_gpu() is not None or cuda.arch_of(0).name != "sm_90a", reason="needs a Hopper GPU")


@hopper
@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_every_tile_promotes_its_sums(tile: GemmTile, sizes: tuple[tuple[int, ...], int, int]) -> None:
    rows, n, k = sizes
    check(SUMS, FLOAT, FLOAT, (rows, n if tile.n >= 64 else 16, k), tile)


@hopper
@pytest.mark.parametrize("terms", [16, 128, 768, 3072])
@pytest.mark.parametrize("positive", [False, True])
def test_sums_keep_the_bits_that_verify_expects(terms: int, positive: bool) -> None:
    """The budget of `verify` is twice what `kept_sums` loses: the tensor cores lose as much, and no more than that."""
    x, w, *_ = inputs = drawn((200,), 64, terms)
    if positive:
        x[...], w[...] = (np.abs(a.astype(np.float32)).astype(a.dtype) for a in (x, w))
    fused, shapes = product_of(SUMS, FLOAT, inputs[:2], FLOAT)
    plan = cuda.plan(fused, shapes, True, cuda.arch_of(0), GemmVariant(tile=GemmTile(64, 64, 1)))
    sources = [DeviceBuffer(a.shape, a.dtype, True, a) for a in inputs[:2]]
    result = DeviceBuffer(plan.output_shapes[0], np.dtype(np.float32), True)
    launch(plan, [b.address for b in (*sources, result)])
    cupy.cuda.Device(0).synchronize()
    wanted = exact(x, w, SX * SW)
    lost, expected = np.abs(result.read() - wanted).max(), np.abs(kept(x, w, SX * SW) - wanted).max()
    assert by_wgmma(plan)
    assert expected / 4 < lost < 1.5 * expected


@hopper
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_tile_finishes_a_layer(tile: GemmTile) -> None:
    """Bias, activation, residual and the next QuantizeLinear."""
    check(LAYER, FLOAT, EIGHT, ((1000,), 1296 if tile.n >= 64 else 16, 784), tile)


@hopper
@pytest.mark.parametrize("tile", costs.wgmma().split, ids=str)
def test_blocks_share_the_terms(tile: GemmTile) -> None:
    check(SUMS, FLOAT, FLOAT, ((128,), 768, 3072), tile)


@pytest.mark.parametrize("block", costs.mma(A100).rounded, ids=str)
def test_every_block_gives_the_sums(block: Block) -> None:
    for sizes in SIZES:
        check(SUMS, FLOAT, FLOAT, sizes, block)


@pytest.mark.parametrize("rows", [1, 7, 128, 1000])
def test_layers_of_any_number_of_rows(rows: int) -> None:
    check(LAYER, FLOAT, EIGHT, ((rows,), 768, 768))


def test_no_number_and_saturated_ones_pass_through() -> None:
    x, w, *_ = inputs = drawn((300,), 64, 256)
    x[3, 5] = np.nan
    w[7] = MOST
    fused, shapes = product_of(SUMS, FLOAT, inputs[:2], FLOAT)
    plan = cuda.plan(fused, shapes, True, cuda.arch_of(0))
    sources = [DeviceBuffer(a.shape, a.dtype, True, a) for a in inputs[:2]]
    result = DeviceBuffer(plan.output_shapes[0], np.dtype(np.float32), True)
    launch(plan, [b.address for b in (*sources, result)])
    cupy.cuda.Device(0).synchronize()
    got = result.read()
    assert np.isnan(got[3]).all()
    close(np.delete(got, 3, 0), np.delete(exact(x, w, SX * SW), 3, 0), 2.0**-11)
