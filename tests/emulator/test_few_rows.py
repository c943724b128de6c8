"""The gemm template's kernel for few rows: the host's compiler runs it, NVRTC compiles it, the plan takes it."""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
import pytest

from bench.cases import ops, products
from bench.cases.ops import BRAIN, FLOAT, HALF
from bench.cases.products import GELU, PLAIN, QKV, RESIDUAL, SEVERAL, SWIGLU, TRANSPOSED
from onnxfuse import cuda
from onnxfuse.cuda.build import nvrtc
from onnxfuse.cuda.dispatch import dispatch
from onnxfuse.cuda.launch_programs.family import Key
from onnxfuse.cuda.planning.arch import SUPPORTED, Arch
from onnxfuse.cuda.templates.gemm import costs, few
from onnxfuse.cuda.templates.gemm import plan as gemm
from onnxfuse.cuda.templates.gemm.variant import Block, GemmVariant, Strip
from onnxfuse.model.fused import FusedOp, fused_ops, write
from tests.emulator import emulate
from tests.emulator.test_gemm import A100
from tests.emulator.test_whole_kernels import H200
from tests.support.kernels import programs

BODIES = [PLAIN, GELU, TRANSPOSED, RESIDUAL, SWIGLU, QKV, SEVERAL]


def emulated(fused: FusedOp, shapes: Sequence[tuple[int, ...]], strip: Strip | None = None, arch: Arch = H200) -> None:
    rng = np.random.default_rng(0)
    inputs = [ops.random(rng, t, s) for t, s in zip(fused.inputs, shapes, strict=True)]
    plan = cuda.plan(fused, tuple(shapes), True, arch, GemmVariant(strip=strip))
    assert "COLUMNS = " in plan.kernel.text
    got = emulate.run(plan, inputs, [ops.NUMPY[t] for t in fused.outputs])
    ops.within_budget(fused, inputs, got)


@pytest.mark.parametrize("text", BODIES)
@pytest.mark.parametrize(("strip", "rows", "n", "k"), [
    (Strip(16), 1, 8, 8), (Strip(16, 4, 16), 8, 40, 1288), (Strip(32), 7, 72, 520), (Strip(32), 8, 136, 2056),
])  # fmt: skip
def test_every_strip_gives_the_body(text: str, strip: Strip, rows: int, n: int, k: int) -> None:
    """Strips that stick out of the columns, steps out of the terms; fewer steps than stages, and a ring gone round."""
    fused, shapes = products.case(text, BRAIN if rows == 7 else HALF, (rows,), n, k)
    emulated(fused, shapes, strip)
    emulated(replace(fused, constants=frozenset(range(1, len(shapes)))), shapes, strip)


