"""Matrix products on a real GPU, through CuPy alone: every body, tile and odd size against float64."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.cases import ops, products
from bench.cases.ops import BRAIN, FLOAT, HALF
from bench.cases.products import (
    GELU,
    PLAIN,
    PREACTIVATED,
    QKV,
    RESIDUAL,
    SEVERAL,
    SWIGLU,
    TRANSPOSED,
    TRANSPOSED_GELU,
    TRANSPOSED_RESIDUAL,
)
from onnxfuse import cuda, runtime
from onnxfuse.api.request.options import Options
from onnxfuse.cuda.planning.arch import A100
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.templates.gemm import body as gemm_body
from onnxfuse.cuda.templates.gemm import costs, few
from onnxfuse.cuda.templates.gemm import problem as gemm_problem
from onnxfuse.cuda.templates.gemm.variant import Block, GemmTile, GemmVariant, Strip
from onnxfuse.fusion.region.choices import Choices
from onnxfuse.model.fused import FusedOp
from onnxfuse.passes import pipeline
from onnxfuse.runtime.engine.bridge import bridge
from tests.emulator.test_gemm import EXACT
from tests.gpu.test_kernels import DeviceBuffer, _gpu

cupy = pytest.importorskip("cupy", reason="needs CuPy")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_gpu() is not None, reason=_gpu() or "")]

BODIES = [PLAIN, GELU, TRANSPOSED, RESIDUAL, SWIGLU, QKV, SEVERAL, PREACTIVATED]
SPLIT = [t for t in costs.wgmma().split if t.n % 64 == 0 and t.split != 4]
NARROW = [t for t in costs.wgmma().float16 if t.n < 64]
"""Of an output that has no more columns."""
TILES = [*(t for t in costs.wgmma().float16 if t.n % 64 == 0), GemmTile(128, 64, 2), *SPLIT]
BETWEEN = [t for t in (*costs.wgmma().float16, *costs.wgmma().split) if t.n > 64 and t.n % 64]
BY_TERMS = [t for t in (*TILES, *BETWEEN) if t.n <= 256]
"""Of right factors [n, k]; those between are of no others."""
COMPUTING = [t for t in TILES if t.warpgroups * t.teams < 4 and t.m * t.n <= 128 * 128 * t.warpgroups and t.n <= 192]
COMPUTING = [t for t in COMPUTING if t.n <= 128 or t.warpgroups * t.teams < 3]
"""Beside which a warpgroup has registers that computes the left factor."""
BLOCKS = list(costs.mma(A100).rounded)


def launch(plan: LaunchPlan, addresses: Sequence[int]) -> None:
    if not plan.grid[0]:
        return
    function = cuda.load(plan.kernel, 0)
    if plan.shared_bytes > function.max_dynamic_shared_size_bytes:  # of all launches of the function: it only grows
        function.max_dynamic_shared_size_bytes = plan.shared_bytes
    blobs = [bridge().encoded_tensor_maps(plan.tensor_maps, addresses)] if plan.tensor_maps else []
    by_value = [np.frombuffer(b, np.dtype((np.void, len(b)))) for b in (*blobs, plan.parameters)]
    function(plan.grid, plan.block, (*map(np.uint64, addresses), *by_value), shared_mem=plan.shared_bytes)


def check(
    text: str,
    dtype: int,
    rows: tuple[int, ...],
    n: int,
    k: int,
    tile: GemmTile | Block | Strip | None = None,
    aligned: bool = True,
    times: int = 1,
) -> None:
    """Fresh inputs, poisoned outputs between guards."""
    run(*products.case(text, dtype, rows, n, k), tile, aligned, times)


def run(
    fused: FusedOp,
    shapes: Sequence[tuple[int, ...]],
    tile: GemmTile | Block | Strip | None = None,
    aligned: bool = True,
    times: int = 1,
    behind: int | None = None,
) -> None:
    """Factors are scaled so that the sums are about 1, and float32 keeps the bits that the tensor cores read.

    Of several launches the last one writes what the first one did, bit for bit. `behind`: the columns of the first
    input from here on are NaN.
    """
    rng = np.random.default_rng(sum(map(math.prod, shapes)))
    inputs = [ops.random(rng, t, s) for t, s in zip(fused.inputs, shapes, strict=True)]
    cuts = 0
    parts = gemm_body.anatomy(fused)
    terms = gemm_problem.problem(parts, tuple(shapes)).k
    for product in parts.products:
        right = inputs[product.b]
        inputs[product.b] = (right.astype(np.float32) / max(terms, 1) ** 0.5).astype(right.dtype)
    if parts.dtype == FLOAT:
        cuts = terms // 8
        for i in products.multiplied(fused):
            if inputs[i].dtype == np.float32:
                inputs[i] = (inputs[i].view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    if behind is not None:
        inputs[0][:, behind:] = np.nan
    tuning = (
        GemmVariant(block=tile)
        if isinstance(tile, Block)
        else GemmVariant(strip=tile)
        if isinstance(tile, Strip)
        else GemmVariant(tile=tile)
    )
    plan = cuda.plan(fused, tuple(shapes), aligned, cuda.arch_of(0), tuning)
    sources = [DeviceBuffer(x.shape, x.dtype, aligned, x) for x in inputs]
    found = []
    for count in (1, times - 1) if times > 1 else (1,):
        results = [
            DeviceBuffer(s, ops.NUMPY[t], aligned) for s, t in zip(plan.output_shapes, fused.outputs, strict=True)
        ]
        for _ in range(count):
            launch(plan, [b.address for b in (*sources, *results)])
        cupy.cuda.Device(0).synchronize()
        found.append([r.read() for r in results])
    ops.within_budget(fused, inputs, found[0], cuts)
    for first, last in zip(*found, strict=True) if times > 1 else ():
        assert first.tobytes() == last.tobytes()


@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
@pytest.mark.parametrize(
    ("rows", "n", "k"), [((1,), 504, 64), ((8,), 50264, 768), ((3, 67), 264, 520), ((5,), 7, 19), ((1024,), 512, 64)]
)
def test_a_weight_is_read_as_embeddings_store_it(dtype: int, rows: tuple[int, ...], n: int, k: int) -> None:
    """[n, k], through a Transpose in the body: of one row, of many, of odd sizes."""
    fused = ops.op(products.STORED, (dtype,) * 4, (dtype,), "gemm")
    run(fused, [(n, k), (*rows, k), (n,), (*rows, n)], times=2)


@pytest.mark.parametrize("text", BODIES)
@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("size", [((1,), 8, 8), ((100,), 72, 40), ((3, 67), 264, 520), ((300,), 128, 64)])
def test_every_body_and_tile(text: str, dtype: int, tile: GemmTile, size: tuple[tuple[int, ...], int, int]) -> None:
    """Tiles that stick out on every side, one step and many, one block and several of a cluster."""
    if text == SWIGLU and (tile.n % 128 or tile.m * tile.n > 128 * 128 * tile.warpgroups):
        pytest.skip("the columns of a gate's two products come 64 at a time, 128 for a thread")
    if text in (SEVERAL, PREACTIVATED) and (tile.m * tile.n > 128 * 128 or tile.warpgroups * tile.teams > 2):
        pytest.skip("two results of this size do not fit the shared memory")
    if tile.split > -(-size[2] // 64):
        pytest.skip("fewer steps than blocks")
    if text == TRANSPOSED and tile.n > 256:
        pytest.skip("the copy engine fetches no more rows at once")
    check(text, dtype, *size, replace(tile, n=tile.n // 2) if text == SWIGLU else tile)


@pytest.mark.parametrize("text", [TRANSPOSED, TRANSPOSED_GELU])
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
@pytest.mark.parametrize("tile", BETWEEN, ids=str)
@pytest.mark.parametrize("size", [((1,), 8, 8), ((100,), 72, 200), ((3, 67), 264, 520), ((1500,), 648, 136)])
def test_columns_that_end_within_a_chunk(
    text: str, dtype: int, tile: GemmTile, size: tuple[tuple[int, ...], int, int]
) -> None:
    """The last chunk begins in the one before it, the last tile in the one before that."""
    if tile.split > -(-size[2] // (32 if dtype == FLOAT else 64)):
        pytest.skip("fewer steps than blocks")
    check(text, dtype, *size, tile, times=20)


@pytest.mark.parametrize("text", [TRANSPOSED, TRANSPOSED_GELU])
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
@pytest.mark.parametrize("tile", NARROW)
@pytest.mark.parametrize("size", [((1,), 8, 8), ((100,), 24, 40), ((3, 167), 32, 520), ((70000,), 32, 64)])
def test_few_columns(text: str, dtype: int, tile: GemmTile, size: tuple[tuple[int, ...], int, int]) -> None:
    """What a warp puts beyond the columns that there are lies outside the output."""
    check(text, dtype, *size, tile)


@pytest.mark.parametrize("tile", [t for t in (*TILES, *BETWEEN) if t.split == 1], ids=str)
def test_several_tiles_of_a_block_with_a_residual(tile: GemmTile) -> None:
    """Each team takes one tile after the other, and what is added to each comes before it is read."""
    text = RESIDUAL if tile.n % 64 == 0 else TRANSPOSED_RESIDUAL
    rows, columns = tile.m * cuda.arch_of(0).sm_count * 4 // 3, 3 * tile.n - (64 if tile.n > 64 else 0)
    check(text, HALF, (rows,), columns, 136, tile, times=3)


def test_rows_may_change_from_run_to_run() -> None:
    """One session: one row, none, a few of a long sum that blocks share, and more than a block has; head by head."""
    rng = np.random.default_rng(0)
    w, b = (rng.standard_normal((3072, 64)) / 3072**0.5).astype(np.float16), rng.standard_normal(64).astype(np.float16)
    graph = """(float16[N, 3072] x) => (float16[4, N, 16] y) <int64[3] s = {0, 4, 16}> {
      m = MatMul (x, w)  a = Add (m, b)  g = Gelu (a)  r = Reshape (g, s)  y = Transpose <perm = [1, 0, 2]> (r)
    }"""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]> g {graph}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(*pair) for pair in ((w, "w"), (b, "b")))
    pipeline.run(model)
    session = runtime.session(model, ["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert [p.runs_as for p in session.fused] == ["kernel"]
    for rows in (1, 0, 7, 197, 3001, 1):
        x = rng.standard_normal((rows, 3072)).astype(np.float16)
        a = x.astype(np.float64) @ w + b
        exact = (a * (1 + np.vectorize(math.erf, [float])(a / 2**0.5)) / 2).reshape(rows, 4, 16).transpose(1, 0, 2)
        (y,) = session.run(None, {"x": x})
        # Values below 8: the output's rounding, and half as much for GELU's.
        np.testing.assert_allclose(y.astype(np.float64), exact, rtol=2**-10, atol=2**-12)


@pytest.mark.parametrize(
    ("terms", "columns", "rule"), [(3072, 64, "plain_product"), (64, 1024, "plain_product"), (71, 53, "product")]
)
def test_a_product_alone_meets_new_rows(terms: int, columns: int, rule: str) -> None:
    """One session, nothing after the product but a norm of its own: as many rows as are asked for, none included."""
    rng = np.random.default_rng(0)
    w = (rng.standard_normal((terms, columns)) / terms**0.5).astype(np.float16)
    graph = f"(float16[N, {terms}] x) => (float16[N, {columns}] y) {{ m = MatMul (x, w) y = Softmax (m) }}"
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]> g {graph}')
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    assert pipeline.run(model, Options(also=("product",)).chosen()).by_rule()[rule] == 1
    session = runtime.session(model, ["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert {p.runs_as for p in session.fused} == {"kernel"}
    for rows in (1, 0, 7, 197, 3001, 1):
        x = rng.standard_normal((rows, terms)).astype(np.float16)
        exact = np.exp(x.astype(np.float64) @ w)
        (y,) = session.run(None, {"x": x})
        # Products below 8, whose rounding changes an exponential by 2**-9 of it; the sums and the output round, too.
        np.testing.assert_allclose(y.astype(np.float64), exact / exact.sum(-1, keepdims=True), rtol=2**-7, atol=2**-14)


def run_one_behind_another(layers: int, rows: int, width: int) -> None:
    """Launch layers, each of which reads what the one ahead writes: a hundred runs, bit for bit the same, and right."""
    rng = np.random.default_rng(0)
    text = " ".join(f"m{i} = MatMul (h{i}, w{i}) a{i} = Add (m{i}, b{i}) h{i + 1} = Relu (a{i})" for i in range(layers))
    graph = f"(float16[N, {width}] h0) => (float16[N, {width}] h{layers}) {{ {text} }}"
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]> g {graph}')
    h = x = rng.standard_normal((rows, width)).astype(np.float16)
    for i in range(layers):
        w = (rng.standard_normal((width, width)) * (2 / width) ** 0.5).astype(np.float16)
        b = rng.standard_normal(width).astype(np.float16)
        model.graph.initializer.extend(onnx.numpy_helper.from_array(*pair) for pair in ((w, f"w{i}"), (b, f"b{i}")))
        h = np.maximum(h.astype(np.float64) @ w + b, 0)
    pipeline.run(model)
    session = runtime.session(model, ["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert {p.runs_as for p in session.fused} == {"kernel"}
    runs = {session.run(None, {"h0": x})[0].tobytes() for _ in range(100)}
    assert len(runs) == 1
    y = np.frombuffer(runs.pop(), np.float16).reshape(h.shape)
    # Each layer rounds once, by 2**-12 of a value in the root mean square, and keeps what the ones before rounded.
    assert np.sqrt(np.mean((y - h) ** 2) / np.mean(h**2)) < layers * 2**-12


def test_long_kernels_one_behind_another() -> None:
    """Each is launched while the one ahead still writes what it reads: a hundred runs, bit for bit the same."""
    run_one_behind_another(6, 4096, 768)


@pytest.mark.parametrize("name", [
    "written head by head", "of different columns, head by head", "written by windows",
])  # fmt: skip
@pytest.mark.parametrize("tile", [t for t in TILES if t.split == 1], ids=str)
def test_every_tile_is_written_where_it_belongs(name: str, tile: GemmTile) -> None:
    """Chunks that end in the middle of a sequence, a head or a window; several tiles for each block.

    Of sequences of 197 turned keys are written element by element, of 200 by 16 bytes.
    """
    fused, (x, *others) = products.table(name, HALF)
    for rows in [(7 * 72,)] if len(x) == 2 else [(40, 197), (40, 200)]:
        given = [(*rows, s[-1]) if s[:-1] == x[:-1] else s for s in others]
        run(fused, [(*rows, x[-1]), *given], tile, times=20)


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("tile", [*TILES, *few.STRIPS], ids=str)
def test_products_of_different_columns(tile: GemmTile | Strip, dtype: int) -> None:
    """Each ends in a tile of its own, over and over; several tiles for each block, the last one of fewer columns."""
    rows = 7 if isinstance(tile, Strip) else 3000
    for columns in [(520, 8, 136), (8, 264, 72)]:
        weights, biases = [(520, n) for n in columns], [(rows, n) for n in columns]
        fused = ops.op(products.UNEVEN, (dtype,) * 7, (dtype,) * 3, "gemm")
        run(fused, [(rows, 520), *weights, *biases], tile, times=20)


@pytest.mark.parametrize("perm", ["0, 2, 1, 3", "0, 2, 3, 1"])
def test_float32_results_are_written_where_they_belong(perm: str) -> None:
    """Results of 4 bytes: a chunk is two blocks of rows."""
    text = """(x, w) => (y) { m = MatMul(x, w) c = Cast <to = 1> (m) s = Constant <value = int64[4] {0, 0, 2, 36}> ()
      r = Reshape(c, s) y = Transpose <perm = [PERM]> (r) }""".replace("PERM", perm)
    fused = ops.op(text, (HALF,) * 2, (FLOAT,), "gemm")
    for sequence in (99, 100):
        run(fused, [(3, sequence, 40), (40, 72)], GemmTile(128, 128, 1))


@pytest.mark.parametrize("text", [GELU, QKV, SWIGLU])
@pytest.mark.parametrize("size", [((1500,), 768, 256), ((2048,), 1024, 128)])
def test_blocks_that_take_many_tiles(text: str, size: tuple[tuple[int], int, int]) -> None:
    """Both warpgroups in turns, the ring in many rounds, the plan's own tile; over and over."""
    check(text, HALF, *size, times=200)


