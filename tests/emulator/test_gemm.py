"""The gemm template: a body taken apart, the plan for each size, and the kernels that the host's compiler can run."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench.cases import ops, products
from bench.cases.ops import BRAIN, DOUBLE, FLOAT, HALF
from bench.cases.products import GELU, PLAIN, QKV, RESIDUAL, SEVERAL, SWIGLU, TRANSPOSED, TRANSPOSED_RESIDUAL
from onnxfuse import cuda
from onnxfuse.cuda import Arch
from onnxfuse.cuda.build import nvrtc
from onnxfuse.cuda.planning.launch_plan import PixelWindow, TensorMapSpec
from onnxfuse.cuda.templates.gemm import body as gemm_body
from onnxfuse.cuda.templates.gemm import costs, sm80, sm90
from onnxfuse.cuda.templates.gemm import plan as gemm
from onnxfuse.cuda.templates.gemm import problem as gemm_problem
from onnxfuse.cuda.templates.gemm.variant import Block, GemmTile, GemmVariant, Strip
from onnxfuse.model.fused import FusedOp
from onnxfuse.support.errors import KernelError
from tests.emulator import copy_engine, emulate
from tests.emulator.test_whole_kernels import H200, check
from tests.support.arches import on
from tests.support.kernels import programs, split_sums

BODIES = [PLAIN, GELU, TRANSPOSED, RESIDUAL, SWIGLU, QKV, SEVERAL]
OLD = Arch("sm_75", 40)
"""Without the products that the kernels are made of."""
A100, A10, L4, B200, RTX5090 = (
    Arch("sm_80", 108), Arch("sm_86", 72, 1536), Arch("sm_89", 58, 1536), Arch("sm_100", 148),
    Arch("sm_120", 170, 1536),
)  # fmt: skip


def test_what_has_no_tensor_core_kernel_is_left_to_the_general_kernel() -> None:
    """GPUs without the instruction, images whose elements 32 bits do not count."""
    fused, shapes = products.window(HALF, (2**16, 64, 64, 8), 8, (3, 3))
    with pytest.raises(KernelError, match="images of 2147483648 elements or more"):
        cuda.plan(fused, tuple(shapes), True, A100)
    assert cuda.general(fused, tuple(shapes), A100).output_shapes == (tuple(shapes[-1]),)
    fused, shapes = products.case(GELU, HALF, (5,), 3, 7)
    with pytest.raises(KernelError, match="products of float16 on sm_75"):
        cuda.plan(fused, tuple(shapes), True, OLD)


@pytest.mark.parametrize("count", [3, 4])
def test_three_and_four_products_of_one_output_fit_99_kb(count: int) -> None:
    """Blocks that are made for two are too large for them on an A10."""
    weights = [f"w{i}" for i in range(count)]
    nodes = [f"m{i} = MatMul(x, w{i})" for i in range(count)]
    sums = [f"s{i} = Mul({f's{i - 1}' if i > 1 else 'm0'}, m{i})" for i in range(1, count)]
    text = f"({', '.join(['x', *weights])}) => (y) {{ {' '.join([*nodes, *sums])} y = Tanh(s{count - 1}) }}"
    fused = ops.op(text, (HALF,) * (count + 1), (HALF,), "gemm")
    plan = check(fused, [(70, 40), *[(40, 72)] * count], arch=A10)
    assert plan.shared_bytes <= A10.shared_bytes


def test_leading_dimensions_are_rows() -> None:
    fused, shapes = products.case(RESIDUAL, HALF, (2, 3), 5, 4)
    check(fused, shapes, aligned=False, arch=A100)


@pytest.mark.parametrize("rows", [(0,), (3, 0)])
def test_no_rows_launch_nothing(rows: tuple[int, ...]) -> None:
    fused, shapes = products.case(GELU, HALF, rows, 64, 64)
    for aligned in (True, False):
        plan = cuda.plan(fused, tuple(shapes), aligned, H200)
        assert plan.grid[0] == 0
        assert plan.output_shapes == ((*rows, 64),)


@pytest.mark.parametrize("arch", [A100, H200])
def test_products_of_no_terms_are_zero(arch: Arch) -> None:
    fused, shapes = products.case(GELU, HALF, (3,), 8, 0)
    check(fused, shapes, arch=arch)


@pytest.mark.parametrize("arch", [A100, H200])
def test_products_of_no_columns_launch_nothing(arch: Arch) -> None:
    fused, shapes = products.case(QKV, HALF, (3,), 0, 8)
    plan = cuda.plan(fused, tuple(shapes), True, arch)
    assert (plan.grid[0], plan.output_shapes) == (0, ((3, 0),) * 3)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(x, w) => (y) { y = Relu(x) }", "no matrix product in the body"),
        ("(x, w) => (y) { m = MatMul(x, w) y = Softmax(m) }", "a reduction after a matrix product"),
        (
            "(x, w) => (y) { r = Relu(w) y = MatMul(x, r) }",
            "a matrix product whose right factor is computed in the body",
        ),
        ("(x, w) => (y) { m = MatMul(x, w) n = Gemm <transA = 1> (x, w) y = Add(m, n) }", "left factors of both"),
        ("(x, w) => (y) { m = MatMul(x, w) n = Gemm <transB = 1> (x, w) y = Add(m, n) }", "right factors of both"),
        ("(x, w) => (y, z) { y = MatMul(x, w) z = Relu(w) }", "an output that reads no product"),
        ("(x, w) => (y, z) { m = MatMul(x, w) n = MatMul(x, w) y = Relu(m) z = Abs(n) }", "different bodies"),
        ("(x, w) => (y) { m = MatMul(x, w) n = MatMul(w, x) y = Add(m, n) }", "different left factors"),
    ],
)
def test_what_no_kernel_fits_is_refused_with_the_reason(text: str, reason: str) -> None:
    function = ops.op(text, (HALF, HALF), (HALF,) * text.split("=>")[1].split(")")[0].count(",") + (HALF,), "gemm")
    assert reason in str(cuda.supports(function))


def test_float32_products_take_hoppers_kernel_where_their_terms_lie_side_by_side() -> None:
    """Elsewhere the kernel of sm_80 and later: its fragments are loaded element by element."""
    for text, body in ((GELU, "mma.sync"), (TRANSPOSED, "wgmma")):
        fused, shapes = products.case(text, FLOAT, (4096,), 768, 64)
        assert cuda.supports(fused, lambda: H200) is None
        assert body in cuda.plan(fused, tuple(shapes), True, H200).kernel.text
    assert cuda.supports(products.case(TRANSPOSED, DOUBLE, (8,), 8, 8)[0]) == "products of DOUBLE"


def test_float32_takes_half_as_many_terms_at_once() -> None:
    """The rows of the factors' tiles are 128 bytes, whatever the type."""
    fused, shapes = products.case(TRANSPOSED, FLOAT, (100,), 72, 40)
    plan = cuda.plan(fused, tuple(shapes), True, H200, GemmVariant(tile=GemmTile(128, 128, 1)))
    assert [(m.box, m.to_tf32) for m in plan.tensor_maps] == [((32, 104), True), ((32, 128), True), ((32, 16), False)]
    assert "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32" in plan.kernel.text


