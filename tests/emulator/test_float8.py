"""float8 e4m3 in kernels: how it is read, rounded and written, by the software of GPUs before Ada."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, numpy_helper

from bench.cases import ops
from onnxfuse import cuda
from onnxfuse.authoring.rules import example_model
from onnxfuse.cuda.build import nvrtc
from onnxfuse.cuda.planning.arch import A100, H200, L4, RTX5090, SUPPORTED, Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.templates.gemm import plan as gemm
from onnxfuse.cuda.templates.gemm.variant import GemmTile, GemmVariant
from onnxfuse.model.fused import FusedOp, fused_ops
from onnxfuse.passes import pipeline
from onnxfuse.rules.language import rule_file
from onnxfuse.support.errors import KernelError
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.verification.reference.float8_sums import kept_sums
from onnxfuse.verification.reference.float64_reference import as_tf32, reference_for
from onnxfuse.verification.tolerance import error_budget
from tests.emulator import emulate
from tests.support import small

FLOAT, HALF, EIGHT = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.FLOAT8E4M3FN
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
MOST = 448.0


def run(text: str, x: np.ndarray, to: int) -> np.ndarray:
    """Return what a kernel computes of one input."""
    given = {np.dtype(np.float32): FLOAT, np.dtype(np.float16): HALF, E4M3: EIGHT}[x.dtype]
    plan = cuda.plan(ops.op(f"(x) => (y) {{ {text} }}", (given,), (to,), "pointwise"), (x.shape,), True, H200)
    return emulate.run(plan, [x], [E4M3 if to == EIGHT else ops.NUMPY[to]])[0]


def test_every_byte_is_read_as_its_number() -> None:
    every = np.arange(256, dtype=np.uint8).view(E4M3)
    for to in (FLOAT, HALF):
        got = run(f"y = Cast <to = {to}> (x)", every, to)
        np.testing.assert_array_equal(got.astype(np.float32), every.astype(np.float32))


def test_numbers_are_rounded_to_nearest_even_and_saturate() -> None:
    """Of all sizes, the middle of each two numbers and what is beside it; infinities become the greatest number."""
    every = np.sort(np.arange(0x7F, dtype=np.uint8).view(E4M3).astype(np.float32))
    middle = (every[1:] + every[:-1]) / 2
    beside = [np.nextafter(middle, np.float32(way)) for way in (-np.inf, np.inf)]
    random = np.exp2(np.random.default_rng(0).uniform(-14, 10, 2000)).astype(np.float32)
    x = np.concatenate([every, middle, *beside, random, [449, 463.9, 464, 465, 1e30, np.inf, 1e-30, 0]])
    x = np.concatenate([x, -x]).astype(np.float32)
    got = run(f"y = Cast <to = {EIGHT}> (x)", x, EIGHT)
    np.testing.assert_array_equal(got.view(np.uint8), np.clip(x, -MOST, MOST).astype(E4M3).view(np.uint8))
    assert (np.abs(got.astype(np.float32)) <= MOST).all()


def test_no_number_stays_none() -> None:
    got = run(f"y = Cast <to = {EIGHT}> (x)", np.full(32, np.nan, np.float32), EIGHT)
    assert np.isnan(got.astype(np.float32)).all()


@pytest.mark.parametrize("real", [FLOAT, HALF])
def test_values_between_are_rounded(real: int) -> None:
    """QuantizeLinear and DequantizeLinear in one kernel: the value has three bits of mantissa."""
    x = (np.random.default_rng(0).standard_normal((33, 64)) * 3).astype(ops.NUMPY[real])
    name = "float {0.02}" if real == FLOAT else "float16 {9503}"
    scale = np.float32(0.02) if real == FLOAT else np.uint16(9503).view(np.float16)
    text = f"""s = Constant <value = {name}> () q = QuantizeLinear <output_dtype = {EIGHT}> (x, s)
      d = DequantizeLinear (q, s) y = Neg (d)"""
    steps = np.clip(x.astype(np.float32) / np.float32(scale), -MOST, MOST).astype(E4M3)
    wanted = -(steps.astype(np.float32) * np.float32(scale)).astype(ops.NUMPY[real])
    np.testing.assert_array_equal(run(text, x, real), wanted)
    assert len(np.unique(wanted)) < 200


REFUSED = {
    "QuantizeLinear <output_dtype = 17, saturate = 0> (x, s)": "does not saturate",
    "QuantizeLinear <output_dtype = 19> (x, s)": "no integers",
    "Cast <to = 17, saturate = 0> (x)": "does not saturate",
    "Cast <to = 19> (x)": "FLOAT8E5M2",
}


@pytest.mark.parametrize("node", REFUSED)
def test_other_float8_is_refused(node: str) -> None:
    text = f"(x) => (y) {{ s = Constant <value = float {{0.5}}> () q = {node} y = Cast <to = 1> (q) }}"
    with pytest.raises(KernelError, match=REFUSED[node]):
        cuda.plan(ops.op(text, (FLOAT,), (FLOAT,), "pointwise"), ((4, 8),), True, H200)


@pytest.mark.parametrize("arch", {a.name: a for a in SUPPORTED}.values(), ids=lambda a: a.name)
def test_the_kernels_compile_for_each_gpu(arch: Arch) -> None:
    text = "(x) => (y) { s = Constant <value = float {0.5}> () y = QuantizeLinear <output_dtype = 17> (x, s) }"
    plan = cuda.plan(ops.op(text, (FLOAT,), (EIGHT,), "pointwise"), ((64, 64),), True, arch)
    nvrtc.compile(plan.kernel, arch)


# ---- products

SX, SW, SO = 0.02, 0.03, 0.05
STEP = 0.5
FLOAT32 = 2.0**-20
"""What float32 loses of such sums, of the greatest one: a few roundings for each step of 128 terms."""
FACTORS = """one = Constant <value = float {1.0}> () a = DequantizeLinear (x, one) t = Cast <to = 1> (w)
  b = Transpose <perm = [1, 0]> (t) m = MatMul (a, b)"""
SUMS = f"""(x, w) => (y) {{ {FACTORS} s = Constant <value = float {{{SX * SW}}}> () y = Mul (m, s) }}"""
LAYER = f"""(x, w, c, r) => (q) {{ {FACTORS} s = Constant <value = float {{{SX * SW}}}> () v = Mul (m, s)
  so = Constant <value = float {{{SO}}}> () d = Add (v, c) e = Relu (d) f = Add (e, r)
  q = QuantizeLinear <output_dtype = {EIGHT}> (f, so) }}"""
HALVES = f"""(x, w, c) => (y) {{ {FACTORS} s = Constant <value = float {{{SX * SW}}}> () v = Mul (m, s)
  h = Cast <to = 10> (v) y = Add (h, c) }}"""


def drawn(rows: tuple[int, ...], n: int, k: int) -> list[np.ndarray]:
    """Return activations, a weight [n, k], a bias, and a residual."""
    rng = np.random.default_rng(0)
    x, w = (np.clip(rng.standard_normal(s) * 60, -MOST, MOST).astype(E4M3) for s in ((*rows, k), (n, k)))
    return [x, w, rng.standard_normal(n).astype(np.float32), rng.standard_normal((*rows, n)).astype(np.float32)]


def exact(x: np.ndarray, w: np.ndarray, scale: float) -> np.ndarray:
    return x.astype(np.float64) @ w.astype(np.float64).T * scale


def kept(x: np.ndarray, w: np.ndarray, scale: float) -> np.ndarray:
    """Return the same of sums as Hopper's tensor cores keep them."""
    rows = x.reshape(-1, x.shape[-1]).astype(np.float64)
    return kept_sums(rows, w.T.astype(np.float64)).reshape(*x.shape[:-1], -1) * scale


