"""The gemm template: a body taken apart, the plan for each size, and the plain kernel run by the host's compiler."""

from dataclasses import replace

import pytest

from onnxfuse import kernels
from onnxfuse.kernels import Arch, Tuning, anatomy, gemm, nvrtc
from onnxfuse.kernels.plans import TensorMap, Tile, Window
from tests.kernels import ops, products
from tests.kernels.ops import BRAIN, DOUBLE, FLOAT, HALF
from tests.kernels.products import GELU, PLAIN, QKV, RESIDUAL, SEVERAL, SWIGLU, TRANSPOSED
from tests.kernels.test_emulated import H200, check

BODIES = [PLAIN, GELU, TRANSPOSED, RESIDUAL, SWIGLU, QKV, SEVERAL]


@pytest.mark.parametrize("text", BODIES)
@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("size", [((1,), 1, 1), ((5,), 3, 7), ((33,), 24, 16)])
def test_the_plain_kernel_gives_the_body(text, dtype, size):
    """Any size, any alignment: pointers off the boundary and sizes that are no multiples of 8."""
    fused, shapes = products.case(text, dtype, *size)
    check(fused, shapes, aligned=False)


def test_leading_dimensions_are_rows():
    fused, shapes = products.case(RESIDUAL, HALF, (2, 3), 5, 4)
    check(fused, shapes, aligned=False)


@pytest.mark.parametrize("rows", [(0,), (3, 0)])
def test_no_rows_launch_nothing(rows):
    fused, shapes = products.case(GELU, HALF, rows, 64, 64)
    for aligned in (True, False):
        plan = kernels.plan(fused, tuple(shapes), aligned, H200)
        assert plan.grid[0] == 0
        assert plan.output_shapes == ((*rows, 64),)


def test_products_of_no_terms_are_zero():
    fused, shapes = products.case(GELU, HALF, (3,), 8, 0)
    check(fused, shapes)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(x, w) => (y) { y = Relu(x) }", "no matrix product in the body"),
        ("(x, w) => (y) { m = MatMul(x, w) y = Softmax(m) }", "a reduction after a matrix product"),
        ("(x, w) => (y) { r = Relu(x) y = MatMul(r, w) }", "MatMul whose factor is computed in the body"),
        ("(x, w) => (y) { y = Gemm <alpha = 0.5> (x, w) }", "Gemm with alpha, transA or a bias of its own"),
        ("(x, w) => (y) { y = Gemm <transA = 1> (x, w) }", "Gemm with alpha, transA or a bias of its own"),
        ("(x, w) => (y, z) { y = MatMul(x, w) z = Relu(w) }", "an output that reads no product"),
        ("(x, w) => (y, z) { m = MatMul(x, w) n = MatMul(x, w) y = Relu(m) z = Abs(n) }", "different bodies"),
        ("(x, w) => (y) { m = MatMul(x, w) n = MatMul(w, x) y = Add(m, n) }", "different left factors"),
    ],
)
def test_what_no_kernel_fits_is_refused_with_the_reason(text, reason):
    function = ops.op(text, (HALF, HALF), (HALF,) * text.split("=>")[1].split(")")[0].count(",") + (HALF,), "gemm")
    assert reason in str(kernels.supports(function))


def test_float32_products_want_their_terms_side_by_side():
    assert "wants" in str(kernels.supports(products.case(GELU, FLOAT, (8,), 8, 8)[0]))
    assert kernels.supports(products.case(TRANSPOSED, FLOAT, (8,), 8, 8)[0]) is None
    assert kernels.supports(products.case(TRANSPOSED, DOUBLE, (8,), 8, 8)[0]) == "products of DOUBLE"


def test_float32_is_not_rounded_where_the_session_forbids_it():
    exact = Arch("sm_90a", 132, tf32=False)
    assert kernels.supports(products.case(TRANSPOSED, HALF, (8,), 8, 8)[0], lambda: exact) is None
    refusal = kernels.supports(products.case(TRANSPOSED, FLOAT, (8,), 8, 8)[0], lambda: exact)
    assert refusal == "the kernel rounds float32 to TF32, and use_tf32 is 0"


def test_float32_takes_half_as_many_terms_at_once():
    """The rows of the factors' tiles are 128 bytes, whatever the type."""
    fused, shapes = products.case(TRANSPOSED, FLOAT, (100,), 72, 40)
    plan = kernels.plan(fused, tuple(shapes), True, H200, Tuning(tile=Tile(128, 128, 1)))
    assert [(m.box, m.to_tf32) for m in plan.tensor_maps] == [((32, 104), True), ((32, 128), True), ((32, 16), False)]
    assert "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32" in plan.kernel.text