def test_tensor_cores_begin_with_ampere() -> None:
    """Before, the body runs."""
    fused, _ = products.case(GELU, HALF, (8,), 8, 8)
    convolution, _ = products.window(HALF, (2, 6, 5, 8), 8, (3, 3))
    for arch in (A100, A10, L4, H200, RTX5090):
        assert cuda.supports(fused, on(arch)) is None
        assert cuda.supports(convolution, on(arch)) is None
    refusal = "the library multiplies by instructions of sm_100 that the product's kernels do not use"
    assert cuda.supports(fused, lambda: B200) == refusal
    refusal = "the product's kernels are made for sm_80 and later, not for sm_75"
    assert cuda.supports(fused, lambda: OLD) == refusal


# ---- sm_80 and later


def emulated(
    fused: FusedOp, shapes: Sequence[tuple[int, ...]], aligned: bool, arch: Arch, block: Block | None = None
) -> None:
    """Run the kernel against the body; float32 keeps the bits that the tensor cores read, which cut off its sums."""
    rng = np.random.default_rng(0)
    inputs = [ops.random(rng, t, s) for t, s in zip(fused.inputs, shapes, strict=True)]
    for i in products.multiplied(fused):
        if fused.inputs[i] == FLOAT:
            inputs[i] = (inputs[i].view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    plan = cuda.plan(fused, tuple(shapes), aligned, arch, GemmVariant(block=block))
    got = emulate.run(plan, inputs, [ops.NUMPY[t] for t in fused.outputs], aligned)
    parts = gemm_body.anatomy(fused)
    cuts = gemm_problem.problem(parts, tuple(shapes)).k // 8 if parts.dtype == FLOAT else 0
    ops.within_budget(fused, inputs, got, cuts)


@pytest.mark.parametrize("text", BODIES)
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
def test_tensor_cores_give_the_body(text: str, dtype: int) -> None:
    """Sizes that stick out of the block, more steps than the ring has stages, pieces down to one element."""
    emulated(*products.case(text, dtype, (70,), 72, 200), True, A100, Block(64, 64, 2, 2))
    emulated(*products.case(text, dtype, (5,), 33, 27), False, A100, Block(64, 64, 2, 2))


@pytest.mark.parametrize("block", costs.mma(H200).rounded)
@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_every_block_gives_the_body(block: Block, dtype: int) -> None:
    text = GELU if dtype == HALF else TRANSPOSED
    emulated(*products.case(text, dtype, (140,), 264, 130), True, H200, block)


@pytest.mark.parametrize("dtype", [HALF, FLOAT])
@pytest.mark.parametrize("pitch", [48, 46, 45])
@pytest.mark.parametrize("aligned", [True, False])
def test_what_lies_behind_the_terms_is_not_multiplied(dtype: int, pitch: int, aligned: bool) -> None:
    """NaN there would be NaN in the sums."""
    fused, shapes = products.tokens(dtype, (2,), 20, 24, 43, pitch)
    rng = np.random.default_rng(0)
    inputs = [ops.random(rng, t, s) for t, s in zip(fused.inputs, shapes, strict=True)]
    for i in products.multiplied(fused) if dtype == FLOAT else ():
        inputs[i] = (inputs[i].view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    inputs[0][:, 43:] = np.nan
    plan = cuda.plan(fused, tuple(shapes), aligned, A100)
    got = emulate.run(plan, inputs, [ops.NUMPY[dtype]], aligned)
    ops.within_budget(fused, inputs, got)


@pytest.mark.parametrize("name", products.TABLE)
@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_every_layout_batch_scale_and_extreme(name: str, dtype: int) -> None:
    """Each runs in the kernel, and right."""
    fused, shapes = products.table(name, dtype)
    assert cuda.supports(fused, lambda: A100) is None
    emulated(fused, shapes, True, A100)


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        ([(40,), (40, 24), (24,)], "a product of ranks 1 and 2, expected 2 or more"),
        ([(20, 40), (40,), (20,)], "a product of ranks 2 and 1, expected 2 or more"),
        ([(3, 20, 40), (2, 40, 24), (24,)], "batches of [3] and [2] products"),
        (
            [(3, 20, 40), (3, 40, 24), (3, 1, 24)],
            "an operand of shape [3, 1, 24] beside a product of shape [3, 20, 24]",
        ),
        ([(2, 1, 2, 1, 9, 8), (1, 3, 1, 2, 8, 16), (16,)], "broadcast in more than three ways"),
        ([(2**16, 2**16, 8), (2**16, 8, 8), (8,)], "65536 times: rows, columns and terms, expected less than 2^31"),
    ],
)
def test_what_no_kernel_multiplies_is_refused_with_the_reason(shapes: list[tuple[int, ...]], reason: str) -> None:
    fused = ops.op(products.BATCHED, (HALF,) * 3, (HALF,), "gemm")
    with pytest.raises(KernelError, match=re.escape(reason)):
        cuda.plan(fused, tuple(shapes), True, A100)


def test_products_are_rounded_to_tf32_and_not_cut() -> None:
    """1 + 3 * 2^-12 is 1 + 2^-10 in TF32; cut off it would be 1."""
    fused = ops.op(PLAIN, (FLOAT,) * 2, (FLOAT,), "gemm")
    x = np.full((1, 8), 1 + 3 * 2.0**-12, np.float32)
    plan = cuda.plan(fused, ((1, 8), (8, 8)), True, A100)
    (got,) = emulate.run(plan, [x, np.eye(8, dtype=np.float32)], [np.float32])
    assert (got == 1 + 2.0**-10).all()


@pytest.mark.parametrize("name", products.PROLOGUES)
@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_the_left_factor_may_be_computed(name: str, dtype: int) -> None:
    """Rows and terms that stick out of the block, pieces of 16 bytes and of one element, a ring in several rounds."""
    if dtype == FLOAT and name not in EXACT:
        pytest.skip("what is rounded to TF32 after the functor has no truth of its own")
    emulated(*products.prologue(name, dtype, 70, 72, 200), True, A100, Block(64, 64, 2, 2))
    emulated(*products.prologue(name, dtype, 35, 24, 27), False, A100)


@pytest.mark.parametrize("terms", [[64, 32, 32], [8, 72, 8, 40], [16], [200, 8], [32] * 20])
@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("plain", [False, True])
def test_what_the_left_factor_is_computed_from_may_lie_side_by_side(terms: list[int], dtype: int, plain: bool) -> None:
    """Each matrix is read where it lies: in runs as long as a step and shorter, on boundaries and off."""
    emulated(*products.joined(dtype, (2, 5, 7), 72, terms, plain=plain), True, A100, Block(64, 64, 2, 2))
    emulated(*products.joined(dtype, (35,), 24, terms, plain=plain), False, A100)


@pytest.mark.parametrize("block", [Block(128, 64, 2, 2), Block(16, 64, 1, 2, 4)])
def test_a_matrix_may_lie_beside_itself_and_be_read_by_the_body(block: Block) -> None:
    text = """(x, z, w) => (y) {
      c = Concat <axis = -1> (x, z, x) f = Relu(c) m = MatMul(f, w) y = Add(m, x) }"""
    fused = ops.op(text, (HALF,) * 3, (HALF,), "gemm")
    emulated(fused, [(50, 24), (50, 16), (64, 24)], True, A100, block)