def by_wgmma(plan: LaunchPlan) -> bool:
    return "k32.f32.e4m3.e4m3 " in plan.kernel.text


def product_of(text: str, real: int, inputs: list[np.ndarray], to: int) -> tuple[FusedOp, tuple[tuple[int, ...], ...]]:
    types = (EIGHT, EIGHT, *(real,) * (len(inputs) - 2))
    return ops.op(text, types, (to,), "gemm"), tuple(x.shape for x in inputs)


def close(got: np.ndarray, wanted: np.ndarray, bound: float) -> None:
    """Assert that sums differ by no more than `bound` of the greatest one."""
    assert np.abs(got.astype(np.float64) - wanted).max() <= bound * np.abs(wanted).max()


def layer_of(sums: np.ndarray, c: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Return the steps that LAYER rounds to float8, by the sums of its product."""
    return np.clip((np.maximum(sums + c, 0) + r) / SO, -MOST, MOST)


def rounded(got: np.ndarray, steps: np.ndarray, sums: np.ndarray) -> None:
    """Assert that numbers of float8 are the nearest ones to these, up to what the sums may have lost."""
    spacing = np.exp2(np.maximum(np.floor(np.log2(np.maximum(np.abs(steps), 2.0**-9))), -6) - 3)
    lost = 2.0**-11 * np.abs(sums).max() / SO
    assert (np.abs(got.astype(np.float64) - steps) <= spacing / 2 + lost).all()
    assert (got.view(np.uint8) == steps.astype(E4M3).view(np.uint8)).mean() > 0.95
    assert len(np.unique(got.view(np.uint8))) > 50


def _tiles(columns: int) -> list[GemmTile]:
    fused = ops.op(SUMS, (EIGHT, EIGHT), (FLOAT,), "gemm")
    return gemm.tiles(fused, ((4096, 1024), (columns, 1024)))


TILES = [*(t for t in _tiles(1296) if t.n >= 64), *(t for t in _tiles(16) if t.n < 64)]


@pytest.mark.parametrize("arch", [A100, H200], ids=lambda arch: arch.name)
@pytest.mark.parametrize(("rows", "n", "k"), [((70,), 64, 128), ((2, 33), 48, 400), ((5,), 16, 16), ((1,), 24, 272)])
def test_products_give_their_sums(rows: tuple[int, ...], n: int, k: int, arch: Arch) -> None:
    x, w, *_ = inputs = drawn(rows, n, k)
    fused, shapes = product_of(SUMS, FLOAT, inputs[:2], FLOAT)
    plan = cuda.plan(fused, shapes, True, arch)
    (got,) = emulate.run(plan, inputs[:2], [np.float32])
    close(got, (kept if by_wgmma(plan) else exact)(x, w, SX * SW), FLOAT32)


@pytest.mark.parametrize("arch", [A100, H200], ids=lambda arch: arch.name)
def test_a_layer_reads_and_writes_8_bits(arch: Arch) -> None:
    """Bias, activation, residual and the next QuantizeLinear."""
    x, w, c, r = inputs = drawn((70,), 64, 400)
    fused, shapes = product_of(LAYER, FLOAT, inputs, EIGHT)
    (got,) = emulate.run(cuda.plan(fused, shapes, True, arch), inputs, [E4M3])
    sums = exact(x, w, SX * SW)
    rounded(got, layer_of(sums, c, r), sums)


def test_float16_models_have_the_same_products() -> None:
    """Factors are not rounded to float16; scaled sums are."""
    x, w, c, _ = drawn((70,), 64, 400)
    inputs = [x, w, c.astype(np.float16)]
    fused, shapes = product_of(HALVES, HALF, inputs, HALF)
    (got,) = emulate.run(cuda.plan(fused, shapes, True, H200), inputs, [np.float16])
    close(got, exact(x, w, SX * SW) + inputs[2], 2.0**-10)


@pytest.mark.parametrize("tile", TILES[::6], ids=str)
def test_tiles_promote_their_sums(tile: GemmTile) -> None:
    """Of 656 terms the sums of 14 bits alone are off by three times as much."""
    x, w, *_ = inputs = drawn((150,), 2 * tile.n if tile.n >= 64 else 16, 656)
    x[...], w[...] = np.abs(x.astype(np.float32)).astype(E4M3), np.abs(w.astype(np.float32)).astype(E4M3)
    fused, shapes = product_of(SUMS, FLOAT, inputs[:2], FLOAT)
    plan = cuda.plan(fused, shapes, True, H200, GemmVariant(tile=tile))
    (got,) = emulate.run(plan, inputs[:2], [np.float32])
    wanted = exact(x, w, SX * SW)
    close(got, kept(x, w, SX * SW), FLOAT32)
    alone = kept_sums(x.astype(np.float64), w.astype(np.float64).T, promoted_after=656) * SX * SW
    assert np.abs(alone - wanted).max() > 3 * np.abs(got - wanted).max()


def test_no_number_and_saturated_ones_pass_through() -> None:
    x, w, *_ = inputs = drawn((20,), 16, 64)
    x[3, 5] = np.nan
    w[7] = MOST
    fused, shapes = product_of(SUMS, FLOAT, inputs[:2], FLOAT)
    for arch in (A100, H200):
        (got,) = emulate.run(cuda.plan(fused, shapes, True, arch), inputs[:2], [np.float32])
        assert np.isnan(got[3]).all()
        assert np.isfinite(np.delete(got, 3, 0)).all()


@pytest.mark.parametrize("arch", [A100, L4, H200], ids=lambda arch: arch.name)
def test_products_compile(arch: Arch) -> None:
    inputs = drawn((512,), 768, 768)
    fused, shapes = product_of(LAYER, FLOAT, inputs, EIGHT)
    plan = cuda.plan(fused, shapes, True, arch)
    assert by_wgmma(plan) == (arch is H200)
    cubin, log = nvrtc.build(plan.kernel, arch, ("-Xptxas=-v",))
    assert cubin
    assert "0 bytes spill stores" in log
    assert "serialized" not in log


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_tile_compiles_for_hopper(tile: GemmTile) -> None:
    inputs = drawn((1024,), 1280 if tile.n >= 64 else 16, 512)
    fused, shapes = product_of(SUMS, FLOAT, inputs[:2], FLOAT)
    cubin, log = nvrtc.build(cuda.plan(fused, shapes, True, H200, GemmVariant(tile=tile)).kernel, H200, ("-Xptxas=-v",))
    assert cubin
    assert "serialized" not in log
    assert "0 bytes spill stores" in log


def test_the_general_kernel_gives_the_same() -> None:
    x, w, *_ = inputs = drawn((5,), 16, 48)
    fused, shapes = product_of(SUMS, FLOAT, inputs[:2], FLOAT)
    (got,) = emulate.run(cuda.general(fused, shapes, A100), inputs[:2], [np.float32])
    close(got, exact(x, w, SX * SW), FLOAT32)


@pytest.mark.parametrize("arch", [A100, L4, H200, RTX5090], ids=lambda arch: arch.name)
def test_where_float32_is_strict_sums_keep_its_bits(arch: Arch) -> None:
    """By products of float16; where mma.sync multiplies float8 itself, the general kernel is left."""
    x, w, *_ = inputs = drawn((150,), 64, 656)
    fused, shapes = product_of(SUMS, FLOAT, inputs[:2], FLOAT)
    strict = replace(fused, tf32=False)
    if arch in (L4, RTX5090):
        with pytest.raises(UnsupportedError, match="sums of 14 bits, and use_tf32 is 0"):
            gemm.plan(strict, shapes, True, arch)
        return
    plan = cuda.plan(strict, shapes, True, arch)
    assert not by_wgmma(plan)
    (got,) = emulate.run(plan, inputs[:2], [np.float32])
    close(got, exact(x, w, SX * SW), FLOAT32)


def test_verify_allows_what_the_sums_lose_and_no_wrong_weight() -> None:
    """The rule's own example, of 16 terms whose factors TF32 holds: the sums alone are off, by 100 times the budget."""
    rule = next(r for r in rule_file.shipped() if r.name == "float8_product")
    model, made = (example_model(rule, rule.examples[0].text) for _ in range(2))
    pipeline.run(made, [rule])
    ((fused, node),) = [(op, n) for op in fused_ops(made).values() for n in made.graph.node if n.op_type == op.name]
    x = np.random.default_rng(0).standard_normal((40, 16)).astype(np.float32)
    constants = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
    q = np.clip(x / constants["sx"], -MOST, MOST).astype(E4M3)
    inputs = [constants.get(name, q) for name in node.input]
    plan = cuda.plan(fused, tuple(a.shape for a in inputs), True, H200)
    assert by_wgmma(plan)
    (original,), (wanted,) = small.run(model, {"x": x}), reference_for(model, "auto", []).evaluate({"x": x}).values()
    (rounded_run,) = as_tf32(model)({"x": x}).values()
    runs = [original, rounded_run.astype(np.float32)]
    (got,) = emulate.run(plan, inputs, [np.float32])
    assert error_budget.measure(got, runs[:1], wanted).severity > 100
    assert 0.4 < error_budget.measure(got, runs, wanted).severity <= 1
    inputs[1] = inputs[1].copy()
    inputs[1][3, 5] = np.float32(inputs[1][3, 5]) * 1.125  # a step of float8
    (wrong,) = emulate.run(plan, inputs, [np.float32])
    assert error_budget.measure(wrong, runs, wanted).severity > 10


def test_other_steps_of_float8_are_those_of_the_sums() -> None:
    """Of 1000 values more than one is so close to the middle of two steps: verify knows which ones, and no others."""
    x, w, *_ = inputs = drawn((150,), 64, 656)
    text = f"""(x, w) => (q) {{ {FACTORS} s = Constant <value = float {{{SX * SW}}}> () v = Mul (m, s)
      so = Constant <value = float {{{STEP}}}> () q = QuantizeLinear <output_dtype = {EIGHT}> (v, so) }}"""
    fused, shapes = product_of(text, FLOAT, inputs[:2], EIGHT)
    plan = cuda.plan(fused, shapes, True, H200)
    assert by_wgmma(plan)
    (codes,) = emulate.run(plan, inputs[:2], [E4M3])
    numbers = [(sums / STEP).astype(E4M3) for sums in (exact(x, w, SX * SW), kept(x, w, SX * SW))]
    got, original, rounded_run = (n.astype(np.float32) * np.float32(STEP) for n in (codes, *numbers))

    def broken(fused_values: np.ndarray, runs: list[np.ndarray]) -> str:
        return error_budget.measure(fused_values, runs, original.astype(np.float64), float8=STEP).broken

    assert "rounded to another step" in broken(got, [original])
    assert not broken(got, [original, rounded_run])
    wrong = codes.view(np.uint8).copy()
    wrong[::10] ^= 1  # another step in every tenth row
    wrong_values = wrong.view(E4M3).astype(np.float32) * np.float32(STEP)
    assert "rounded to another step" in broken(wrong_values, [original, rounded_run])