@pytest.mark.parametrize("text", [GELU, RESIDUAL])
@pytest.mark.parametrize("size", [((3000,), 1928, 200), ((500,), 640, 64)])
def test_columns_of_two_instructions(text: str, size: tuple[tuple[int], int, int]) -> None:
    check(text, HALF, *size, GemmTile(128, 320, 1, warpgroups=2, teams=1), times=50)


@pytest.mark.parametrize("tile", SPLIT, ids=str)
@pytest.mark.parametrize("text", [GELU, RESIDUAL])
@pytest.mark.parametrize("rows", [1, 16, 100])
def test_split_sums_stay_the_same(text: str, tile: GemmTile, rows: int) -> None:
    """Blocks add up what the others send, over and over."""
    check(text, HALF, (rows,), 768, 1096, tile, times=200)


@pytest.mark.parametrize("tile", [t for t in TILES if t.split == 1], ids=str)
def test_ten_thousand_launches(tile: GemmTile) -> None:
    """Launches behind each other, each of which may begin while the one ahead still runs."""
    check(GELU, HALF, (500,), 520, 264, tile, times=10_000)


@pytest.mark.parametrize("dtype", [HALF, FLOAT])
@pytest.mark.parametrize("tile", [GemmTile(64, 64, 1), GemmTile(128, 64, 1), GemmTile(64, 128, 1)])
def test_short_sums_do_not_overtake_the_copy_engine(dtype: int, tile: GemmTile) -> None:
    """A tile is done sooner than the one before has left the shared memory."""
    check(TRANSPOSED, dtype, (60000,), 64, 32, tile, times=50)