@pytest.mark.parametrize(
    ("text", "shapes", "reason"),
    [
        (products.JOINED.format(NAMES="p, q"), [(9, 8), (9, 12), (20,), (20,), (20, 8), (8,)], "8 and 12 terms side"),
        ("(p, q, g, w) => (y) { c = Concat <axis = -1> (p, q) a = Mul(c, g) y = MatMul(a, w) }",
         [(9, 8), (9, 8), (9, 16), (16, 8)], "8 and 8 terms side by side"),
        ("(p, q, w) => (y) { c = Concat <axis = -1> (p, q) a = Relu(c) y = MatMul(a, w) }",
         [(2, 9, 8), (2, 9, 8), (2, 16, 8)], "a batch of products by matrices side by side"),
        ("(p, q, w) => (y) { c = Concat <axis = 3> (p, q) a = Relu(c) y = MatMul(a, w) }",
         [(9, 8), (9, 8), (16, 8)], "side by side"),
    ],
)  # fmt: skip
def test_what_lies_side_by_side_otherwise_is_refused(text: str, shapes: list[tuple[int, ...]], reason: str) -> None:
    fused = ops.op(text, (HALF,) * len(shapes), (HALF,), "gemm")
    with pytest.raises(KernelError, match=reason):
        cuda.plan(fused, tuple(shapes), True, A100)


def test_several_matrices_side_by_side_are_refused() -> None:
    text = """(p, q, r, w) => (y) {
      a = Concat <axis = -1> (p, q) b = Concat <axis = -1> (q, r) c = Mul(a, b) y = MatMul(c, w) }"""
    assert "several matrices side by side" in str(cuda.supports(ops.op(text, (HALF,) * 4, (HALF,), "gemm")))


@pytest.mark.parametrize(
    ("rows", "terms"), [((32, 56, 56), [64, 32]), ((32, 14, 14), [256, *[32] * 24]), ((49,), [512, 32])]
)
@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("plain", [False, True])
def test_hoppers_kernel_reads_any_number_of_matrices(
    rows: tuple[int, ...], terms: list[int], dtype: int, plain: bool
) -> None:
    """The copy engine is told of the weights and the output alone."""
    fused, shapes = products.joined(dtype, rows, 128, terms, plain=plain)
    plan = cuda.plan(fused, tuple(shapes), True, H200, GemmVariant(tile=GemmTile(64, 128, 1)))
    assert len(plan.tensor_maps) == 2
    _, log = nvrtc.build(plan.kernel, H200, ("-Xptxas=-v",))
    assert "0 bytes spill stores" in log


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("plain", [False, True])
def test_launch_programs_know_what_lies_side_by_side(aligned: bool, plain: bool) -> None:
    fused, shapes = products.joined(HALF, (4, 7, 7), 128, [64, 32, 32], plain=plain)
    programs.agrees(fused, tuple(shapes), aligned, H200)


EXACT = ("a gate", "side by side", "the greater, and Gemm", "of wide numbers")
"""Prologues that choose among their inputs: what those are in TF32, the left factor is."""


@pytest.mark.parametrize("block", [Block(128, 64, 2, 2), Block(32, 64, 1, 2, 2), Block(16, 64, 1, 2, 4)])
def test_blocks_compute_the_left_factor_of_each_share_of_the_terms(block: Block) -> None:
    emulated(*products.prologue("silu and gate", BRAIN, 140, 72, 330), True, A100, block)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(x, w) => (y) { r = Relu(x) y = Gemm <transA = 1> (r, w) }", "a left factor [k, m] that is computed"),
        ("(x, w) => (y) { r = Relu(x) m = MatMul(r, w) y = Add(m, r) }", "a matrix product that is read after it"),
        ("(x, w) => (y) { r = Softmax(x) y = MatMul(r, w) }", "a reduction, or moved data, before a matrix product"),
        ("(x, w) => (y) { r = Relu(x) m = MatMul(r, w) n = MatMul(x, w) y = Add(m, n) }", "different left factors"),
    ],
)  # fmt: skip
def test_what_no_kernel_computes_before_a_product_is_refused(text: str, reason: str) -> None:
    assert reason in str(cuda.supports(ops.op(text, (HALF,) * 2, (HALF,), "gemm")))


def test_a_left_factor_is_not_computed_from_vectors_alone() -> None:
    fused = ops.op("(r, c, w) => (y) { a = Mul(r, c) y = MatMul(a, w) }", (HALF,) * 3, (HALF,), "gemm")
    with pytest.raises(KernelError, match="computed from vectors alone"):
        cuda.plan(fused, ((9, 1), (8,), (8, 8)), True, A100)


def test_what_is_worth_measuring_is_near_the_plans_own_choice() -> None:
    """Some blocks, the own choice among them; none before sm_80 and of convolutions that Hopper's kernel takes."""
    fused, shapes = products.case(GELU, HALF, (4096,), 768, 3072)
    parts = gemm_body.anatomy(fused)
    worth = sm80.worth_measuring(parts, gemm_problem.problem(parts, tuple(shapes)), A100)
    assert own(fused, shapes, A100) in worth
    assert Block(16, 64, 1, 2, 4) not in worth
    own_choice, *tunings = cuda.candidates(fused, tuple(shapes), H200)
    assert own_choice is None
    variants = [t for t in tunings if isinstance(t, GemmVariant)]
    assert len(variants) == len(tunings)
    assert {t.tile is None and t.block is None for t in variants} == {False}
    tiles = [t.tile for t in variants if t.tile is not None]
    assert GemmTile(128, 192, 1) in tiles
    assert GemmTile(64, 64, 1) not in tiles
    window, images = products.window(HALF, (2, 14, 14, 64), 64, (3, 3))
    of_window = cuda.candidates(window, tuple(images), H200)[1:]
    assert all(isinstance(t, GemmVariant) and t.block is None for t in of_window)


def test_a_factor_may_be_a_transposed_input() -> None:
    """As float32 weights are stored for TF32: the terms of a column side by side."""
    text = "(x, w, b) => (y) { t = Transpose <perm = [1, 0]> (w) m = MatMul(x, t) y = Add(m, b) }"
    fused = ops.op(text, (FLOAT,) * 3, (FLOAT,), "gemm")
    assert gemm_body.anatomy(fused).products[0].transposed
    emulated(fused, [(2, 9, 40), (24, 40), (24,)], True, A100)


