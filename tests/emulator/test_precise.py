"""Products of float32 that keep its digits: by three products of TF32, whose sums the tensor cores cut off."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import onnxfuse
from bench.cases import ops, products
from bench.cases.images import PLAIN as PLAIN_IMAGES
from bench.cases.images import RESIDUAL as RESIDUAL_IMAGES
from bench.cases.images import SILU
from bench.cases.ops import FLOAT, HALF
from bench.cases.products import GELU, PLAIN, QKV, RESIDUAL, SEVERAL, SWIGLU, TRANSPOSED
from onnxfuse import cuda
from onnxfuse.cuda import Arch
from onnxfuse.cuda.build import nvrtc
from onnxfuse.cuda.launch_programs import stored
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.cuda.templates.gemm import costs
from onnxfuse.cuda.templates.gemm.variant import Block, GemmTile, GemmVariant
from onnxfuse.model.fused import FusedOp, fused_ops
from onnxfuse.model.tf32 import set_strict_fp32
from onnxfuse.runtime.sessions.registration import with_forms
from tests.emulator import emulate
from tests.emulator.test_gemm import A10, A100, L4, RTX5090
from tests.emulator.test_whole_kernels import H200
from tests.support.arches import on
from tests.support.kernels import joined
from tests.support.kernels.windows import Case
from tests.support.small import parse

BODIES = [PLAIN, GELU, TRANSPOSED, RESIDUAL, SWIGLU, QKV, SEVERAL]
SMALL = Block(16, 64, 1, 2, 4)
BLOCK = """<ir_version: 8, opset_import: ["" : 20]>
g (float[N,8] x) => (float[N,8] y) <float[8,8] w = {WEIGHT}> { m = MatMul (x, w)  y = Relu (m) }""".replace(
    "WEIGHT", ",".join(str(i % 13 - 6) for i in range(64))
)


def emulated(
    fused: FusedOp, shapes: Sequence[tuple[int, ...]], aligned: bool = True, block: Block | None = None
) -> None:
    """Run the kernel against the body: within what float32 itself may be off."""
    rng = np.random.default_rng(0)
    inputs = [ops.random(rng, t, s) for t, s in zip(fused.inputs, shapes, strict=True)]
    plan = cuda.plan(replace(fused, tf32=False), tuple(shapes), aligned, A100, GemmVariant(block=block))
    ops.within_budget(fused, inputs, emulate.run(plan, inputs, [ops.NUMPY[t] for t in fused.outputs], aligned))


@pytest.mark.parametrize("text", BODIES)
def test_bodies_keep_the_digits(text: str) -> None:
    emulated(*products.case(text, FLOAT, (70,), 72, 200), block=Block(64, 64, 2, 2))
    emulated(*products.case(text, FLOAT, (5,), 33, 27), aligned=False)


@pytest.mark.parametrize("block", costs.mma(H200).exact)
def test_every_block_keeps_the_digits(block: Block) -> None:
    emulated(*products.case(TRANSPOSED, FLOAT, (140,), 136, 130), block=block)


@pytest.mark.parametrize(
    "name", ["batched, odd", "both turned, odd", "by tokens, odd", "written head by head", "no terms"]
)
def test_every_layout_keeps_the_digits(name: str) -> None:
    emulated(*products.table(name, FLOAT))


@pytest.mark.parametrize("name", ["silu and gate", "row by row", "images and gates"])
def test_what_is_computed_before_a_product_is_not_rounded(name: str) -> None:
    emulated(*products.prologue(name, FLOAT, 35, 24, 72))


@pytest.mark.parametrize(
    ("channels", "aligned", "attributes"),
    [
        (40, True, "dilations = [2, 1]"), (6, True, 'auto_pad = "SAME_LOWER"'), (3, False, "strides = [2, 2]"),
        (16, True, "group = 2"),
    ],
)  # fmt: skip
def test_convolutions_keep_the_digits(channels: int, aligned: bool, attributes: str) -> None:
    emulated(*products.window(FLOAT, (2, 7, 8, channels), 10, (3, 2), attributes), aligned)


# ---- long sums and hard numbers


def multiplied(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the product by the kernel."""
    fused = replace(ops.op(PLAIN, (FLOAT,) * 2, (FLOAT,), "gemm"), tf32=False)
    plan = cuda.plan(fused, (x.shape, w.shape), True, A100, GemmVariant(block=SMALL))
    return emulate.run(plan, [x, w], [np.float32])[0]


