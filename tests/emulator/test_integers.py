"""Products of 8-bit integers on tensor cores: exact int32 sums, and the epilogue of a dynamically quantized layer."""

from collections.abc import Sequence

import numpy as np
import pytest
from onnx import TensorProto

from bench.cases import ops
from bench.cases.ops import FLOAT, HALF, INT32
from onnxfuse import cuda
from onnxfuse.cuda.build import nvrtc
from onnxfuse.cuda.planning import limits
from onnxfuse.cuda.planning.arch import A100, H200, L4, SUPPORTED, Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.templates.gemm import costs
from onnxfuse.cuda.templates.gemm.body import anatomy
from onnxfuse.cuda.templates.gemm.variant import Block, GemmTile, GemmVariant
from onnxfuse.model.fused import FusedOp
from onnxfuse.support.errors import KernelError
from tests.emulator import copy_engine, emulate
from tests.support.kernels import programs, quantized

INT8, UINT8 = TensorProto.INT8, TensorProto.UINT8
TILES = [t for t in costs.wgmma().float16 if t.n <= limits.BOX]
"""Those of right factors [n, k], which TMA fetches in one box."""
PAIRS = [(a, b) for a in (INT8, UINT8) for b in (INT8, UINT8)]
SUMS = "(x, w) => (y) { t = Transpose <perm = [1, 0]> (w) y = MatMulInteger(x, t) }"
DYNAMIC = """(x, w, z, c, s, b) => (y) { t = Transpose <perm = [1, 0]> (w) m = MatMulInteger(x, t)
  k = Cast <to = 6> (z) p = Mul(k, c) d = Sub(m, p) f = Cast <to = 1> (d) g = Mul(f, s) h = Add(g, b) y = Relu(h) }"""
"""What quantize_dynamic writes, with the zero point of x by the sums of the weight's columns."""
ZERO = """(x, w) => (y) { z = Constant <value = uint8 {0}> () t = Transpose <perm = [1, 0]> (w)
  y = MatMulInteger(x, t, z) }"""
GATED = """(x, w, v, s) => (y) { t = Transpose <perm = [1, 0]> (w) u = Transpose <perm = [1, 0]> (v)
  m = MatMulInteger(x, t) n = MatMulInteger(x, u) f = Cast <to = 1> (m) g = Cast <to = 1> (n) h = Mul(f, s)
  i = Sigmoid(h) j = Mul(g, s) l = Mul(j, i) y = Cast <to = 10> (l) }"""


def case(
    text: str, pair: tuple[int, int], rows: tuple[int, ...], n: int, k: int
) -> tuple[FusedOp, list[tuple[int, ...]]]:
    x, w = pair
    kinds = {
        SUMS: ((x, w), (INT32,), [(*rows, k), (n, k)]),
        DYNAMIC: ((x, w, UINT8, INT32, FLOAT, FLOAT), (FLOAT,), [(*rows, k), (n, k), (), (1, n), (), (n,)]),
        GATED: ((x, w, w, FLOAT), (HALF,), [(*rows, k), (n, k), (n, k), ()]),
    }
    inputs, outputs, shapes = kinds[text]
    return ops.op(text, inputs, outputs, "gemm"), shapes