@settings(max_examples=40)
@given(
    text=st.sampled_from(BODIES),
    rows=st.integers(1, 400),
    n=st.integers(1, 70).map(lambda i: 8 * i),
    k=st.integers(1, 70).map(lambda i: 8 * i),
    dtype=st.sampled_from([HALF, BRAIN]),
)
def test_any_size(text: str, rows: int, n: int, k: int, dtype: int) -> None:
    check(text, dtype, (rows,), n, k)


# ---- few rows


@pytest.mark.parametrize("text", BODIES)
@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("strip", few.STRIPS, ids=str)
def test_every_body_and_strip(text: str, dtype: int, strip: Strip) -> None:
    """Strips that stick out of the columns, steps that stick out of the terms, fewer steps than stages and more."""
    for size in [((1,), 8, 8), ((2,), 72, 520), ((7,), 264, 40), ((2, 4), 1000, 2056), ((8,), 136, 4104)]:
        fused, shapes = products.case(text, dtype, *size)
        run(replace(fused, constants=frozenset(range(len(shapes)))), shapes, strip, times=20)


@pytest.mark.parametrize("text", [TRANSPOSED, SWIGLU, QKV])
@pytest.mark.parametrize("strip", [Strip(16), Strip(16, 16, 160), Strip(32, 8, 64)], ids=str)
def test_blocks_take_several_strips_in_turns(text: str, strip: Strip) -> None:
    """Of one body and of several: rings that reach into the next strips."""
    for rows, n, k in [(1, 8000, 2048), (8, 12000, 520)]:
        fused, shapes = products.case(text, HALF, (rows,), n, k)
        run(replace(fused, constants=frozenset(range(1, len(shapes)))), shapes, strip, times=20)