@pytest.mark.parametrize("arch", [A100, H200], ids=lambda arch: arch.name)
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
@pytest.mark.parametrize("rows", [1, 8, 100, 4096])
def test_a_weight_read_through_a_transpose_has_the_kernel_of_one_stored_so(arch: Arch, dtype: int, rows: int) -> None:
    """Its plan is that of Gemm transB: wgmma of 16 bits and of TF32 reads the weight [n, k] where it lies."""
    gemm_form = products.STORED.replace(
        "t = Transpose <perm = [1, 0]> (w) m = MatMul(x, t)", "m = Gemm <transB = 1> (x, w)"
    )
    assert gemm_form != products.STORED
    shapes = ((768, 264), (rows, 264), (768,), (rows, 768))
    plans = [
        cuda.plan(ops.op(text, (dtype,) * 4, (dtype,), "gemm"), shapes, True, arch)
        for text in (products.STORED, gemm_form)
    ]
    assert plans[0] == plans[1]
    if arch == H200 and rows == 4096:
        assert "wgmma" in plans[0].kernel.text


@pytest.mark.parametrize("arch", [A100, A10, L4, H200, B200, RTX5090], ids=lambda arch: arch.name)
@pytest.mark.parametrize(("text", "dtype"), [(GELU, HALF), (GELU, FLOAT), (SWIGLU, HALF)])
def test_each_gpu_has_blocks_that_fit_it(arch: Arch, text: str, dtype: int) -> None:
    """Shared memory as its compute capability has it; what the plan chooses is one of them and compiles unspilled."""
    fused, shapes = products.case(text, dtype, (4096,), 3072, 768)
    for block in sm80.candidates(gemm_body.anatomy(fused), arch):
        plan = cuda.plan(fused, tuple(shapes), True, arch, GemmVariant(block=block))
        assert plan.shared_bytes <= arch.shared_bytes
    chosen = cuda.plan(fused, tuple(shapes), True, arch, GemmVariant(block=own(fused, shapes, arch)))
    _, log = nvrtc.build(chosen.kernel, arch, ("-Xptxas=-v",))
    assert set(re.findall(r"(\d+) bytes spill stores", log)) == {"0"}


def own(fused: FusedOp, shapes: Sequence[tuple[int, ...]], arch: Arch) -> Any:
    parts = gemm_body.anatomy(fused)
    return sm80.choose(parts, gemm_problem.problem(parts, tuple(shapes)), arch)


# ---- Hopper


@pytest.mark.parametrize(("m", "n", "k"), [(384, 768, 196), (196, 768, 384), (197, 72, 49), (49, 264, 197)])
def test_products_along_the_tokens_are_hoppers(m: int, n: int, k: int) -> None:
    """Each of a batch is a matrix of its own to the copy engine: its edge is zeros, not the next one's rows."""
    fused, shapes = products.tokens(HALF, (3, 2), m, n, k)
    plan = cuda.plan(fused, tuple(shapes), True, H200, GemmVariant(tile=GemmTile(128, 64, 1)))
    assert "wgmma" in plan.kernel.text
    assert [(m.extents, m.strides) for m in plan.tensor_maps] == [
        ((k, m, 1), (shapes[0][1] * 2, shapes[0][1] * m * 2)),
        ((n, k, 6), (n * 2, n * k * 2)),
        ((n, m, 6), (n * 2, n * m * 2)),
        ((n, m, 6), (n * 2, n * m * 2)),
    ]
    _, log = nvrtc.build(plan.kernel, H200, ("-Xptxas=-v",))
    spilled = [int(line.split(" bytes spill stores")[0].split()[-1]) for line in log.splitlines() if "spill" in line]
    assert all(s <= 160 for s in spilled), log


@pytest.mark.parametrize(("m", "n", "k"), [(384, 768, 196), (196, 768, 384)])
def test_the_layers_of_a_mixer_are_hoppers_by_its_own_choice(m: int, n: int, k: int) -> None:
    fused, shapes = products.tokens(HALF, (32,), m, n, k)
    assert "wgmma" in cuda.plan(fused, tuple(shapes), True, H200).kernel.text


def test_rows_off_the_boundary_are_for_the_other_kernel() -> None:
    fused, shapes = products.tokens(HALF, (3,), 64, 64, 196, 196)
    assert "mma.sync" in cuda.plan(fused, tuple(shapes), True, H200).kernel.text


@pytest.mark.parametrize("arch", [A100, H200], ids=lambda arch: arch.name)
def test_a_batch_of_none_launches_nothing(arch: Arch) -> None:
    fused, shapes = products.tokens(HALF, (0,), 196, 768, 384)
    plan = cuda.plan(fused, tuple(shapes), True, arch)
    assert (plan.grid[0], plan.output_shapes) == (0, ((0, 196, 768),))