def test_only_hopper_runs_the_fast_kernel():
    """Elsewhere the body runs: the library's product beats the plain kernel."""
    fused, _ = products.case(GELU, HALF, (8,), 8, 8)
    assert kernels.supports(fused, lambda: H200) is None
    assert (
        kernels.supports(fused, lambda: Arch("sm_80", 108))
        == "the product's kernel is made for sm_90a, this GPU is sm_80"
    )


@pytest.mark.parametrize("text", BODIES)
@pytest.mark.parametrize("tile", [*gemm.COSTS, Tile(64, 64, 1, teams=1, split=4)], ids=str)
def test_every_variant_compiles_without_spilling_much(text, tile):
    """The accumulators stay in registers: what is spilled is a handful of operands."""
    fused, shapes = products.case(text, HALF, (256,), 256, 128)
    if text == SWIGLU and tile.n < 128:
        pytest.skip("the columns of a gate's two products come 64 at a time")
    tile = replace(tile, n=tile.n // 2) if text == SWIGLU else tile
    if tile not in [t.tile for t in gemm.candidates(fused, tuple(shapes), H200)] and tile.split == 1:
        pytest.skip("this body takes no tile as large")
    plan = kernels.plan(fused, tuple(shapes), True, H200, Tuning(tile=tile))
    cubin, log = nvrtc.build(plan.kernel, H200, ("-Xptxas=-v",))
    assert cubin[:4] == b"\x7fELF"
    spilled = [int(line.split(" bytes spill stores")[0].split()[-1]) for line in log.splitlines() if "spill" in line]
    assert all(s <= 160 for s in spilled), log
    assert plan.shared_bytes <= gemm.SHARED_LIMIT


def chosen(text: str, rows: int, n: int, k: int) -> Tile:
    fused, shapes = products.case(text, HALF, (rows,), n, k)
    return gemm.chosen(fused, tuple(shapes), H200)


@pytest.mark.parametrize(
    ("size", "tile"),
    [
        ((1, 768, 768), "64x64x1"), ((128, 3072, 768), "64x64x1"), ((1024, 1024, 1024), "64x128x1 t1"),
        ((512, 3072, 768), "128x128x1 w2 t1"), ((4096, 768, 3072), "128x192x1 w2 t1"), ((4096, 3072, 768), "128x128x1"),
        ((6304, 768, 3072), "192x192x1 w3 t1"), ((4096, 4096, 4096), "128x128x2"),
    ],
)  # fmt: skip
def test_the_tile_follows_the_size(size, tile):
    """Few rows take small tiles, so that more multiprocessors work; many the one that leaves the last round full."""
    assert str(chosen(GELU, *size)) == tile


@pytest.mark.parametrize("size", [(16, 768, 3072), (128, 768, 3072)])
def test_few_tiles_of_long_sums_are_split(size):
    tile = chosen(GELU, *size)
    assert tile.split > 1
    assert (-(-size[0] // 64)) * (size[1] // 64) * tile.split <= H200.sm_count


def test_short_sums_and_many_tiles_are_not_split():
    assert chosen(GELU, 1, 768, 768).split == chosen(GELU, 128, 5632, 3072).split == 1


def test_blocks_that_split_a_tile_are_one_cluster():
    fused, shapes = products.case(GELU, HALF, (16,), 768, 3072)
    plan = kernels.plan(fused, tuple(shapes), True, H200, Tuning(tile=Tile(64, 64, 1, teams=1, split=4)))
    assert plan.grid == (12 * 4, 1, 1)
    assert plan.block == (256, 1, 1)
    assert "TOGETHER = 4" in plan.kernel.text
    assert plan.tensor_maps[0].box == (64, 16)  # no more rows than there are


def test_a_light_body_leaves_room_for_the_widest_tile_of_a_warpgroup():
    assert chosen(PLAIN, 4096, 3072, 768) == Tile(128, 192, 1)


def test_a_gate_shares_the_columns_of_a_tile():
    assert chosen(SWIGLU, 4096, 5632, 2048) == Tile(256, 64, 1, warpgroups=2, teams=1)
    assert chosen(SWIGLU, 512, 5632, 2048) == Tile(128, 64, 1)
    parts = anatomy.anatomy(products.case(SWIGLU, HALF, (8,), 64, 64)[0])
    assert [lane.products for lane in parts.lanes] == [(0, 1)]


@pytest.mark.parametrize("text", BODIES)
@pytest.mark.parametrize("size", [((1,), 8, 8), ((16,), 768, 3072), ((4096,), 768, 768)])
def test_what_tuning_tries_can_be_planned(text, size):
    """Every candidate fits the shared memory, and the plan's own choice is one of them or a split."""
    fused, shapes = products.case(text, HALF, *size)
    tried = gemm.candidates(fused, tuple(shapes), H200)
    assert tried
    for tuning in tried:
        assert kernels.plan(fused, tuple(shapes), True, H200, tuning).shared_bytes <= gemm.SHARED_LIMIT
    assert gemm.chosen(fused, tuple(shapes), H200) in [t.tile for t in tried]


def test_products_side_by_side_keep_their_own_operands():
    parts = anatomy.anatomy(products.case(QKV, HALF, (8,), 8, 8)[0])
    assert [(lane.products, lane.operands, lane.outputs) for lane in parts.lanes] == [
        ((0,), (4,), (0,)), ((1,), (5,), (1,)), ((2,), (6,), (2,)),
    ]  # fmt: skip


def test_the_copy_engine_is_told_the_matrices():
    """Left factor, right factors, outputs: pointer, extents innermost first, bytes from row to row, box."""
    fused, shapes = products.case(TRANSPOSED, HALF, (100,), 72, 40)
    plan = kernels.plan(fused, tuple(shapes), True, H200, Tuning(tile=Tile(128, 128, 2)))
    assert [(m.pointer, m.extents, m.strides, m.box) for m in plan.tensor_maps] == [
        (0, (40, 100), (80,), (64, 104)), (1, (40, 72), (80,), (64, 64)), (3, (72, 100), (144,), (64, 16)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "kind"),
    [
        ((), "uniform"), ((1, 1), "uniform"), ((768,), "column"), ((1, 1, 768), "column"), (("B", "S", 768), "cell"),
        (("B", "S", 1), "row"), (("S", 768), None), (("B", 1, 768), None), ((1, "B", "S", 768), None),
    ],
)  # fmt: skip
def test_how_an_operand_lies_in_the_output(shape, kind):
    assert anatomy.operand_kind(shape, ("B", "S", 768)) == kind


# ---- convolutions: the left factor is what a window sees

SLIDING = ["", "pads = [1, 1, 1, 1]", "strides = [2, 3], pads = [0, 1, 2, 1]", "dilations = [2, 1]",
           'auto_pad = "SAME_UPPER", strides = [2, 2]', 'auto_pad = "SAME_LOWER"', 'auto_pad = "VALID"']  # fmt: skip


@pytest.mark.parametrize("attributes", SLIDING)
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
def test_the_plain_kernel_gives_a_convolution(attributes, dtype):
    fused, shapes = products.window(dtype, (2, 7, 8, 5), 6, (3, 2), attributes)
    check(fused, shapes, aligned=False)


@pytest.mark.parametrize("dtype", [HALF, FLOAT])
@pytest.mark.parametrize("tile", [Tile(64, 64, 1), Tile(128, 64, 2), Tile(128, 128, 2)])
def test_a_convolution_compiles(tile, dtype):
    fused, shapes = products.window(dtype, (2, 14, 14, 64), 64, (3, 3), "pads = [1, 1, 1, 1]")
    plan = kernels.plan(fused, tuple(shapes), True, H200, Tuning(tile=tile))
    cubin, _ = nvrtc.build(plan.kernel, H200, ())
    assert cubin[:4] == b"\x7fELF"


def test_the_copy_engine_is_told_how_the_window_slides():
    """Corners and strides are (across, down); a copy moves a tile's worth of places, 64 channels each."""
    attributes = "pads = [1, 2, 0, 1], strides = [2, 3], dilations = [1, 2]"
    fused, shapes = products.window(HALF, (2, 14, 20, 24), 40, (3, 5), attributes)
    plan = kernels.plan(fused, tuple(shapes), True, H200, Tuning(tile=Tile(128, 64, 2)))
    images, filters, put, staged = plan.tensor_maps
    window = Window((-2, -1), (-7, -2), (3, 2))
    assert images == TensorMap(0, HALF, (24, 20, 14, 2), (48, 960, 13440), (64, 128), window)
    assert filters == TensorMap(1, HALF, (24, 15, 40), (48, 720), (64, 1, 32))
    assert (put.pointer, staged.pointer) == (4, 3)
    assert put.extents == staged.extents == (40, 2 * 7 * 5)
    assert plan.output_shapes == (shapes[3],) == ((2, 7, 5, 40),)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ("group = 2", "a convolution in 2 groups"),
        ("strides = [1]", "images that are not two-dimensional"),
    ],
)
def test_what_no_window_fits_is_refused_with_the_reason(attributes, reason):
    text = products.CONV.replace("ATTRIBUTES", attributes)
    assert reason in str(kernels.supports(ops.op(text, (HALF,) * 4, (HALF,), "gemm")))


def test_a_convolution_of_channels_first_is_refused():
    text = "(x, w) => (y) { y = Conv(x, w) }"
    assert "do not have their channels last" in str(kernels.supports(ops.op(text, (HALF,) * 2, (HALF,), "gemm")))
