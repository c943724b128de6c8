"""Products of float32 that keeps its digits, on a real GPU: no further from float64 than float32 itself."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

import onnxfuse
from bench.cases import ops, products
from bench.cases.images import PLAIN as PLAIN_IMAGES
from bench.cases.images import RESIDUAL as RESIDUAL_IMAGES
from bench.cases.images import SILU
from bench.cases.ops import FLOAT
from bench.cases.products import QKV, RESIDUAL, SWIGLU, TRANSPOSED, TRANSPOSED_GELU
from onnxfuse import cuda, runtime
from onnxfuse.cuda.isa.factors import SPLIT_FLOAT32
from onnxfuse.cuda.planning.arch import A100
from onnxfuse.cuda.templates.gemm import costs
from onnxfuse.cuda.templates.gemm.variant import Block, GemmTile, GemmVariant
from onnxfuse.model.fused import FusedOp
from tests.gpu.test_gemm import launch
from tests.gpu.test_kernels import DeviceBuffer, _gpu
from tests.support.kernels.windows import Case

cupy = pytest.importorskip("cupy", reason="needs CuPy")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_gpu() is not None, reason=_gpu() or "")]

VARIANTS = [*costs.wgmma().exact, *costs.wgmma().split[:2], *costs.mma(A100).exact]
GATE = SWIGLU.replace("MatMul(x, g)", "Gemm <transB = 1> (x, g)").replace("MatMul(x, u)", "Gemm <transB = 1> (x, u)")


def computed(
    fused: FusedOp, inputs: Sequence[np.ndarray], variant: GemmTile | Block | None, aligned: bool = True
) -> list[np.ndarray]:
    """Return the outputs by a tile, a block or the plan's own choice."""
    arch, fused = cuda.arch_of(0), replace(fused, tf32=False)
    tuning = None
    if variant is not None:
        tuning = GemmVariant(block=variant) if isinstance(variant, Block) else GemmVariant(tile=variant)
    plan = cuda.plan(fused, tuple(x.shape for x in inputs), aligned, arch, tuning)
    if isinstance(variant, GemmTile) and arch.isa.wgmma(SPLIT_FLOAT32):
        assert "wgmma" in plan.kernel.text
    sources = [DeviceBuffer(x.shape, x.dtype, aligned, x) for x in inputs]
    results = [DeviceBuffer(s, ops.NUMPY[t], aligned) for s, t in zip(plan.output_shapes, fused.outputs, strict=True)]
    launch(plan, [b.address for b in (*sources, *results)])
    cupy.cuda.Device(0).synchronize()
    return [r.read() for r in results]


def check(
    fused: FusedOp, shapes: Sequence[tuple[int, ...]], variant: GemmTile | Block | None = None, aligned: bool = True
) -> None:
    """Fresh inputs, against the body: within what float32 itself may be off."""
    rng = np.random.default_rng(sum(map(sum, shapes)))
    inputs = [ops.random(rng, t, s) for t, s in zip(fused.inputs, shapes, strict=True)]
    ops.within_budget(fused, inputs, computed(fused, inputs, variant, aligned))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("size", [((1,), 8, 8), ((100,), 72, 40), ((3, 167), 264, 520), ((1500,), 768, 256)])
def test_every_variant(variant: GemmTile | Block, size: tuple[tuple[int, ...], int, int]) -> None:
    for text in (TRANSPOSED, TRANSPOSED_GELU):
        check(*products.case(text, FLOAT, *size), variant)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_variant_of_a_convolution(variant: GemmTile | Block) -> None:
    for images, filters, window, more in (
        ((2, 14, 14, 64), 64, (3, 3), "pads = [1, 1, 1, 1]"), ((3, 9, 7, 40), 136, (1, 1), ""),
        ((2, 15, 13, 32), 24, (3, 2), "strides = [2, 3], pads = [0, 1, 2, 1]"),
    ):  # fmt: skip
        check(*products.window(FLOAT, images, filters, window, more), variant)