@pytest.mark.parametrize("text", [TRANSPOSED, RESIDUAL, SWIGLU, QKV])
@pytest.mark.parametrize("strip", [Strip(16, 8, 40), Strip(16, 16, 160), Strip(32)], ids=str)
def test_blocks_take_several_strips_in_turns(text: str, strip: Strip) -> None:
    """Of one body and of several: rings that reach beyond the next strip, a last turn that some blocks sit out."""
    small = replace(H200, sm_count=2)
    fused, shapes = products.case(text, HALF, (5,), 168, 328)
    plan = cuda.plan(fused, tuple(shapes), True, small, GemmVariant(strip=strip))
    assert plan.grid[0] == 2 * (16 // strip.warps) < -(-168 // strip.columns)
    assert "SEVERAL = true" in plan.kernel.text
    emulated(fused, shapes, strip, small)
    emulated(replace(fused, constants=frozenset(range(1, len(shapes)))), shapes, strip, small)


@pytest.mark.parametrize("arch", SUPPORTED, ids=lambda arch: arch.name)
@pytest.mark.parametrize("text", [PLAIN, TRANSPOSED, SWIGLU, QKV])
def test_many_strips_fit_the_shared_memory_of_every_gpu(text: str, arch: Arch) -> None:
    fused, shapes = products.case(text, HALF, (8,), 32000, 2048)
    plan = cuda.plan(fused, tuple(shapes), True, arch)
    assert {"gemm/few.cu"} <= {s.file for s in plan.kernel.sections}
    assert "SEVERAL = true" in plan.kernel.text
    assert plan.shared_bytes <= arch.shared_bytes


def test_gates_of_many_strips_have_blocks_of_a_multiprocessor_each() -> None:
    fused, shapes = products.case(SWIGLU, HALF, (1,), 5632, 2048)
    assert gemm.chosen(fused, tuple(shapes), H200) == costs.GATE_STRIP
    plan = cuda.plan(fused, tuple(shapes), True, H200)
    assert (plan.grid[0], plan.block[0]) == (H200.sm_count, 512)
    assert gemm.chosen(fused, tuple(shapes), A100) in few.STRIPS  # no block of its has as much shared memory


def test_leading_dimensions_are_rows_and_cells_go_where_they_belong() -> None:
    text = """(x, v, w) => (y, z) { m = MatMul(x, v) n = MatMul(x, w) s = Constant <value = int64[4] {0, 0, 4, 18}> ()
      q = Reshape(m, s) r = Reshape(n, s)
      y = Transpose <perm = [0, 2, 1, 3]> (q) z = Transpose <perm = [0, 2, 3, 1]> (r) }"""
    fused = ops.op(text, (HALF,) * 3, (HALF,) * 2, "gemm")
    emulated(fused, [(2, 3, 40), (40, 72), (40, 72)])


@pytest.mark.parametrize("strip", few.STRIPS)
def test_products_side_by_side_may_have_different_columns(strip: Strip) -> None:
    fused, shapes = products.table("of different columns", HALF)
    emulated(fused, [(7, 40), *shapes[1:4], (7, 200), (7, 8), (7, 72)], strip)


def test_lines_of_the_left_factor_may_hold_more() -> None:
    fused = ops.op(products.TOKENS.replace("TERMS", "40"), (HALF,) * 4, (HALF,), "gemm")
    emulated(fused, [(7, 48), (40, 24), (7, 1), (7, 24)])


def plans(
    text: str, dtype: int, rows: tuple[int, ...], n: int, k: int, arch: Arch = H200, aligned: bool = True
) -> bool:
    fused, shapes = products.case(text, dtype, rows, n, k)
    return "gemm/few.cu" in {s.file for s in cuda.plan(fused, tuple(shapes), aligned, arch).kernel.sections}


def test_where_the_kernel_runs() -> None:
    """Up to eight rows of half types, lines on a boundary of 16 bytes; the others stay with the kernels there are."""
    assert plans(PLAIN, HALF, (8,), 2048, 2048)
    assert plans(PLAIN, HALF, (2, 4), 2048, 2048)
    assert plans(GELU, BRAIN, (1,), 768, 768, A100)
    assert not plans(PLAIN, HALF, (9,), 2048, 2048)
    assert not plans(PLAIN, HALF, (1,), 2044, 2048)
    assert not plans(PLAIN, HALF, (1,), 2048, 2044)
    assert not plans(PLAIN, HALF, (1,), 2048, 2048, aligned=False)
    assert not plans(TRANSPOSED, FLOAT, (1,), 2048, 2048)
    fused, shapes = products.case(PLAIN, HALF, (1,), 2048, 2048)
    block = cuda.plan(fused, tuple(shapes), True, H200, GemmVariant(block=Block(16, 64, 1, 2, 4)))
    assert "TILE_N = 64" in block.kernel.text  # what was asked for


@pytest.mark.parametrize(
    ("text", "n", "columns"),
    [(PLAIN, 768, 16), (PLAIN, 2048, 32), (SWIGLU, 4096, 32), (QKV, 512, 16), (PLAIN, 32000, 32)],
)
def test_the_widest_strip_that_enough_multiprocessors_have(text: str, n: int, columns: int) -> None:
    fused, shapes = products.case(text, HALF, (1,), n, 2048)
    assert gemm.chosen(fused, tuple(shapes), H200) == Strip(columns)
    strips = -(-n // columns) * (3 if text == QKV else 1)
    assert cuda.plan(fused, tuple(shapes), True, H200).grid[0] == min(strips, 2 * H200.sm_count)


@pytest.mark.parametrize("text", BODIES)
@pytest.mark.parametrize("strip", few.STRIPS, ids=str)
def test_every_strip_compiles_without_spilling_much(text: str, strip: Strip) -> None:
    """Two blocks share the registers of a multiprocessor, so that the kernel behind begins beside this one."""
    fused, shapes = products.case(text, HALF, (1,), 2048, 2048)
    if GemmVariant(strip=strip) not in gemm.candidates(fused, tuple(shapes), H200):
        pytest.skip("this body takes no strip as wide")
    plan = cuda.plan(fused, tuple(shapes), True, H200, GemmVariant(strip=strip))
    _, log = nvrtc.build(plan.kernel, H200, ("-Xptxas=-v",))
    spilled = [int(s) for s in re.findall(r"(\d+) bytes spill stores", log)]
    assert all(s <= 128 for s in spilled), log
    assert plan.shared_bytes <= H200.shared_bytes


def model(weights: Sequence[str], nodes: Sequence[tuple[str, str, str]]) -> tuple[onnx.ModelProto, str]:
    """Return a model of nodes of one op, `weights` among its initializers."""
    fused, _ = products.case(PLAIN, HALF, (1,), 8, 8)
    calls = " ".join(f"{y} = onnxfuse.{fused.name} ({x}, {w})" for y, x, w in nodes)
    made = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["" : 20, "onnxfuse" : 1]> '
        f"g (float16[1, 8] x, float16[8, 8] v) => (float16[1, 8] y) {{ {calls} }}"
    )
    made.functions.append(write(fused))
    array = np.zeros((8, 8), np.float16)
    made.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name in weights)
    return made, fused.name