def in_order(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the product as float32 adds it up, term after term, and the error that this may have."""
    with np.errstate(all="ignore"):
        return np.add.accumulate(x[:, :, None] * w[None], axis=1, dtype=np.float32)[:, -1]


def sums(kind: str, terms: int) -> tuple[np.ndarray, np.ndarray]:
    """Return factors [4, terms] and [terms, 4] that are hard to add up."""
    rng = np.random.default_rng(terms)
    x, w = rng.standard_normal((4, terms)), rng.standard_normal((terms, 4))
    match kind:
        case "signed":
            pass
        case "positive":
            x, w = np.abs(x), np.abs(w)
        case "cancelling":  # large terms that leave next to nothing
            x[:, 1::2], w[1::2] = -x[:, ::2], w[::2] * (1 + 2.0**-12 * rng.random((terms // 2, 4)))
        case "of all magnitudes":
            x, w = x * 2.0 ** rng.integers(-40, 40, x.shape), w * 2.0 ** rng.integers(-40, 40, w.shape)
        case "the worst":  # what is left out is the greatest there is, of all terms, and adds up
            x, w = np.full_like(x, 1 + (2.0**12 - 1) * 2**-23), np.full_like(w, 1 + (2.0**12 - 1) * 2**-23)
    return x.astype(np.float32), w.astype(np.float32)


@pytest.mark.parametrize("terms", [64, 576, 4608])
@pytest.mark.parametrize("kind", ["signed", "positive", "cancelling", "of all magnitudes", "the worst"])
def test_long_sums_are_as_good_as_those_of_float32(kind: str, terms: int) -> None:
    """Beside the sum of the terms' magnitudes, by which an error is measured.

    A product alone may be off by what is left out of it, 2^-22, by the last bits of both factors, and by what is cut
    off of eight of them.
    """
    x, w = sums(kind, terms)
    exact = x.astype(np.float64) @ w.astype(np.float64)
    size = np.abs(x.astype(np.float64)) @ np.abs(w.astype(np.float64))
    mine, usual = ((np.abs(y - exact) / size).max() for y in (multiplied(x, w), in_order(x, w)))
    assert mine <= max(usual, 2.0**-21 + 2.0**-23), (mine, usual)


def test_what_is_not_finite_is_so_as_in_float32() -> None:
    """Infinities, NaN, both of them, and sums that are too great; the rows beside them keep their digits."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((20, 72), (72, 16)))
    greatest = np.finfo(np.float32).max
    x[1, 3], x[2, 40], x[3, 5], x[4, 70], x[4, 71] = np.inf, -np.inf, np.nan, np.inf, -np.inf
    x[5, 8], x[6, 9], x[7, 10] = greatest, -greatest, np.inf
    w[8, :4], w[8, 4:8], w[9, :4], w[10, :4] = 0.5, 2.0, 0.25, 0.0
    w[20, 12], x[8, 20], x[9, 20] = np.inf, 0.0, np.inf
    got, want = multiplied(x, w), in_order(x, w)
    ops.alike_where_not_finite(got, want)
    assert {np.inf, -np.inf} <= set(want.reshape(-1).tolist())
    np.testing.assert_allclose(got[np.isfinite(want)], want[np.isfinite(want)], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [2.0**-100, 2.0**-112, 2.0**60, 2.0**112])
def test_small_and_great_factors_keep_their_digits(size: float) -> None:
    rng = np.random.default_rng(0)
    x = ((1 + rng.random((4, 8))) * size).astype(np.float32)
    w = np.diag(1 / np.float32(size) * (1 + rng.random(8).astype(np.float32))).astype(np.float32)
    exact = x.astype(np.float64) @ w.astype(np.float64)
    assert (np.abs(multiplied(x, w) / exact - 1) <= 2.0**-21).all()


def test_of_the_smallest_factors_what_is_below_tf32_is_missing() -> None:
    """As the kernel says of itself: 2^-136 is the last bit."""
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((4, 8)) * 2.0**-126).astype(np.float32)
    w = np.eye(8, dtype=np.float32)
    assert (np.abs(multiplied(x, w) - x) <= 2.0**-136).all()


# ---- which kernel