@pytest.mark.parametrize("aligned", [True, False])
def test_bodies_layouts_and_odd_sizes(aligned: bool) -> None:
    for text in (RESIDUAL, SWIGLU, QKV):
        check(*products.case(text, FLOAT, (67,), 72, 200), aligned=aligned)
        check(*products.case(text, FLOAT, (5,), 33, 27), aligned=aligned)
    for name in ("batched, odd", "both turned, odd", "by tokens, odd", "written head by head", "no terms"):
        check(*products.table(name, FLOAT), aligned=aligned)
    check(*products.prologue("silu and gate", FLOAT, 70, 72, 200), aligned=aligned)


@pytest.mark.parametrize("tile", [t for t in costs.wgmma().exact if t.n == 128], ids=str)
def test_a_gate_on_hopper(tile: GemmTile) -> None:
    fused = ops.op(GATE, (FLOAT,) * 3, (FLOAT,), "gemm")
    check(fused, [(300, 96), (320, 96), (320, 96)], replace(tile, n=tile.n // 2))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("terms", [64, 576, 4608])
@pytest.mark.parametrize("positive", [True, False])
def test_long_sums_do_not_lean_towards_zero(variant: GemmTile | Block, terms: int, positive: bool) -> None:
    """As near to float64 as sums in float32, of one term after the other, beside the sum of the terms' magnitudes."""
    rng = np.random.default_rng(terms)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((300, terms), (264, terms)))
    if positive:
        x, w = np.abs(x), np.abs(w)
    fused, _ = products.case(TRANSPOSED, FLOAT, (300,), 264, terms)
    (mine,) = computed(fused, [x, w, np.zeros(264, np.float32)], variant)
    usual = np.zeros((len(x), len(w)), np.float32)
    for one, other in zip(x.T, w.T, strict=True):
        usual += np.outer(one, other)
    exact, size = x.astype(np.float64) @ w.T.astype(np.float64), np.abs(x).astype(np.float64) @ np.abs(w).T
    error, own = (np.abs(y - exact) / size for y in (mine, usual))
    assert error.max() <= max(own.max(), 2.0**-21), (error.max(), own.max())
    assert np.sqrt(np.mean(error**2)) <= max(np.sqrt(np.mean(own**2)), 2.0**-23)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_what_is_not_finite_is_so_as_in_float32(variant: GemmTile | Block) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((130, 96), (136, 96)))
    greatest = np.finfo(np.float32).max
    x[1, 3], x[2, 40], x[3, 5], x[4, 70], x[4, 71] = np.inf, -np.inf, np.nan, np.inf, -np.inf
    x[5, 8], x[6, 9], x[7, 10] = greatest, -greatest, np.inf
    w[:4, 8], w[4:8, 8], w[:4, 10] = 0.5, 2.0, 0.0
    w[12, 20], x[8, 20], x[9, 20] = np.inf, 0.0, np.inf
    with np.errstate(all="ignore"):
        want = np.add.accumulate(x[:, None] * w[None], axis=-1, dtype=np.float32)[..., -1]
    fused, _ = products.case(TRANSPOSED, FLOAT, (130,), 136, 96)
    (got,) = computed(fused, [x, w, np.zeros(136, np.float32)], variant)
    ops.alike_where_not_finite(got, want)
    np.testing.assert_allclose(got[np.isfinite(want)], want[np.isfinite(want)], rtol=1e-5, atol=1e-5)


NET = """<ir_version: 8, opset_import: ["" : 20]>
g (float[N,3,32,32] x) => (float[N,64] y) {
  a = Conv <pads = [1,1,1,1]> (x, k0)  b = Relu (a)
  c = Conv <pads = [1,1,1,1], strides = [2,2]> (b, k1)  d = Relu (c)
  e = Conv (d, k2)  f = Add (e, d)  h = Relu (f)
  m = GlobalAveragePool (h)  v = Flatten (m)
  p = Gemm <transB = 1> (v, w0, b0)  q = Gelu (p)
  y = Gemm <transB = 1> (q, w1, b1)
}"""
WEIGHTS = {
    "k0": (64, 3, 3, 3), "k1": (64, 64, 3, 3), "k2": (64, 64, 1, 1), "w0": (256, 64), "b0": (256,), "w1": (64, 256),
    "b1": (64,),
}  # fmt: skip