def test_what_is_a_weight_wherever_the_op_stands_is_known_to_its_plan() -> None:
    """One that a caller may bring, or that a node computes, is none: the kernel ahead may write it."""
    made, name = model(["w", "u"], [("t", "x", "w"), ("y", "t", "u")])
    assert fused_ops(made)[name].constants == {1}
    made, name = model(["w"], [("t", "x", "w"), ("y", "w", "t")])
    assert fused_ops(made)[name].constants == set()
    made, name = model(["v"], [("y", "x", "v")])
    assert fused_ops(made)[name].constants == set()


def test_only_weights_are_fetched_before_the_kernel_ahead_has_ended() -> None:
    fused, shapes = products.case(SWIGLU, HALF, (1,), 64, 64)
    for constants, early in [({1, 2}, True), ({1}, False), (set(), False)]:
        plan = cuda.plan(replace(fused, constants=frozenset(constants)), tuple(shapes), True, H200)
        assert f"CONSTANT = {str(early).lower()};" in plan.kernel.text


@pytest.mark.parametrize(("text", "n", "k"), [(PLAIN, 2048, 2048), (SWIGLU, 4096, 2048), (TRANSPOSED, 1000, 2048)])
def test_one_program_answers_for_every_number_of_rows(text: str, n: int, k: int) -> None:
    """The weights' sizes are known to it, the rows are not: up to eight, and more by the other kernels."""
    fused, shapes = products.case(text, HALF, (1,), n, k)
    fixed = (None, k, *(d for s in shapes[1:] for d in s))
    made = dispatch.family(fused, Key(tuple(map(len, shapes)), fixed), True, H200)
    for rows in (1, 2, 7, 8, 9, 200, 1):
        now = ((rows, k), *shapes[1:])
        if made.answer(now) is None:
            made.record(now)
        assert made.answer(now) == programs.plan(fused, now, True, H200)