@pytest.mark.parametrize("text", [PLAIN, SWIGLU, QKV])
@pytest.mark.parametrize("rows", [1, 2, 7, 8, 9, 16])
def test_few_rows_of_a_step_of_decoding(text: str, rows: int) -> None:
    """The plan's own strip, over and over; columns and terms off the boundary by the other kernels."""
    for n, k in [(2048, 2048), (2052, 2048), (2049, 2050)]:
        check(text, HALF, (rows,), n, k, times=50)


@pytest.mark.parametrize("perm", ["0, 2, 1, 3", "0, 2, 3, 1"])
def test_few_rows_are_written_where_they_belong(perm: str) -> None:
    text = """(x, v, w) => (y, z) { m = MatMul(x, v) n = MatMul(x, w) s = Constant <value = int64[4] {0, 0, 4, 18}> ()
      q = Reshape(m, s) r = Reshape(n, s) y = Transpose <perm = [PERM]> (q) z = Transpose <perm = [PERM]> (r) }"""
    fused = ops.op(text.replace("PERM", perm), (HALF,) * 3, (HALF,) * 2, "gemm")
    for batch, sequence in [(1, 1), (8, 1), (2, 3), (3, 5)]:
        run(fused, [(batch, sequence, 520), (520, 72), (520, 72)], times=20)