def test_the_session_says_whether_float32_is_rounded() -> None:
    """Both kernels do either; Hopper's leaves a left factor that is computed, and B [k, n], to that of sm_80."""
    fused, shapes = products.case(TRANSPOSED, FLOAT, (4096,), 768, 64)
    exact = replace(fused, tf32=False)
    for arch in (H200, A100):
        for op, precise in ((exact, "true"), (fused, "false")):
            assert cuda.supports(op, on(arch)) is None
            text = cuda.plan(op, tuple(shapes), True, arch).kernel.text
            assert f"PRECISE = {precise};" in text
            assert ("wgmma" in text) == (arch is H200)
    half = replace(products.case(TRANSPOSED, HALF, (4096,), 768, 64)[0], tf32=False)
    assert "PRECISE = false;" in cuda.plan(half, tuple(shapes), True, H200).kernel.text
    _, *tried = cuda.candidates(exact, tuple(shapes), H200)
    variants = [t for t in tried if isinstance(t, GemmVariant)]
    assert len(variants) == len(tried)
    assert {t.tile for t in variants} <= {None, *costs.wgmma().exact}
    assert {t.block for t in variants} <= {None, *costs.mma(H200).exact}
    for other, sizes in (
        products.case(PLAIN, FLOAT, (512,), 768, 64), products.prologue("row by row", FLOAT, 72, 24, 64),
        products.window(FLOAT, (2, 14, 14, 32), 32, (3, 3), "group = 4"),
    ):  # fmt: skip
        assert "mma.sync" in cuda.plan(replace(other, tf32=False), tuple(sizes), True, H200).kernel.text


def test_few_rows_of_many_terms_are_split() -> None:
    """A classifier behind the images: 16 tiles, whose terms several blocks share."""
    fused, shapes = products.case(TRANSPOSED, FLOAT, (32,), 1000, 2048)
    plan = cuda.plan(replace(fused, tf32=False), tuple(shapes), True, H200)
    assert "PRECISE = true;" in plan.kernel.text
    assert plan.grid[0] > 64


@pytest.mark.parametrize("tile", [*costs.wgmma().exact, costs.wgmma().split[0]], ids=str)
def test_hoppers_kernel_compiles_without_waits_between_its_products(tile: GemmTile) -> None:
    """Of factors that are split as they are multiplied the compiler would say so."""
    window, images = products.window(FLOAT, (2, 14, 14, 64), 128, (3, 3), "pads = [1, 1, 1, 1]")
    for fused, shapes in ((window, images), products.case(TRANSPOSED, FLOAT, (300,), 256, 64)):
        plan = cuda.plan(replace(fused, tf32=False), tuple(shapes), True, H200, GemmVariant(tile=tile))
        assert not any(m.to_tf32 for m in plan.tensor_maps)
        _, log = nvrtc.build(plan.kernel, H200, ("-Xptxas=-v",))
        # A few words before and behind the products, no sums: those take 256 bytes.
        assert max(map(int, re.findall(r"(\d+) bytes spill stores", log))) <= 80
        assert "serialized" not in log
        assert "warpgroup.wait is injected" not in log


def test_a_file_says_so_where_no_session_does() -> None:
    """What is compiled or dumped of a strict file is what its sessions run; a pack of others is none of theirs."""
    model = onnxfuse.optimize(parse(BLOCK), strict_fp32=True)
    (strict,) = fused_ops(model).values()
    assert not strict.tf32
    set_strict_fp32(model, strict=False)
    (rounding,) = fused_ops(model).values()
    assert rounding.tf32
    assert stored.digest_of(strict) != stored.digest_of(rounding)
    for tf32 in (True, False):  # and a session goes first
        formed, refusals = with_forms(model, tf32, (), None, H200)
        assert [(op.tf32, refusals[name]) for name, op in formed.items()] == [(tf32, None)]


@pytest.mark.parametrize("tuning", [
    GemmVariant(block=Block(192, 192, 4, 2)), GemmVariant(tile=GemmTile(128, 128, 1)),
    GemmVariant(tile=GemmTile(128, 96, 1, warpgroups=2, teams=1, split=2)),
])  # fmt: skip
def test_what_was_measured_with_tf32_says_nothing_without(tuning: GemmVariant) -> None:
    fused, shapes = products.case(TRANSPOSED, FLOAT, (4096,), 768, 64)
    exact = replace(fused, tf32=False)
    assert cuda.plan(exact, tuple(shapes), True, H200, tuning) == cuda.plan(exact, tuple(shapes), True, H200)


def test_parts_side_by_side_are_not_rounded_either() -> None:
    """A convolution of few channels that the direct kernel would round."""
    text = """(x, w, v) => (y) {
      i = Transpose <perm = [0, 3, 1, 2]> (x) f = Transpose <perm = [0, 3, 1, 2]> (w) c = Conv(i, f)
      g = Transpose <perm = [0, 3, 1, 2]> (v) d = Conv(i, g)
      m = Transpose <perm = [0, 2, 3, 1]> (c) n = Transpose <perm = [0, 2, 3, 1]> (d) y = Concat <axis = 3> (m, n) }"""
    fused, shapes = ops.op(text, (FLOAT,) * 3, (FLOAT,), "concat"), ((2, 7, 6, 12), (8, 1, 1, 12), (16, 1, 1, 12))
    for op, file in ((fused, "conv/direct.cu"), (replace(fused, tf32=False), "gemm/sm80.cu")):
        assert cuda.supports(op, lambda: A100) is None
        plan = cuda.plan(op, shapes, True, A100)
        assert [s.file for s in plan.kernel.sections][-2] == file
        assert ("PRECISE = true;" in plan.kernel.text) == (op is not fused)
    op, sizes = joined.case(FLOAT)
    plan = cuda.plan(replace(op, tf32=False), tuple(sizes), True, A100)
    files = [[s.file for s in part.kernel.sections][-2] for part in (plan, *plan.then)]
    assert files == ["gemm/sm80.cu", "gemm/sm80.cu", "conv/stencil.cu", "conv/stencil.cu", "gemm/sm80.cu"]