def net() -> onnx.ModelProto:
    model, rng = onnx.parser.parse_model(NET), np.random.default_rng(0)
    for name, shape in WEIGHTS.items():
        weight = (rng.standard_normal(shape) / np.prod(shape[1:]) ** 0.5).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return model


def test_a_strict_model_holds_the_budget_of_float32() -> None:
    """By the kernels: its error is held to float32's own, not to that of rounded factors."""
    original = net()
    fused = onnxfuse.optimize(original, strict_fp32=True)
    report = onnxfuse.verify(original, fused, shapes={"x": (4, 3, 32, 32)}, providers=["CUDAExecutionProvider"])
    assert (report.ok, report.tf32) == (True, False), report.summary
    assert report.without_tf32


def test_a_session_without_tf32_runs_the_kernels_of_any_file() -> None:
    """Made without --strict-fp32: no body, no rounded factor."""
    original = net()
    fused = onnxfuse.optimize(original)
    session = runtime.session(fused, [("CUDAExecutionProvider", {"use_tf32": "0"}), "CPUExecutionProvider"])
    products_ = [p for p in session.fused if "gemm" in p.rule]
    assert products_
    assert {p.runs_as for p in products_} == {"kernel"}
    report = onnxfuse.verify(
        original, fused, shapes={"x": (4, 3, 32, 32)}, providers=["CUDAExecutionProvider"], use_tf32=False
    )
    assert (report.ok, report.tf32) == (True, False), report.summary


# ---- convolutions of few channels


STEM = Case(SILU, FLOAT, False, 3, 3, 64, (61, 59), (7, 7), strides=(2, 2), pads=(3, 3, 3, 3))
GROUPS = Case(SILU, FLOAT, True, 3, 16, 16, (29, 28), (3, 3), groups=6, pads=(1, 1, 1, 1))


def convolved(case: Any, inputs: Sequence[np.ndarray], aligned: bool = True) -> list[np.ndarray]:
    """Return the outputs by the kernel, which keeps the digits."""
    return computed(case.op(), inputs, None, aligned)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("text", [SILU, RESIDUAL_IMAGES])
@pytest.mark.parametrize(
    "case",
    [
        STEM, replace(STEM, kernel=(3, 3), filters=32, pads=(0, 0, 1, 1)), replace(STEM, kernel=(4, 4), strides=(4, 4)),
        replace(STEM, kernel=(3, 3), strides=(1, 1), pads=(1, 1, 1, 1)), GROUPS,
        replace(GROUPS, channels=7, filters=9, strides=(2, 1)),
    ],
)  # fmt: skip
def test_convolutions_of_few_channels(case: Case, text: str, aligned: bool) -> None:
    case = replace(case, text=text)
    rng, fused = np.random.default_rng(0), case.op()
    inputs = [ops.random(rng, t, s) for t, s in zip(fused.inputs, case.shapes(), strict=True)]
    inputs[1] = (inputs[1] * (case.channels * np.prod(case.kernel)) ** -0.5).astype(np.float32)
    ops.within_budget(fused, inputs, convolved(case, inputs, aligned))


@pytest.mark.parametrize("case", [STEM, GROUPS])
def test_what_is_not_finite_stays_where_few_channels_see_it(case: Case) -> None:
    case, rng = replace(case, text=PLAIN_IMAGES), np.random.default_rng(0)
    inputs = [ops.random(rng, FLOAT, s) for s in case.shapes()]
    inputs[0].reshape(-1)[[5, 777, 3001, 4020]] = np.inf, -np.inf, np.nan, np.finfo(np.float32).max
    with np.errstate(all="ignore"):
        got, want = convolved(case, inputs)[0], ops.unfused(case.op(), inputs)[0]
    ops.alike_where_not_finite(got, want)