def test_weights_are_fetched_before_the_kernel_ahead_has_ended() -> None:
    """Layers of one row, each launched early: a hundred runs, bit for bit the same, and right."""
    run_one_behind_another(12, 1, 2048)


# ---- the kernel for sm_80 and later


@pytest.mark.parametrize("text", BODIES)
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
@pytest.mark.parametrize("block", BLOCKS)
def test_every_body_and_block(text: str, dtype: int, block: Block) -> None:
    """Blocks that stick out on every side, fewer steps than stages and more; pieces of 16 bytes down to one element."""
    if text == SWIGLU:
        block = Block(block.m, block.n // 2, block.warps_m, block.warps_n, block.warps_k)
        if block.n % (128 // np.dtype(ops.NUMPY[dtype]).itemsize) or block.n // block.warps_n % 16:
            pytest.skip("lines of a factor's tile are wider than half a block")
    for size in [((1,), 8, 8), ((100,), 72, 40), ((3, 67), 264, 520), ((300,), 130, 66), ((77,), 33, 129)]:
        check(text, dtype, *size, block)
    check(text, dtype, (77,), 72, 136, block, aligned=False)


@pytest.mark.parametrize("text", [GELU, QKV, SWIGLU])
def test_blocks_over_and_over(text: str) -> None:
    """More blocks than the GPU holds at once, the ring in many rounds."""
    check(text, HALF, (2048,), 1024, 512, gemm_block(text), times=200)


def gemm_block(text: str) -> Block:
    return Block(128, 64, 2, 2) if text == SWIGLU else Block(128, 128, 2, 2)


@settings(max_examples=40)
@given(
    text=st.sampled_from(BODIES),
    rows=st.integers(1, 400),
    n=st.integers(1, 300),
    k=st.integers(1, 500),
    dtype=st.sampled_from([HALF, BRAIN, FLOAT]),
    aligned=st.booleans(),
)
def test_any_size_at_all(text: str, rows: int, n: int, k: int, dtype: int, aligned: bool) -> None:
    check(text, dtype, (rows,), n, k, aligned=aligned)


@pytest.mark.parametrize("name", products.TABLE)
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
def test_every_layout_and_batch(name: str, dtype: int) -> None:
    run(*products.table(name, dtype))


@pytest.mark.parametrize("size", [(384, 72, 196), (196, 72, 384), (197, 40, 49), (49, 264, 197), (64, 136, 1)])
@pytest.mark.parametrize("batch", [(1,), (2, 3), (19,)])
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
def test_products_along_the_tokens(size: tuple[int, int, int], batch: tuple[int, ...], dtype: int) -> None:
    """A weight of any number of terms by each of a batch: by Hopper's kernel, by that for sm_80, off the boundary."""
    run(*products.tokens(dtype, batch, *size), times=20)
    run(*products.tokens(dtype, batch, *size), Block(64, 64, 2, 2))
    run(*products.tokens(dtype, batch, *size, pitch=size[2] + 3), aligned=False)


@pytest.mark.parametrize("size", [(384, 768, 196), (196, 768, 384)])
@pytest.mark.parametrize("batch", [1, 4])
def test_the_layers_of_a_mixer(size: tuple[int, int, int], batch: int) -> None:
    run(*products.tokens(HALF, (batch,), *size), times=50)


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("dtype", [HALF, BRAIN])
def test_every_tile_of_a_batch(tile: GemmTile, dtype: int) -> None:
    """Tiles that stick out of each product on every side, whose rows are the next one's."""
    for batch, size in [((5,), (200, 264, 1093)), ((2, 7), (49, 72, 389))]:
        run(*products.tokens(dtype, batch, *size), tile, times=50)


@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
@pytest.mark.parametrize("pitch", [200, 198, 197])
def test_what_lies_behind_the_terms_is_not_multiplied(dtype: int, pitch: int) -> None:
    """NaN there would be NaN in the sums."""
    fused, shapes = products.tokens(dtype, (3,), 136, 72, 196, pitch)
    run(fused, shapes, behind=196)
    run(fused, shapes, Block(64, 64, 2, 2), behind=196)
    run(fused, shapes, aligned=False, behind=196)


def test_a_batch_of_tokens_may_change_from_run_to_run() -> None:
    """One session of a layer that mixes tokens between Transposes: any batch, and none."""
    rng = np.random.default_rng(0)
    v, w = ((rng.standard_normal(s) / s[0] ** 0.5).astype(np.float16) for s in ((49, 100), (100, 49)))
    b = rng.standard_normal(100).astype(np.float16)
    graph = """(float16[N, 49, 72] x) => (float16[N, 49, 72] y) {
      t = Transpose <perm = [0, 2, 1]> (x)  m = MatMul (t, v)  h = Add (m, b)  r = Relu (h)
      o = MatMul (r, w)  u = Transpose <perm = [0, 2, 1]> (o)  y = Add (u, x) }"""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]> g {graph}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for a, n in ((v, "v"), (w, "w"), (b, "b")))
    pipeline.run(model)
    session = runtime.session(model, ["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert [p.runs_as for p in session.fused] == ["kernel", "kernel"]
    for batch in (1, 0, 5, 33, 2):
        x = rng.standard_normal((batch, 49, 72)).astype(np.float16)
        hidden = np.maximum(x.transpose(0, 2, 1).astype(np.float64) @ v + b, 0).astype(np.float16)
        exact = (hidden.astype(np.float64) @ w).transpose(0, 2, 1) + x
        (y,) = session.run(None, {"x": x})
        # The output is rounded once; of the hidden values, a hundred to a sum, some are rounded to the other side.
        np.testing.assert_allclose(y.astype(np.float64), exact, rtol=2**-10, atol=2**-9)


# ---- prologues


@pytest.mark.parametrize("name", products.PROLOGUES)
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
def test_left_factors_are_computed(name: str, dtype: int) -> None:
    """By the plan's own choice and by a block of each kind, in sizes that stick out and pointers off the boundary."""
    if dtype == FLOAT and name not in EXACT:
        pytest.skip("what is rounded to TF32 after the functor has no truth of its own")
    for size in [(1, 8, 8), (1, 40, 200), (100, 72, 40), (300, 136, 520), (33, 25, 131)]:
        run(*products.prologue(name, dtype, *size), times=20)
        run(*products.prologue(name, dtype, *size), Block(64, 64, 2, 2))
    run(*products.prologue(name, dtype, 77, 72, 136), aligned=False)


@pytest.mark.parametrize("name", ["silu and gate", "scale, shift, relu", "side by side"])
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_tile_computes_its_left_factor(name: str, tile: GemmTile) -> None:
    """Ahead of the products, stage by stage; over and over."""
    if tile not in COMPUTING:
        pytest.skip("too few registers beside the warpgroup that computes the factor")
    for size in [(5, 72, 1096), (500, 264, 1096)]:
        run(*products.prologue(name, HALF, *size), tile, times=50)


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_every_tile_reads_matrices_side_by_side(tile: GemmTile) -> None:
    """Each thread copies its own pieces: over several tiles, of more steps than the ring has stages; rows stick out."""
    if tile not in COMPUTING:
        pytest.skip("too few registers beside the warpgroup that computes the factor")
    run(*products.joined(HALF, (5,), 72, [1024, 72]), tile, times=50)
    run(*products.joined(HALF, (500,), 264, [512, *[32] * 18, 8]), tile, times=50)
    if tile.split <= 2:  # it has two steps
        run(*products.joined(HALF, (40007,), 128, [64, 32, 32]), tile, times=50)


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("terms", [[64, 32, 32], [8, 72, 8, 40], [8], [32] * 24])
@pytest.mark.parametrize("plain", [False, True])
def test_matrices_side_by_side_are_read_where_they_lie(dtype: int, terms: list[int], plain: bool) -> None:
    run(*products.joined(dtype, (2, 9, 7), 128, terms, plain=plain), times=20)
    run(*products.joined(dtype, (40007,), 128, terms, plain=plain), times=20)
    run(*products.joined(dtype, (2, 9, 7), 72, terms, plain=plain), Block(64, 64, 2, 2))
    run(*products.joined(dtype, (77,), 72, terms, plain=plain), aligned=False)


def test_the_rows_of_a_computed_factor_may_change_from_run_to_run() -> None:
    """One session, where measuring decided for it: a row and many, and none."""
    rng = np.random.default_rng(0)
    w = (rng.standard_normal((264, 64)) / 264**0.5).astype(np.float16)
    s = rng.standard_normal(264).astype(np.float16)
    graph = """(float16[N, 264] x, float16[N, 264] g) => (float16[N, 64] y) {
      a = Mul (x, s)  r = Relu (a)  f = Mul (r, g)  m = MatMul (f, w)  y = Relu (m)
    }"""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]> g {graph}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(*pair) for pair in ((w, "w"), (s, "s")))
    assert pipeline.run(model, choices=Choices()).by_rule() == {"computed_factor": 1}
    session = runtime.session(model, ["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert [p.runs_as for p in session.fused] == ["kernel"]
    for rows in (1, 0, 7, 197, 3001, 1):
        x, g = (rng.standard_normal((rows, 264)).astype(np.float16) for _ in range(2))
        factor = (np.maximum(x.astype(np.float64) * s, 0) * g).astype(np.float16)
        (y,) = session.run(None, {"x": x, "g": g})
        # The factor is rounded before each product: a step of it at 8 moves a sum by 2^-8 of a weight.
        exact = np.maximum(factor.astype(np.float64) @ w, 0)
        np.testing.assert_allclose(y.astype(np.float64), exact, rtol=2**-10, atol=2**-9)


@pytest.mark.parametrize("block", BLOCKS)
def test_every_block_computes_its_left_factor(block: Block) -> None:
    run(*products.prologue("silu and gate", HALF, 300, 264, 520), block, times=50)


# ---- convolutions


@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
@pytest.mark.parametrize("tile", BY_TERMS)
@pytest.mark.parametrize(
    "attributes",
    [
        "pads = [1, 1, 1, 1]", "strides = [2, 3], pads = [0, 1, 2, 1]", "dilations = [2, 1]",
        'auto_pad = "SAME_LOWER", strides = [2, 2]',
    ],
)  # fmt: skip
def test_windows_of_every_kind_and_tile(dtype: int, tile: GemmTile, attributes: str) -> None:
    """Tiles that end in the middle of an image, more channels than a step, filters that stick out of a tile."""
    if dtype == FLOAT and (tile.m * tile.n > 128 * 128 or tile.warpgroups * tile.teams > 2):
        pytest.skip("a residual of float32 this wide does not fit the shared memory")
    run(*products.window(dtype, (3, 11, 14, 72), 136, (3, 2), attributes), tile)


eights = st.integers(1, 20).map(lambda i: 8 * i)
pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(max_examples=60)
@given(
    images=st.tuples(
        st.integers(1, 3), st.integers(7, 20), st.integers(7, 20), st.integers(1, 12).map(lambda i: 8 * i)
    ),
    filters=eights,
    kernel=pairs,
    strides=pairs,
    dilations=pairs,
    pads=st.one_of(st.tuples(*[st.integers(0, 3)] * 4), st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"])),
    dtype=st.sampled_from([HALF, BRAIN, FLOAT]),
)
def test_any_window(
    images: tuple[int, int, int, int],
    filters: int,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilations: tuple[int, int],
    pads: tuple[int, int, int, int] | str,
    dtype: int,
) -> None:
    padding = f'auto_pad = "{pads}"' if isinstance(pads, str) else f"pads = {list(pads)}"
    attributes = f"{padding}, strides = {list(strides)}, dilations = {list(dilations)}"
    run(*products.window(dtype, images, filters, kernel, attributes))


@pytest.mark.parametrize("images", [(2, 6, 5, 8), (2, 6, 5, 7)])
def test_windows_at_pointers_off_the_boundary(images: tuple[int, int, int, int]) -> None:
    """And channels that are no multiple of 8: by the kernel of sm_80."""
    run(*products.window(HALF, images, 9, (3, 3), "pads = [1, 1, 1, 1]"), aligned=False)


@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
@pytest.mark.parametrize("block", BLOCKS)
def test_windows_by_the_kernel_of_sm_80(dtype: int, block: Block) -> None:
    """Tiles that end in the middle of an image, steps that see several elements of the window, many rounds."""
    run(*products.window(dtype, (3, 27, 25, 72), 136, (3, 2), "strides = [2, 1], pads = [0, 1, 2, 1]"), block, times=9)


def test_windows_over_and_over() -> None:
    """The ring in many rounds, several tiles for each block."""
    run(*products.window(HALF, (16, 28, 28, 128), 256, (3, 3), "pads = [1, 1, 1, 1]"), times=200)


@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
@pytest.mark.parametrize("tile", BY_TERMS)
@pytest.mark.parametrize(("channels", "filters", "groups"), [(48, 40, 5), (96, 136, 2), (16, 200, 3)])
def test_groups_of_every_kind_and_tile(dtype: int, tile: GemmTile, channels: int, filters: int, groups: int) -> None:
    """What is fetched beside a group's channels, and stands beside its columns, is the next one's."""
    if dtype == FLOAT and (tile.m * tile.n > 128 * 128 or tile.warpgroups * tile.teams > 2):
        pytest.skip("a residual of float32 this wide does not fit the shared memory")
    attributes = f"group = {groups}, pads = [1, 0, 1, 1]"
    run(*products.window(dtype, (3, 11, 14, channels * groups), filters * groups, (3, 2), attributes), tile)


@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
@pytest.mark.parametrize("tile", BY_TERMS)
@pytest.mark.parametrize(
    "attributes", ["pads = [1, 1, 1, 1, 1, 1]", "strides = [2, 1, 3], dilations = [1, 2, 1], pads = [0, 1, 2, 1, 0, 1]"]
)
def test_volumes_of_every_kind_and_tile(dtype: int, tile: GemmTile, attributes: str) -> None:
    if dtype == FLOAT and (tile.m * tile.n > 128 * 128 or tile.warpgroups * tile.teams > 2):
        pytest.skip("a residual of float32 this wide does not fit the shared memory")
    run(*products.window(dtype, (2, 5, 9, 11, 72), 136, (3, 2, 3), attributes), tile)


triples = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))


@settings(max_examples=60)
@given(
    volume=st.booleans(), images=st.tuples(*[st.integers(7, 12)] * 3), batch=st.integers(1, 3),
    groups=st.integers(1, 3), channels=st.integers(1, 6).map(lambda i: 16 * i), filters=eights,
    kernel=triples, strides=triples, dilations=triples, pads=st.tuples(*[st.integers(0, 3)] * 6),
    dtype=st.sampled_from([HALF, BRAIN, FLOAT]),
)  # fmt: skip
def test_any_window_over_volumes_or_in_groups(
    volume: bool,
    images: tuple[int, int, int],
    batch: int,
    groups: int,
    channels: int,
    filters: int,
    kernel: tuple[int, int, int],
    strides: tuple[int, int, int],
    dilations: tuple[int, int, int],
    pads: tuple[int, ...],
    dtype: int,
) -> None:
    axes = 3 if volume else 2
    facts = {"strides": strides[:axes], "dilations": dilations[:axes], "pads": pads[: 2 * axes]}
    attributes = ", ".join([f"group = {groups}", *(f"{name} = {list(told)}" for name, told in facts.items())])
    shape = (batch, *images[:axes], groups * channels)
    run(*products.window(dtype, shape, groups * filters, kernel[:axes], attributes))


def test_a_signal_in_groups_by_blocks_that_share_its_sums() -> None:
    """Wav2Vec2's positional convolution: 128 elements of 48 channels, 50 places, 16 groups."""
    case = products.window(HALF, (1, 1, 49, 768), 768, (1, 128), "group = 16, pads = [0, 64, 0, 64]")
    for tile in (None, *SPLIT):
        run(*case, tile, times=20)


STANDING_IN = [
    *(products.case(text, HALF, (700,), 520, 1096) for text in (GELU, RESIDUAL, SWIGLU, QKV)),
    products.case(TRANSPOSED_GELU, FLOAT, (700,), 520, 1096),
    products.window(HALF, (3, 27, 25, 72), 136, (3, 2), "strides = [2, 1], pads = [0, 1, 2, 1]"),
    products.window(FLOAT, (3, 27, 25, 72), 136, (3, 2)),
    products.window(HALF, (3, 27, 25, 144), 264, (3, 2), "group = 3"),
    products.window(HALF, (2, 6, 17, 15, 72), 136, (2, 3, 2), "pads = [1, 1, 1, 1, 1, 1]"),
]
BLOCKS_STANDING_IN = [
    *(products.case(text, HALF, (3000,), 520, 1096) for text in (GELU, RESIDUAL, SWIGLU, QKV)),
    products.window(HALF, (8, 54, 50, 72), 136, (3, 2), "strides = [2, 1], pads = [0, 1, 2, 1]"),
]


@pytest.mark.parametrize(
    ("case", "aligned"),
    [*((case, True) for case in STANDING_IN), *((case, False) for case in BLOCKS_STANDING_IN)],
)
def test_what_stands_in_gives_the_same_bits(case: tuple[FusedOp, list[tuple[int, ...]]], aligned: bool) -> None:
    """Sums of terms so large that another order rounds otherwise."""
    fused, shapes = case[0], tuple(map(tuple, case[1]))
    rng = np.random.default_rng(0)
    given = [ops.random(rng, t, s) for t, s in zip(fused.inputs, shapes, strict=True)]
    sources = [DeviceBuffer(x.shape, x.dtype, aligned, x) for x in given]
    own = cuda.plan(fused, shapes, aligned, cuda.arch_of(0))
    others = list(cuda.stand_ins(fused, shapes, aligned, cuda.arch_of(0)))
    assert others
    found = []
    for plan in (own, *others[:: max(1, len(others) // 5)]):
        kinds = zip(own.output_shapes, fused.outputs, strict=True)
        results = [DeviceBuffer(s, ops.NUMPY[t], aligned) for s, t in kinds]
        launch(plan, [b.address for b in (*sources, *results)])
        cupy.cuda.Device(0).synchronize()
        found.append([r.read().tobytes() for r in results])
    assert [n for n, bits in enumerate(found) if bits != found[0]] == []