@pytest.mark.parametrize("arch", [A100, A10, L4, H200, RTX5090], ids=lambda arch: arch.name)
@pytest.mark.parametrize("text", [TRANSPOSED, SWIGLU])
def test_each_gpu_has_blocks_that_fit_it(arch: Arch, text: str) -> None:
    fused, shapes = products.case(text, FLOAT, (4096,), 3072, 768)
    fused = replace(fused, tf32=False)
    tried = cuda.candidates(fused, tuple(shapes), arch)
    assert len(tried) > 1
    for tuning in tried:
        assert cuda.plan(fused, tuple(shapes), True, arch, tuning).shared_bytes <= arch.shared_bytes
    _, log = nvrtc.build(cuda.plan(fused, tuple(shapes), True, arch).kernel, arch, ("-Xptxas=-v",))
    # A few words before and behind the products, no sums: those take 256 bytes.
    assert max(map(int, re.findall(r"(\d+) bytes spill stores", log))) <= 80


# ---- convolutions of few channels

STEM = Case(SILU, FLOAT, False, 2, 3, 64, (19, 21), (7, 7), strides=(2, 2), pads=(3, 3, 3, 3))
GROUPS = Case(RESIDUAL_IMAGES, FLOAT, True, 2, 6, 16, (9, 10), (3, 3), groups=4, pads=(1, 1, 1, 1))


def convolved(
    case: Any, inputs: list[np.ndarray], aligned: bool = True, tuning: Variant | None = None
) -> list[np.ndarray]:
    """Return the outputs by the kernel, which keeps the digits."""
    fused = replace(case.op(), tf32=False)
    plan = cuda.plan(fused, tuple(case.shapes()), aligned, H200, tuning)
    assert "PRECISE = true;" in plan.kernel.text
    return emulate.run(plan, inputs, [ops.NUMPY[t] for t in fused.outputs], aligned)


def digits(case: Any) -> list[np.ndarray]:
    """Return random inputs, of whose float32 numbers every digit counts."""
    rng, fused = np.random.default_rng(case.channels), case.op()
    found = [ops.random(rng, t, s) for t, s in zip(fused.inputs, case.shapes(), strict=True)]
    found[1] = (found[1] * (case.channels * np.prod(case.kernel)) ** -0.5).astype(np.float32)
    return found


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("case", [STEM, replace(STEM, strides=(1, 3), channels=1), GROUPS, replace(GROUPS, filters=3)])
def test_convolutions_of_few_channels_keep_the_digits(case: Case, aligned: bool) -> None:
    inputs = digits(case)
    ops.within_budget(case.op(), inputs, convolved(case, inputs, aligned))


@pytest.mark.parametrize("case", [STEM, GROUPS])
def test_infinities_of_few_channels_stay_where_they_are_seen(case: Case) -> None:
    inputs = digits(replace(case, text=PLAIN_IMAGES))
    case, greatest = replace(case, text=PLAIN_IMAGES), np.finfo(np.float32).max
    inputs[0].reshape(-1)[[5, 77, 301, 402]] = np.inf, -np.inf, np.nan, greatest
    inputs = inputs[:2]
    with np.errstate(all="ignore"):
        got, want = convolved(case, inputs)[0], ops.unfused(case.op(), inputs)[0]
    ops.alike_where_not_finite(got, want)
    assert np.isfinite(want).any()


def test_a_window_that_slides_by_one_pixel_over_many_channels_stays_the_librarys() -> None:
    case = Case(SILU, FLOAT, True, 2, 32, 8, (9, 10), (3, 3), pads=(1, 1, 1, 1))
    exact = replace(case.op(), tf32=False)
    assert "rounds float32 to TF32" in (cuda.supports(exact, lambda: H200) or "")
    for op in (case.op(), replace(STEM.op(), tf32=False)):
        assert cuda.supports(op, lambda: H200) is None