@pytest.mark.parametrize("text", BODIES)
@pytest.mark.parametrize("tile", [*costs.wgmma().float16, *costs.wgmma().split[2::4]], ids=str)
def test_every_variant_compiles_without_spilling_much(text: str, tile: GemmTile) -> None:
    """The accumulators stay in registers: what is spilled is a handful of operands."""
    fused, shapes = products.case(text, HALF, (256,), 32 if tile.n < 64 else 256, 128)
    if text == SWIGLU and tile.n < 128:
        pytest.skip("the columns of a gate's two products come 64 at a time")
    tile = replace(tile, n=tile.n // 2) if text == SWIGLU else tile
    if tile not in gemm.tiles(fused, tuple(shapes)) and tile.split == 1:
        pytest.skip("this body takes no tile as large")
    plan = cuda.plan(fused, tuple(shapes), True, H200, GemmVariant(tile=tile))
    cubin, log = nvrtc.build(plan.kernel, H200, ("-Xptxas=-v",))
    assert cubin[:4] == b"\x7fELF"
    spilled = [int(line.split(" bytes spill stores")[0].split()[-1]) for line in log.splitlines() if "spill" in line]
    assert all(s <= 160 for s in spilled), log
    assert plan.shared_bytes <= sm90.SHARED_LIMIT


@pytest.mark.parametrize(
    "tile", [t for t in (*costs.wgmma().float16, *costs.wgmma().split[2::4]) if t.n % 64 == 0], ids=str
)
def test_products_of_different_columns_compile_for_hopper(tile: GemmTile) -> None:
    """The copy engine is told of each one's own columns; every tile of each is there once."""
    fused, _ = products.table("of different columns", HALF)
    columns = (200, 8, 72)
    shapes = [(700, 1600), *[(1600, n) for n in columns], *[(700, n) for n in columns]]
    plan = cuda.plan(fused, tuple(shapes), True, H200, GemmVariant(tile=tile))
    assert [m.extents[0] for m in plan.tensor_maps[1:]] == [*columns, *columns, *columns]
    sides = np.frombuffer(plan.parameters, np.uint32)[:6].tolist()
    ends = np.cumsum([-(-n // tile.n) for n in columns])
    assert sides == [*columns, *ends]
    _, log = nvrtc.build(plan.kernel, H200, ("-Xptxas=-v",))
    assert all(int(s) <= 160 for s in re.findall(r"(\d+) bytes spill stores", log)), log


@pytest.mark.parametrize(
    "tile", [GemmTile(64, 64, 1), GemmTile(128, 128, 1), GemmTile(192, 192, 1, warpgroups=3, teams=1)], ids=str
)
@pytest.mark.parametrize("name", ["written head by head", "written by windows"])
def test_outputs_written_elsewhere_leave_without_the_copy_engine(name: str, tile: GemmTile) -> None:
    """It is told of no output; the threads that write instead need no memory of their own."""
    fused, shapes = products.table(name, HALF)
    plan = cuda.plan(fused, tuple(shapes), True, H200, GemmVariant(tile=tile))
    assert not {m.pointer for m in plan.tensor_maps} & set(range(len(shapes), len(shapes) + len(fused.outputs)))
    _, log = nvrtc.build(plan.kernel, H200, ("-Xptxas=-v",))
    assert set(re.findall(r"(\d+) bytes spill stores", log)) == {"0"}


def chosen(text: str, rows: int, n: int, k: int) -> GemmTile | Block | Strip:
    fused, shapes = products.case(text, HALF, (rows,), n, k)
    return gemm.chosen(fused, tuple(shapes), H200)


@pytest.mark.parametrize(
    ("size", "tile"),
    [
        ((128, 3072, 768), "64x64x1"), ((512, 768, 768), "64x64x1"), ((1024, 1024, 1024), "64x128x1 t1"),
        ((512, 3072, 768), "64x192x1"), ((4096, 768, 3072), "128x192x1 w2 t1"), ((4096, 3072, 768), "128x128x1"),
        ((6304, 768, 3072), "192x192x1 w3 t1"), ((4096, 4096, 4096), "128x128x2"),
    ],
)  # fmt: skip
def test_the_tile_follows_the_size(size: tuple[int, int, int], tile: str) -> None:
    """Few rows take small tiles, so that more multiprocessors work; many the one that leaves the last round full."""
    assert str(chosen(GELU, *size)) == tile


@pytest.mark.parametrize("variant", [GemmVariant(tile=GemmTile(64, 64, 1)), GemmVariant(block=Block(16, 64, 1, 2, 4))])
def test_weights_are_brought_near_while_the_kernel_ahead_ends(variant: GemmVariant) -> None:
    """Before anything that it writes is read; not what it may write, nor more than is worth a part of the L2 cache."""
    for constants, terms, brought in (({1, 2}, 768, 1), ({2}, 768, 0), ({1, 2}, 8192, 0)):
        fused, shapes = products.case(GELU, HALF, (128,), 768, terms)
        of_weights = replace(fused, constants=frozenset(constants))
        text = cuda.plan(of_weights, tuple(shapes), True, H200, variant).kernel.text
        assert f"BROUGHT = {brought};" in text
        assert text.index("bring_factors<BROUGHT, SIBLINGS>(") < text.rindex("join_stream();")


@pytest.mark.parametrize("size", [(17, 768, 3072), (128, 768, 3072)])
def test_few_tiles_of_long_sums_are_split(size: tuple[int, int, int]) -> None:
    tile = chosen(GELU, *size)
    assert isinstance(tile, GemmTile)
    assert tile.split > 1
    assert (-(-size[0] // 64)) * (size[1] // 64) * tile.split <= H200.sm_count


def test_short_sums_and_many_tiles_are_not_split() -> None:
    tiles = chosen(GELU, 512, 768, 768), chosen(GELU, 128, 5632, 3072)
    assert [isinstance(tile, GemmTile) and tile.split for tile in tiles] == [1, 1]


@pytest.mark.parametrize("size", [(17, 768, 768), (128, 768, 768)])
def test_few_rows_take_blocks_of_few_rows(size: tuple[int, int, int]) -> None:
    """The kernel for sm_80 has them, and the plan takes it for pointers on the boundary, too."""
    assert chosen(GELU, *size) == Block(16, 64, 1, 2, 4)
    fused, shapes = products.case(GELU, HALF, size[:1], *size[1:])
    assert "mma.sync" in cuda.plan(fused, tuple(shapes), True, H200).kernel.text


@pytest.mark.parametrize("tile", costs.wgmma().split, ids=str)
@pytest.mark.parametrize("rows", [3, 300])
def test_blocks_of_a_split_tile_exchange_all_their_sums(tile: GemmTile, rows: int) -> None:
    """Each cell is finished, by a block that has been sent the sums of all others, none of them twice."""
    fused, shapes = products.case(TRANSPOSED, HALF, (rows,), 264, 2048)
    plan = cuda.plan(fused, tuple(shapes), True, H200, GemmVariant(tile=tile))
    assert split_sums.errors(plan) == 0


@pytest.mark.parametrize("tile", [*costs.wgmma().float16, GemmTile(128, 64, 2), *costs.wgmma().split], ids=str)
def test_what_is_announced_of_a_residual_is_fetched(tile: GemmTile) -> None:
    """By each block of a cluster: else its barrier opens too soon, or never again."""
    text, columns = (TRANSPOSED_RESIDUAL, 24 if tile.n < 64 else 648) if tile.n % 64 else (RESIDUAL, 648)
    fused, shapes = products.case(text, HALF, (300,), columns, 2048)
    found = split_sums.staged_bytes(cuda.plan(fused, tuple(shapes), True, H200, GemmVariant(tile=tile)))
    chunks = tile.m // (64 * tile.warpgroups) * -(-tile.n // 64)
    assert len(found) == tile.cluster * tile.split
    assert sum(fetched for _, fetched in found) == tile.cluster * chunks * 16 * 64 * 2
    assert all(announced == fetched for announced, fetched in found)


def test_a_gate_may_be_split() -> None:
    fused, shapes = products.case(SWIGLU, HALF, (300,), 264, 2048)
    tile = GemmTile(128, 64, 1, warpgroups=2, teams=1, split=3)
    assert split_sums.errors(cuda.plan(fused, tuple(shapes), True, H200, GemmVariant(tile=tile))) == 0


@pytest.mark.parametrize(("side", "filters"), [(64, 320), (32, 640), (64, 144)])
def test_tiles_of_windows_are_as_wide_as_their_filters_want(side: int, filters: int) -> None:
    """Of 320 columns tiles of 128 or 192 waste a sixth, of 160 nothing; of 640 those fill two rounds."""
    fused, shapes = products.window(HALF, (8, side, side, 320), filters, (3, 3), "pads = [1, 1, 1, 1]")
    assert str(gemm.chosen(fused, tuple(shapes), H200)) == "128x160x1"


@pytest.mark.parametrize("text", [GELU, TRANSPOSED])
def test_rows_of_a_right_factor_are_fetched_from_boundaries_of_128_bytes(text: str) -> None:
    """A tile of 160 of them would begin in the middle, and take twice as long: 1568x768x3072 25 us, 14 by 192."""
    fused, shapes = products.case(text, HALF, (1568,), 640, 768)
    assert any(t.n % 64 for t in gemm.tiles(fused, tuple(shapes))) == (text == TRANSPOSED)


def test_blocks_that_split_a_tile_are_one_cluster() -> None:
    fused, shapes = products.case(GELU, HALF, (16,), 768, 3072)
    plan = cuda.plan(fused, tuple(shapes), True, H200, GemmVariant(tile=GemmTile(64, 64, 1, teams=1, split=4)))
    assert plan.grid == (12 * 4, 1, 1)
    assert plan.block == (256, 1, 1)
    assert "TOGETHER = 4" in plan.kernel.text
    assert plan.tensor_maps[0].box == (64, 16)  # no more rows than there are


@pytest.mark.parametrize(("rows", "n", "k", "late"), [(128, 3072, 768, False), (512, 768, 768, False),
                                                      (512, 3072, 768, True), (512, 768, 3072, True)])  # fmt: skip
def test_a_long_kernel_lets_the_next_one_begin_late(rows: int, n: int, k: int, late: bool) -> None:
    """By the estimate of its time; a tile that has none, of a test's own, does as a short one."""
    fused, shapes = products.case(PLAIN, HALF, (rows,), n, k)
    assert f"LONG = {str(late).lower()};" in cuda.plan(fused, tuple(shapes), True, H200).kernel.text
    unknown = cuda.plan(fused, tuple(shapes), True, H200, GemmVariant(tile=GemmTile(128, 64, 2)))
    assert "LONG = false;" in unknown.kernel.text


def test_a_light_body_leaves_room_for_the_widest_tile_of_a_warpgroup() -> None:
    assert chosen(PLAIN, 4096, 3072, 768) == GemmTile(128, 192, 1)


def test_a_gate_shares_the_columns_of_a_tile() -> None:
    assert chosen(SWIGLU, 4096, 5632, 2048) == GemmTile(256, 64, 1, warpgroups=2, teams=1)
    assert chosen(SWIGLU, 512, 5632, 2048) == GemmTile(128, 64, 1)
    parts = gemm_body.anatomy(products.case(SWIGLU, HALF, (8,), 64, 64)[0])
    assert [epilogue.products for epilogue in parts.epilogues] == [(0, 1)]


@pytest.mark.parametrize("text", BODIES)
@pytest.mark.parametrize("size", [((1,), 8, 8), ((16,), 768, 3072), ((4096,), 768, 768)])
def test_what_tuning_tries_can_be_planned(text: str, size: tuple[tuple[int], int, int]) -> None:
    """Every candidate fits the shared memory, and the plan's own choice is one of them or a split."""
    fused, shapes = products.case(text, HALF, *size)
    tried = gemm.candidates(fused, tuple(shapes), H200)
    assert tried
    for tuning in tried:
        assert cuda.plan(fused, tuple(shapes), True, H200, tuning).shared_bytes <= sm90.SHARED_LIMIT
    assert gemm.chosen(fused, tuple(shapes), H200) in [t.tile or t.block or t.strip for t in tried]


def test_products_side_by_side_keep_their_own_operands() -> None:
    parts = gemm_body.anatomy(products.case(QKV, HALF, (8,), 8, 8)[0])
    assert [(epilogue.products, epilogue.operands, epilogue.outputs) for epilogue in parts.epilogues] == [
        ((0,), (4,), (0,)), ((1,), (5,), (1,)), ((2,), (6,), (2,)),
    ]  # fmt: skip


def test_the_copy_engine_is_told_the_matrices() -> None:
    """Left factor, right factors, outputs: pointer, extents innermost first, bytes from row to row, box.

    Of 40 terms three slices of 16 are fetched, not the zeros of a fourth.
    """
    fused, shapes = products.case(TRANSPOSED, HALF, (100,), 72, 40)
    plan = cuda.plan(fused, tuple(shapes), True, H200, GemmVariant(tile=GemmTile(128, 128, 2)))
    assert [(m.pointer, m.extents, m.strides, m.box) for m in plan.tensor_maps] == [
        (0, (40, 100), (80,), (48, 104)), (1, (40, 72), (80,), (48, 64)), (3, (72, 100), (144,), (64, 16)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((), "uniform"), ((1, 1), "uniform"), ((768,), "column"), ((1, 1, 768), "column"), (("B", "S", 768), "cell"),
        (("B", "S", 1), "row"), (("S", 768), None), (("B", 1, 768), None), ((1, "B", "S", 768), None),
    ],
)  # fmt: skip
def test_how_an_operand_lies_in_the_output(shape: tuple[int | str, ...], kind: str | None) -> None:
    assert gemm_problem.operand_kind(shape, ("B", "S", 768)) == kind


# ---- convolutions: the left factor is what a window sees


@pytest.mark.parametrize("attributes", ["strides = [2, 3], pads = [0, 1, 2, 1]", 'auto_pad = "SAME_LOWER"'])
def test_strides_and_pads_of_five_channels(attributes: str) -> None:
    fused, shapes = products.window(HALF, (2, 7, 8, 5), 6, (3, 2), attributes)
    check(fused, shapes, aligned=False, arch=A100)


@pytest.mark.parametrize(
    ("dtype", "channels", "aligned", "attributes"),
    [
        (HALF, 72, True, "pads = [1, 1, 1, 1]"), (BRAIN, 16, True, "strides = [2, 3], pads = [0, 1, 2, 1]"),
        (FLOAT, 40, True, "dilations = [2, 1]"), (HALF, 5, False, 'auto_pad = "SAME_UPPER", strides = [2, 2]'),
        (FLOAT, 6, True, 'auto_pad = "SAME_LOWER"'), (HALF, 12, True, 'auto_pad = "VALID"'), (BRAIN, 6, True, ""),
    ],
)  # fmt: skip
def test_windows_before_hopper(dtype: int, channels: int, aligned: bool, attributes: str) -> None:
    """A step may see several elements of the window; pieces of 16 bytes down to one element, each of one of them."""
    emulated(*products.window(dtype, (2, 7, 8, channels), 10, (3, 2), attributes), aligned, A100)


@pytest.mark.parametrize("dtype", [HALF, FLOAT])
@pytest.mark.parametrize("tile", [GemmTile(64, 64, 1), GemmTile(128, 64, 2), GemmTile(128, 128, 2)])
def test_a_convolution_compiles(tile: GemmTile, dtype: int) -> None:
    fused, shapes = products.window(dtype, (2, 14, 14, 64), 64, (3, 3), "pads = [1, 1, 1, 1]")
    plan = cuda.plan(fused, tuple(shapes), True, H200, GemmVariant(tile=tile))
    cubin, _ = nvrtc.build(plan.kernel, H200, ())
    assert cubin[:4] == b"\x7fELF"


def test_the_copy_engine_is_told_how_the_window_slides() -> None:
    """Corners and strides are (across, down); a copy moves a tile's worth of places, half of a row for few channels."""
    attributes = "pads = [1, 2, 0, 1], strides = [2, 3], dilations = [1, 2]"
    fused, shapes = products.window(HALF, (2, 14, 20, 24), 40, (3, 5), attributes)
    plan = cuda.plan(fused, tuple(shapes), True, H200, GemmVariant(tile=GemmTile(128, 64, 2)))
    images, filters, put, staged = plan.tensor_maps
    window = PixelWindow((-2, -1), (-7, -2), (3, 2))
    assert images == TensorMapSpec(0, HALF, (24, 20, 14, 2), (48, 960, 13440), (32, 128), window)
    assert filters == TensorMapSpec(1, HALF, (24, 15, 40), (48, 720), (32, 1, 32))
    assert (put.pointer, staged.pointer) == (4, 3)
    assert put.extents == staged.extents == (40, 2 * 7 * 5)
    assert plan.output_shapes == (shapes[3],) == ((2, 7, 5, 40),)


@pytest.mark.parametrize("tile", [GemmTile(128, 64, 1), GemmTile(128, 128, 1, warpgroups=2, teams=1)], ids=str)
def test_a_residual_beside_two_outputs_is_fetched_by_the_copy_engine(tile: GemmTile) -> None:
    """To where the first output is put; without it, threads that load it have no registers left."""
    fused, shapes = products.case(products.PREACTIVATED, HALF, (300,), 96, 64)
    plan = cuda.plan(fused, tuple(shapes), True, H200, GemmVariant(tile=tile))
    *_, first, second, staged = plan.tensor_maps
    assert [first.pointer, second.pointer, staged.pointer] == [5, 6, 2]
    assert staged == replace(first, pointer=2)
    _, log = nvrtc.build(plan.kernel, H200, ("-Xptxas=-v",))
    assert set(re.findall(r"(\d+) bytes spill stores", log)) == {"0"}


# ---- convolutions in groups

GROUPED = [(48, 48, 3), (16, 24, 2), (80, 72, 2)]
"""Channels and filters of a group, and groups: steps end where a group does, columns of a tile where they may."""


@pytest.mark.parametrize(
    ("dtype", "channels", "filters", "groups", "aligned", "arch"),
    [
        (HALF, 48, 40, 3, True, A100), (BRAIN, 16, 8, 5, True, A100), (FLOAT, 12, 10, 2, True, A100),
        (HALF, 6, 3, 4, True, A100), (HALF, 5, 7, 3, False, A100),
    ],
)  # fmt: skip
def test_groups_read_their_own_channels_and_write_their_own_columns(
    dtype: int, channels: int, filters: int, groups: int, aligned: bool, arch: Arch
) -> None:
    """Operands of all columns, tiles that stick out of a group, pieces of 16 bytes down to one element."""
    attributes = f"group = {groups}, strides = [1, 2], pads = [1, 0, 1, 2]"
    fused, shapes = products.window(dtype, (2, 7, 8, channels * groups), filters * groups, (3, 2), attributes)
    emulated(fused, shapes, aligned, arch)


def test_an_infinity_stays_in_its_group() -> None:
    """It lies beside the channels of the group before, in the same line of a tile."""
    fused, shapes = products.window(HALF, (1, 5, 6, 3 * 48), 3 * 8, (3, 3), "group = 3, pads = [1, 1, 1, 1]")
    rng = np.random.default_rng(0)
    inputs = [ops.random(rng, t, s) for t, s in zip(fused.inputs, shapes, strict=True)]
    inputs[0][..., 48] = np.inf
    plan = cuda.plan(fused, tuple(shapes), True, A100)
    (got,) = emulate.run(plan, inputs, [np.float16])
    assert np.isfinite(got[..., :8]).all()
    assert np.isfinite(got[..., 16:]).all()
    assert not np.isfinite(got[..., 8:16]).all()


@pytest.mark.parametrize(("channels", "filters", "groups"), GROUPED)
@pytest.mark.parametrize("dtype", [HALF, FLOAT])
@pytest.mark.parametrize(
    "tile", [GemmTile(64, 64, 1), GemmTile(128, 128, 2), GemmTile(64, 64, 1, teams=1, split=6)], ids=str
)
def test_groups_compile_for_hopper(channels: int, filters: int, groups: int, dtype: int, tile: GemmTile) -> None:
    fused, shapes = products.window(
        dtype, (1, 1, 49, channels * groups), filters * groups, (1, 128), f"group = {groups}, pads = [0, 64, 0, 64]"
    )
    plan = cuda.plan(fused, tuple(shapes), True, H200, GemmVariant(tile=tile))
    _, log = nvrtc.build(plan.kernel, H200, ("-Xptxas=-v",))
    assert set(re.findall(r"(\d+) bytes spill stores", log)) == {"0"}


def test_the_copy_engine_is_told_of_groups() -> None:
    """Of filters and outputs it takes what is a group's alone; of images a step that ends in it."""
    fused, shapes = products.window(HALF, (2, 9, 10, 144), 72, (3, 3), "group = 3, pads = [1, 1, 1, 1]")
    plan = cuda.plan(fused, tuple(shapes), True, H200, GemmVariant(tile=GemmTile(64, 64, 1)))
    images, filters, put, staged = plan.tensor_maps
    assert images == TensorMapSpec(
        0, HALF, (144, 10, 9, 2), (288, 2880, 25920), (64, 64), PixelWindow((-1, -1), (-1, -1), (1, 1))
    )
    assert filters == TensorMapSpec(1, HALF, (48, 9, 24, 3), (96, 864, 20736), (64, 1, 64, 1))
    assert put == replace(staged, pointer=4) == TensorMapSpec(4, HALF, (24, 180, 3), (144, 48), (64, 16, 1))
    assert "constexpr int SLICES = 3;" in plan.kernel.text


@pytest.mark.parametrize(("channels", "slices"), [(16, 1), (32, 2), (48, 3), (64, 4), (80, 1), (96, 3), (128, 4)])
def test_steps_end_where_a_group_does(channels: int, slices: int) -> None:
    fused, shapes = products.window(HALF, (1, 8, 8, 2 * channels), 16, (3, 3), "group = 2")
    plan = cuda.plan(fused, tuple(shapes), True, H200)
    assert f"constexpr int SLICES = {slices};" in plan.kernel.text


# ---- convolutions of volumes


@pytest.mark.parametrize(
    ("dtype", "channels", "kernel", "aligned", "arch", "attributes"),
    [
        (HALF, 72, (3, 3, 3), True, A100, "pads = [1, 1, 1, 1, 1, 1]"),
        (BRAIN, 16, (2, 3, 1), True, A100, "strides = [1, 2, 3], pads = [1, 0, 0, 0, 2, 1]"),
        (FLOAT, 8, (3, 1, 2), True, A100, "strides = [2, 1, 1], dilations = [2, 1, 3], pads = [2, 0, 1, 1, 0, 2]"),
        (HALF, 5, (1, 3, 2), False, A100, 'auto_pad = "SAME_UPPER", strides = [2, 2, 1]'),
        (HALF, 24, (3, 1, 1), True, A100, "group = 3, pads = [1, 0, 0, 1, 0, 0]"),
    ],
)  # fmt: skip
def test_windows_over_volumes(
    dtype: int, channels: int, kernel: tuple[int, int, int], aligned: bool, arch: Arch, attributes: str
) -> None:
    """Each axis with strides, dilations and pads of its own."""
    emulated(*products.window(dtype, (2, 5, 6, 4, channels), 12, kernel, attributes), aligned, arch)


@pytest.mark.parametrize("dtype", [HALF, FLOAT])
@pytest.mark.parametrize(
    "tile", [GemmTile(128, 64, 1), GemmTile(128, 128, 2), GemmTile(64, 64, 1, teams=1, split=4)], ids=str
)
def test_volumes_compile_for_hopper(tile: GemmTile, dtype: int) -> None:
    fused, shapes = products.window(dtype, (2, 4, 14, 14, 64), 64, (3, 3, 3), "pads = [1, 1, 1, 1, 1, 1]")
    plan = cuda.plan(fused, tuple(shapes), True, H200, GemmVariant(tile=tile))
    _, log = nvrtc.build(plan.kernel, H200, ("-Xptxas=-v",))
    spilled = [int(line.split(" bytes spill stores")[0].split()[-1]) for line in log.splitlines() if "spill" in line]
    assert all(s <= 160 for s in spilled), log


def test_the_copy_engine_is_told_of_volumes() -> None:
    attributes = "strides = [1, 2, 3], dilations = [2, 1, 1], pads = [1, 0, 2, 0, 1, 0]"
    fused, shapes = products.window(HALF, (2, 6, 14, 20, 64), 40, (2, 3, 5), attributes)
    plan = cuda.plan(fused, tuple(shapes), True, H200, GemmVariant(tile=GemmTile(64, 64, 1)))
    window = PixelWindow((-2, 0, -1), (-4, -1, -2), (3, 2, 1))
    strides = (128, 2560, 35840, 215040)
    assert plan.tensor_maps[0] == TensorMapSpec(0, HALF, (64, 20, 14, 6, 2), strides, (64, 64), window)
    assert plan.tensor_maps[1].extents == (64, 30, 40)
    assert plan.output_shapes == ((2, 5, 7, 6, 40),)


@pytest.mark.parametrize("pads", ["pads = [0, 0, 17, 0, 0, 17]", "dilations = [1, 1, 16]"])
def test_volumes_that_the_copy_engine_does_not_take(pads: str) -> None:
    """It has fewer bits for each of three axes."""
    fused, shapes = products.window(HALF, (1, 3, 4, 60, 64), 64, (1, 1, 3), pads)
    assert "wgmma" not in cuda.plan(fused, tuple(shapes), True, H200).kernel.text


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ("strides = [1]", "a window along 1 dimension over images of rank 4"),
    ],
)
def test_what_no_window_fits_is_refused_with_the_reason(attributes: str, reason: str) -> None:
    text = products.CONV.replace("ATTRIBUTES", attributes)
    assert reason in str(cuda.supports(ops.op(text, (HALF,) * 4, (HALF,), "gemm")))


def test_a_convolution_of_channels_first_is_refused() -> None:
    text = "(x, w) => (y) { y = Conv(x, w) }"
    assert "do not have their channels last" in str(cuda.supports(ops.op(text, (HALF,) * 2, (HALF,), "gemm")))


@pytest.mark.parametrize(
    ("shape", "first"),
    [
        (("B", 1, 1, 8), 1),
        (("B", "H", 1, 8), 2),
        (("B", 1, 1, 1), None),
        ((1, 1, 1, 8), None),
        ((1, "H", 1, 8), None),
        (("B", 1, "W", 8), None),
        (("N", 1, 1, 8), None),
        (("B", 1, 8), None),
        (("B", None, 1, 8), None),
    ],
)
def test_vectors_of_terms_for_groups_of_rows(shape: tuple[str | int | None, ...], first: int | None) -> None:
    """A gate of each image: ones from some dimension on, up to the last; the dimensions before agree by name."""
    assert gemm_problem.group_kind(shape, ("B", "H", "W", 8)) == first


def test_groups_of_rows_are_of_one_size() -> None:
    text = "(x, g, h, w) => (y) { a = Mul(x, g) b = Add(a, h) y = MatMul(b, w) }"
    fused = ops.op(text, (HALF,) * 4, (HALF,), "gemm")
    with pytest.raises(KernelError, match="vectors of terms for groups of 3 and 15 rows"):
        cuda.plan(fused, ((2, 5, 3, 8), (2, 1, 1, 8), (2, 5, 1, 8), (8, 8)), True, A100)


def test_a_matrix_of_one_row_is_fetched_ahead_like_any_other() -> None:
    """It is a vector of terms, too; the kernel is then that of more rows."""
    texts = set()
    for rows in (1, 2):
        fused, shapes = products.prologue("silu and gate", HALF, rows, 72, 200)
        texts.add(cuda.plan(fused, tuple(shapes), True, A100, GemmVariant(block=Block(16, 64, 1, 2, 4))).kernel.text)
    assert len(texts) == 1


def test_wide_columns_are_chosen_where_the_left_factor_is_costly() -> None:
    """Each tile of columns computes it anew."""
    plain, shapes = products.case(GELU, HALF, (4096,), 256, 768)
    costly, more = products.prologue("silu and gate", HALF, 4096, 256, 768)
    wide, narrow = gemm.chosen(costly, tuple(more), H200), gemm.chosen(plain, tuple(shapes), H200)
    assert not isinstance(wide, Strip)
    assert not isinstance(narrow, Strip)
    assert wide.n > narrow.n


# ---- what Hopper's kernel fetches


@pytest.mark.parametrize(
    ("images", "filters", "kernel", "attributes", "tile"),
    [
        ((2, 5, 6, 72), 24, (3, 2), "pads = [1, 0, 1, 2], strides = [1, 2]", GemmTile(64, 64, 1)),
        ((1, 4, 5, 96), 80, (3, 3), "group = 2, pads = [1, 1, 1, 1]", GemmTile(64, 64, 1)),
        ((2, 1, 9, 160), 144, (1, 6), "group = 2, pads = [0, 3, 0, 2]", GemmTile(64, 128, 1)),
        ((2, 3, 5, 4, 64), 40, (3, 2, 3), "pads = [1, 0, 1, 1, 1, 1], strides = [1, 2, 1]", GemmTile(64, 64, 1)),
        ((2, 4, 3, 5, 72), 8, (2, 1, 2), "dilations = [2, 1, 3], pads = [0, 1, 2, 1, 0, 2]", GemmTile(64, 64, 1)),
        ((1, 3, 4, 4, 96), 48, (2, 3, 1), "group = 3, pads = [1, 1, 0, 0, 1, 0]", GemmTile(64, 64, 1)),
        ((2, 5, 6, 72), 328, (3, 2), "pads = [1, 0, 1, 2]", GemmTile(128, 160, 1)),
        ((1, 5, 6, 96), 208, (3, 3), "group = 2, pads = [1, 1, 1, 1]", GemmTile(128, 96, 1)),
    ],
)  # fmt: skip
def test_what_hopper_fetches_is_the_convolution(
    images: tuple[int, ...], filters: int, kernel: tuple[int, ...], attributes: str, tile: GemmTile
) -> None:
    """Step by step, as blocks that share a sum begin in its midst; a tensor core's slices, the group's alone.

    The last tile of several ends with the columns.
    """
    fused, shapes = products.window(HALF, images, filters, kernel, attributes)
    rng = np.random.default_rng(0)
    inputs = [ops.random(rng, t, s) for t, s in zip(fused.inputs, shapes, strict=True)]
    inputs[2][...] = inputs[3][...] = 0
    plan = cuda.plan(fused, tuple(shapes), True, H200, GemmVariant(tile=tile))
    assert "wgmma" in plan.kernel.text
    got = np.maximum(copy_engine.convolved(plan, *inputs[:2]), 0)
    ops.within_budget(fused, inputs, [got.astype(np.float16).reshape(shapes[3])])