def drawn(fused: FusedOp, shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """Return inputs that use all 8 bits: the greatest sums of the greatest factors are among them."""
    rng = np.random.default_rng(0)
    inputs = []
    for dtype, shape in zip(fused.inputs, shapes, strict=True):
        if dtype in (INT8, UINT8):
            limits = np.iinfo(ops.NUMPY[dtype])
            values = rng.integers(limits.min, limits.max + 1, shape).astype(ops.NUMPY[dtype])
            if len(shape) > 1:
                values[..., :1, :] = limits.min if dtype == INT8 else limits.max
        elif dtype == INT32:
            values = rng.integers(-9999, 9999, shape).astype(np.int32)
        else:
            values = (rng.standard_normal(shape) / 4096).astype(ops.NUMPY[dtype])
        inputs.append(values)
    return inputs


def emulated(
    fused: FusedOp, shapes: Sequence[tuple[int, ...]], aligned: bool, arch: Arch = A100, block: Block | None = None
) -> LaunchPlan:
    inputs = drawn(fused, shapes)
    plan = cuda.plan(fused, tuple(shapes), aligned, arch, GemmVariant(block=block))
    got = emulate.run(plan, inputs, [ops.NUMPY[t] for t in fused.outputs], aligned)
    if fused.outputs == (INT32,):
        (x, w) = (a.astype(np.int64) for a in inputs)
        np.testing.assert_array_equal(got[0], x @ w.T)
    else:
        ops.within_budget(fused, inputs, got)
    return plan


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize(
    ("rows", "n", "k", "aligned"),
    [((70,), 72, 400, True), ((2, 3), 33, 131, False), ((5,), 7, 12, True), ((3,), 16, 6, True), ((9,), 8, 1, True)],
)
def test_sums_are_exact(pair: tuple[int, int], rows: tuple[int, ...], n: int, k: int, aligned: bool) -> None:
    """Of signed and unsigned factors on either side; of lines on boundaries of 16, of four and of no bytes."""
    plan = emulated(*case(SUMS, pair, rows, n, k), aligned)
    assert "TERMS = LINE / sizeof(Factor)" in plan.kernel.text


@pytest.mark.parametrize("block", costs.mma(A100).rounded, ids=str)
def test_every_block_sums_exactly(block: Block) -> None:
    emulated(*case(SUMS, (UINT8, INT8), (140,), 264, 300), True, H200, block)


@pytest.mark.parametrize("text", [DYNAMIC, GATED])
def test_what_quantization_writes_behind_a_product_is_its_epilogue(text: str) -> None:
    emulated(*case(text, (UINT8, INT8), (70,), 72, 200), True)
    emulated(*case(text, (UINT8, INT8), (3,), 17, 35), False)


def test_sums_of_many_terms_of_the_greatest_factors() -> None:
    """Beyond 2^24, where float sums would round: 255 * -128 and 255 * 255, each 4099 times."""
    for pair, factors in (((UINT8, INT8), (255, -128)), ((UINT8, UINT8), (255, 255))):
        fused, shapes = case(SUMS, pair, (3,), 8, 4099)
        inputs = [np.full(s, f, ops.NUMPY[t]) for s, f, t in zip(shapes, factors, pair, strict=True)]
        got = emulate.run(cuda.plan(fused, tuple(shapes), True, A100), inputs, [np.int32])
        assert (got[0] == factors[0] * factors[1] * 4099).all()


def test_the_general_kernel_wraps_as_the_others_do() -> None:
    """255 * 255 in 33100 terms exceeds 2^31; overflow of int would leave the result to the compiler."""
    fused, shapes = case(SUMS, (UINT8, UINT8), (1,), 1, 33100)
    inputs = [np.full(s, 255, np.uint8) for s in ((1, 33100), (1, 33100))]
    plan = cuda.general(fused, tuple(shapes), A100)
    got = emulate.run(plan, inputs, [np.int32])
    assert got[0].item() == np.array(255 * 255 * 33100).astype(np.int32)
    assert "int sum = 0" not in plan.kernel.text


@pytest.mark.parametrize("pair", PAIRS)
def test_the_general_kernel_sums_exactly(pair: tuple[int, int]) -> None:
    fused, shapes = case(SUMS, pair, (2, 5), 7, 33)
    inputs = drawn(fused, shapes)
    got = emulate.run(cuda.general(fused, tuple(shapes), A100), inputs, [np.int32])
    np.testing.assert_array_equal(got[0], quantized.product(*inputs[:2]))


@pytest.mark.parametrize("arch", [a for a in SUPPORTED if not a.isa.unused], ids=lambda arch: arch.name)
@pytest.mark.parametrize("aligned", [True, False])
def test_every_size_has_a_plan_and_launch_programs_answer_the_same(arch: Arch, aligned: bool) -> None:
    for rows, n, k in (((1,), 8, 16), ((3, 5), 33, 131), ((4096,), 3072, 768), ((0,), 8, 16), ((7,), 1, 1)):
        fused, shapes = case(DYNAMIC, (UINT8, INT8), rows, n, k)
        plan = cuda.plan(fused, tuple(shapes), aligned, arch)
        assert plan.shared_bytes <= arch.shared_bytes
        assert cuda.general(fused, tuple(shapes), arch).output_shapes == plan.output_shapes
        programs.agrees(fused, tuple(shapes), aligned, arch)


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("arch", [A100, L4, H200], ids=lambda arch: arch.name)
def test_products_of_integers_compile(arch: Arch, pair: tuple[int, int]) -> None:
    """By the instruction that each GPU has for them; PTX names the types of both factors."""
    fused, shapes = case(DYNAMIC, pair, (512,), 768, 768)
    plan = cuda.plan(fused, tuple(shapes), True, arch)
    names = ".".join(anatomy(fused).factors.ptx or ())
    assert ("wgmma" in plan.kernel.text) == (arch is H200)
    assert f"k32.s32.{names} " in plan.kernel.text or arch is not H200
    cubin, log = nvrtc.build(plan.kernel, arch, ("-Xptxas=-v",))
    assert cubin
    assert "0 bytes spill stores" in log
    assert "wgmma" not in log.replace("wgmma.mma_async", "")


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_tile_compiles_for_hopper(tile: GemmTile) -> None:
    """Widths of integer products are multiples of 16: those of all tiles are."""
    fused, shapes = case(DYNAMIC, (UINT8, INT8), (1024,), 1280 if tile.n >= 64 else 24, 512)
    plan = cuda.plan(fused, tuple(shapes), True, H200, GemmVariant(tile=tile))
    instruction = H200.isa.wgmma(anatomy(fused).factors)
    assert instruction is not None
    assert tile.n in instruction.n
    cubin, log = nvrtc.build(plan.kernel, H200, ("-Xptxas=-v",))
    assert cubin
    assert "serialized" not in log


def test_the_copy_engine_reads_128_terms_at_once() -> None:
    fused, shapes = case(SUMS, (UINT8, INT8), (200,), 256, 512)
    plan = cuda.plan(fused, tuple(shapes), True, H200, GemmVariant(tile=GemmTile(128, 128, 1)))
    a, b, y = plan.tensor_maps
    assert [(m.dtype, m.extents, m.box) for m in (a, b, y)] == [
        (UINT8, (512, 200), (128, 128)), (INT8, (512, 256), (128, 128)), (INT32, (256, 200), (32, 16)),
    ]  # fmt: skip


def test_lines_of_no_multiple_of_16_bytes_are_for_the_other_kernel() -> None:
    for k, hopper in ((512, True), (520, False), (516, False)):
        fused, shapes = case(SUMS, (UINT8, INT8), (200,), 256, k)
        assert bool(cuda.plan(fused, tuple(shapes), True, H200).tensor_maps) == hopper


def test_few_rows_of_many_terms_are_shared() -> None:
    """By warps of a block and by blocks of a cluster, as those of float16 are."""
    fused, shapes = case(SUMS, (UINT8, INT8), (16,), 768, 8192)
    chosen = [c for c in cuda.candidates(fused, tuple(shapes), H200) if isinstance(c, GemmVariant)]
    assert any(c.block is not None and c.block.warps_k > 1 for c in chosen)
    assert any(c.tile is not None and c.tile.split > 1 for c in chosen)


@pytest.mark.parametrize("block", [b for b in costs.mma(A100).rounded if b.warps_k > 1], ids=str)
def test_parts_of_sums_are_added_as_integers(block: Block) -> None:
    """Beyond 2^24, where floats would round: warps with 2048 terms each of the greatest factors and less of one."""
    fused, shapes = case(SUMS, (UINT8, INT8), (3,), 64, 8192)
    x, w = np.full(shapes[0], 255, np.uint8), np.full(shapes[1], -128, np.int8)
    x[:, ::1000] = 254
    got = emulate.run(cuda.plan(fused, tuple(shapes), True, H200, GemmVariant(block=block)), [x, w], [np.int32])
    np.testing.assert_array_equal(got[0], x.astype(np.int64) @ w.astype(np.int64).T)


@pytest.mark.parametrize(
    ("text", "types", "reason"),
    [
        ("(x, w) => (y) { y = MatMulInteger(x, w) }", (UINT8, INT8), "terms are not adjacent"),
        ("(x, w) => (y) { t = Transpose <perm = [1, 0]> (w) a = Neg(x) y = MatMulInteger(a, t) }", (INT8, INT8),
         "a left factor of INT8 that is computed"),
        ("(x, w, z) => (y) { t = Transpose <perm = [1, 0]> (w) y = MatMulInteger(x, t, z) }", (UINT8, INT8, UINT8),
         "not a constant"),
        (ZERO.replace("{0}", "{3}"),
         (UINT8, INT8), "zero point other than 0"),
    ],
)  # fmt: skip
def test_what_no_kernel_multiplies_is_refused_with_the_reason(text: str, types: tuple[int, ...], reason: str) -> None:
    fused = ops.op(text, types, (INT32,), "gemm")
    assert reason in (cuda.supports(fused) or "")


def test_a_gpu_without_the_instruction_has_no_plan() -> None:
    fused, shapes = case(SUMS, (UINT8, INT8), (5,), 8, 16)
    with pytest.raises(KernelError, match="products of uint8 by int8 on sm_75"):
        cuda.plan(fused, tuple(shapes), True, Arch("sm_75", 40))


def test_no_terms_are_sums_of_zero() -> None:
    """[5, 0] by [0, 8]; without rows nothing is launched."""
    for aligned in (True, False):
        emulated(*case(SUMS, (UINT8, INT8), (5,), 8, 0), aligned)


def test_a_zero_point_of_zero_is_none() -> None:
    assert cuda.supports(ops.op(ZERO, (UINT8, INT8), (INT32,), "gemm")) is None


@pytest.mark.parametrize("to", [INT8, UINT8])
@pytest.mark.parametrize(
    ("rows", "n", "k", "aligned"), [((70,), 80, 400, True), ((2, 3), 33, 131, False), ((5,), 8, 16, True)]
)
def test_results_are_quantized_where_they_are_summed(
    to: int, rows: tuple[int, ...], n: int, k: int, aligned: bool
) -> None:
    """With a residual of 8 bits; outputs of single bytes at any alignment."""
    fused, shapes = quantized.case(quantized.PRODUCT, rows, n, (k,), to)
    inputs = quantized.drawn(shapes, to)
    plan = cuda.plan(fused, tuple(shapes), aligned, A100)
    (got,) = emulate.run(plan, inputs, [ops.NUMPY[to]], aligned)
    sums = quantized.product(*inputs[:2])
    quantized.assert_same_steps(got, quantized.wanted(sums, inputs))


@pytest.mark.parametrize("attributes", ["pads = [1,1,1,1]", "strides = [2,2], pads = [1,1,1,1]"])
def test_windows_over_quantized_images(attributes: str) -> None:
    fused, shapes = quantized.case(quantized.WINDOW, (2, 9, 8), 24, (3, 3, 32), attributes=attributes)
    inputs = quantized.drawn(shapes, INT8)
    plan = cuda.plan(fused, tuple(shapes), True, A100)
    (got,) = emulate.run(plan, inputs, [np.int8])
    quantized.assert_same_steps(got, quantized.wanted(quantized.convolved(inputs, attributes), inputs))


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("kernel", ["mapped", "general"])
def test_images_are_padded_with_their_zero_point_where_they_are_quantized(kernel: str, aligned: bool) -> None:
    """It is computed as the model runs: the range of the image."""
    text = """(x, s, z) => (y) { q = QuantizeLinear (x, s, z)
      p = Constant <value_ints = [0, 1, 2, 0, 0, 0, 1, 0]> () y = Pad (q, p, z) }"""
    fused = ops.op(text, (FLOAT, FLOAT, UINT8), (UINT8,), "pointwise")
    x = np.random.default_rng(0).standard_normal((2, 5, 7, 16)).astype(np.float32)
    scale, zero, shapes = np.asarray(0.02, np.float32), np.asarray(117, np.uint8), (x.shape, (), ())
    plan = cuda.plan(fused, shapes, aligned, A100) if kernel == "mapped" else cuda.general(fused, shapes, A100)
    (got,) = emulate.run(plan, [x, scale, zero], [np.uint8], aligned)
    steps = np.clip(np.rint(x / scale) + zero, 0, 255)
    np.testing.assert_array_equal(got, np.pad(steps, ((0, 0), (1, 0), (2, 1), (0, 0)), constant_values=zero))


@pytest.mark.parametrize(("channels", "terms"), [(16, 64), (64, 64), (80, 128), (128, 128)])
def test_channels_that_fill_half_of_a_row_are_half_a_step(channels: int, terms: int) -> None:
    """They are fetched and multiplied alone: what lies beside them in the row is another tap's, and none of theirs."""
    fused, shapes = quantized.case(quantized.WINDOW, (2, 9, 8), 32, (3, 3, channels), attributes="pads = [1,1,1,1]")
    plan = cuda.plan(fused, tuple(shapes), True, H200)
    assert [m.box[0] for m in plan.tensor_maps[:2]] == [terms, terms]
    assert f"constexpr int SLICES = {terms // 32};" in plan.kernel.text
    inputs = quantized.drawn(shapes, INT8)
    sums = copy_engine.convolved(plan, *inputs[:2])
    np.testing.assert_array_equal(sums.reshape(2, 9, 8, 32), quantized.convolved(inputs, "pads = [1,1,1,1]"))


@pytest.mark.parametrize("attributes", ["kernel_shape = [3,3]", "strides = [2,2]"])
def test_windows_over_padded_images_with_a_zero_point(attributes: str) -> None:
    """As quantize_dynamic writes them, and as its zero point is subtracted: by one number for each filter."""
    text = f"""(x, w, z, c, s) => (y) {{ a = Transpose <perm = [0, 3, 1, 2]> (x)
      v = Transpose <perm = [0, 3, 1, 2]> (w) i = ConvInteger <{attributes}> (a, v)
      m = Transpose <perm = [0, 2, 3, 1]> (i) k = Cast <to = 6> (z) p = Mul (k, c) d = Sub (m, p)
      f = Cast <to = 1> (d) y = Mul (f, s) }}"""
    fused = ops.op(text, (UINT8, INT8, UINT8, INT32, FLOAT), (FLOAT,), "gemm")
    random = np.random.default_rng(0)
    image = random.integers(0, 256, (2, 9, 8, 32)).astype(np.uint8)
    w = random.integers(-128, 128, (24, 3, 3, 32)).astype(np.int8)
    z, s = np.asarray(117, np.uint8), np.asarray(1, np.float32)
    x = np.pad(image, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=z)
    sums = w.sum((1, 2, 3), dtype=np.int32).reshape(1, 1, 1, 24)
    inputs: list[np.ndarray] = [x, w, z, sums, s]
    plan = cuda.plan(fused, tuple(i.shape for i in inputs), True, A100)
    (got,) = emulate.run(plan, inputs, [np.float32])
    centred: list[np.ndarray] = [image.astype(np.int64) - int(z), w.astype(np.int64)]
    np.testing.assert_array_equal(got, quantized.convolved(centred, attributes).astype(np.float32))


@pytest.mark.parametrize(("rows", "n", "k", "aligned"), [((70,), 80, 400, True), ((2, 3), 33, 131, False)])
def test_a_gelu_of_quantized_steps_is_looked_up(rows: tuple[int, ...], n: int, k: int, aligned: bool) -> None:
    """Bit for bit what the nodes give, of which each is quantized again."""
    fused, shapes = quantized.gelu_case(rows, n, k)
    inputs = quantized.gelu_drawn(shapes)
    plan = cuda.plan(fused, tuple(shapes), aligned, A100)
    assert "[256] = {" in plan.kernel.text
    (got,) = emulate.run(plan, inputs, [np.uint8], aligned)
    np.testing.assert_array_equal(got, quantized.gelu_wanted(inputs))


@pytest.mark.parametrize("arch", [A100, H200], ids=lambda a: a.name)
def test_launch_programs_of_quantized_results(arch: Arch) -> None:
    """Columns in whole 16 bytes, as TMA stores them, and others."""
    for n, k in ((96, 80), (33, 131)):
        fused, shapes = quantized.case(quantized.PRODUCT, (70,), n, (k,))
        programs.agrees(fused, tuple(shapes), True, arch)
    fused, shapes = quantized.case(quantized.WINDOW, (2, 9, 8), 32, (3, 3, 32), attributes="pads = [1,1,1,1]")
    programs.agrees(fused, tuple(shapes), True, arch)


@pytest.mark.parametrize(("rows", "n", "k"), [((70,), 72, 80), ((2, 3), 24, 48)])
def test_products_of_one_input_have_scales_of_their_own(rows: tuple[int, ...], n: int, k: int) -> None:
    """Queries, keys and values of a static file in one launch, each with numbers of its own in one epilogue."""
    fused, shapes = quantized.three_case(rows, n, k)
    epilogues = anatomy(fused).epilogues
    assert len({e.program for e in epilogues}) == 1
    assert len({e.parameters for e in epilogues}) == 3
    inputs = quantized.three_drawn(shapes)
    plan = cuda.plan(fused, tuple(shapes), True, A100)
    assert plan.kernel.text.count("math::int_of_near_shifted_steps(") == 1
    for got, wanted in zip(emulate.run(plan, inputs, [np.int8] * 3), quantized.three_wanted(inputs), strict=True):
        assert len(np.unique(wanted)) > 100
        quantized.assert_same_steps(got, wanted)


WINDOWED = """(x, w, s, b, r, t, u, q, z) => (y) { i = Transpose <perm = [0,3,1,2]> (x) PACK
  c = ConvInteger <ATTRIBUTES> (i, v) m = Transpose <perm = [0,2,3,1]> (c) BEHIND }"""


def windows_of(x: np.ndarray, w: np.ndarray, groups: int, pads: int, stride: int) -> np.ndarray:
    """Return the exact sums of windows over images, term by term; w [filters, rows, columns, channels of a group]."""
    x, w = np.pad(x.astype(np.int64), ((0, 0), (pads, pads), (pads, pads), (0, 0))), w.astype(np.int64)
    seen = np.lib.stride_tricks.sliding_window_view(x, w.shape[1:3], (1, 2))[:, ::stride, ::stride]
    seen = seen.reshape(*seen.shape[:3], groups, -1, *seen.shape[4:])
    sums = np.einsum("nhwgcrs,gorsc->nhwgo", seen, w.reshape(groups, -1, *w.shape[1:]))
    return np.asarray(sums.reshape(*sums.shape[:3], -1))


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize(
    ("template", "channels", "filters", "groups", "kernel", "stride", "size"),
    [
        ("direct", 3, 64, 1, 7, 2, (21, 19)),
        ("direct", 3, 32, 1, 3, 2, (33, 30)),
        ("direct", 4, 24, 1, 3, 1, (9, 11)),
        ("direct", 6, 10, 1, 5, 1, (8, 9)),
        ("direct", 32, 32, 4, 3, 1, (9, 8)),
        ("direct", 1, 8, 1, 3, 1, (16, 16)),
        ("depthwise", 32, 32, 32, 3, 1, (14, 15)),
        ("depthwise", 32, 32, 32, 3, 2, (15, 14)),
        ("depthwise", 48, 48, 48, 5, 1, (7, 9)),
        ("depthwise", 7, 7, 7, 3, 1, (9, 9)),
        ("depthwise", 16, 16, 16, 7, 1, (28, 30)),
    ],
)
def test_windows_of_few_channels(
    template: str,
    channels: int,
    filters: int,
    groups: int,
    kernel: int,
    stride: int,
    size: tuple[int, int],
    aligned: bool,
) -> None:
    """First layers, groups and depthwise ones: 8-bit images and filters, exact sums, 8 bits written."""
    depthwise, pads = template == "depthwise", kernel // 2
    pack = f"v = Transpose <perm = [{'2,3,0,1' if depthwise else '0,3,1,2'}]> (w)"
    attributes = f"group = {groups}, strides = [{stride}, {stride}], pads = [{pads}, {pads}, {pads}, {pads}]"
    text = WINDOWED.replace("PACK", pack).replace("<ATTRIBUTES>", f"<{attributes}>").replace("BEHIND", quantized.BEHIND)
    types = (UINT8, INT8, FLOAT, FLOAT, INT8, FLOAT, INT8, FLOAT, INT8)
    fused = ops.op(text, types, (INT8,), template)
    places = tuple(-(-n // stride) for n in size)
    each = (filters, kernel, kernel, channels // groups)
    shapes = [(2, *size, channels), each, (filters,), (filters,), (2, *places, filters), (), (), (), ()]
    inputs = quantized.drawn(shapes, INT8)
    sums = windows_of(inputs[0], inputs[1], groups, pads, stride)
    if depthwise:
        inputs[1] = np.ascontiguousarray(inputs[1].transpose(1, 2, 0, 3))
    plan = cuda.plan(fused, tuple(np.shape(i) for i in inputs), aligned, A100)
    (got,) = emulate.run(plan, inputs, [np.int8], aligned)
    quantized.assert_same_steps(got, quantized.wanted(sums, inputs))


@pytest.mark.parametrize("dtype", [INT8, UINT8])
@pytest.mark.parametrize("channels", [3, 16])
def test_the_greatest_of_8_bits_is_an_integer(dtype: int, channels: int) -> None:
    """Padding is no element: not the 0 that a load beside the image gives."""
    text = """(x) => (y) { i = Transpose <perm = [0,3,1,2]> (x)
      p = MaxPool <kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]> (i)
      y = Transpose <perm = [0,2,3,1]> (p) }"""
    fused, limits = ops.op(text, (dtype,), (dtype,), "depthwise"), np.iinfo(ops.NUMPY[dtype])
    x = np.random.default_rng(0).integers(limits.min, limits.min + 100, (2, 9, 12, channels)).astype(limits.dtype)
    plan = cuda.plan(fused, (x.shape,), True, A100)
    assert "using Sum = int;" in plan.kernel.text
    (got,) = emulate.run(plan, [x], [limits.dtype])
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), constant_values=limits.min)
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[:, ::2, ::2]
    np.testing.assert_array_equal(got, windows.max((-1, -2)))
