"""Products by weights in few bits: the host's compiler runs the gemm template's kernels, NVRTC compiles them."""

import re
from dataclasses import replace

import numpy as np
import pytest

from bench.cases import ops, packed
from bench.cases.ops import BRAIN, FLOAT, HALF
from bench.cases.packed import BODIES, shapes
from onnxfuse import cuda
from onnxfuse.cuda.build import nvrtc
from onnxfuse.cuda.dispatch import dispatch
from onnxfuse.cuda.launch_programs.family import Key
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.templates.gemm import costs, unpack
from onnxfuse.cuda.templates.gemm import plan as gemm
from onnxfuse.cuda.templates.gemm.variant import Block, GemmTile, GemmVariant, Strip
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic.packing import Packing
from tests.emulator import emulate
from tests.emulator.test_gemm import A100
from tests.emulator.test_whole_kernels import H200
from tests.support.kernels import programs


def is_skinny(plan: LaunchPlan) -> bool:
    return "PIECE_TERMS = " in plan.kernel.text


def emulated(fused: FusedOp, inputs: list[np.ndarray], plan: LaunchPlan, *, aligned: bool = True) -> None:
    got = emulate.run(plan, inputs, [ops.NUMPY[t] for t in fused.outputs], aligned)
    ops.within_budget(fused, inputs, got, cuts=FLOAT in fused.outputs)


def skinny(fused: FusedOp, inputs: list[np.ndarray], strip: Strip | None = None) -> None:
    plan = cuda.plan(fused, shapes(inputs), True, H200, GemmVariant(strip=strip))
    assert is_skinny(plan)
    emulated(fused, inputs, plan)


FORMS = [
    (4, 32, 1280, "none"), (4, 32, 1280, "packed"), (4, 64, 2176, "packed"), (4, 128, 1152, "real"),
    (4, 256, 1280, "packed"), (4, 32, 96, "packed"), (4, 64, 64, "none"), (8, 16, 1072, "real"), (8, 32, 640, "none"),
    (8, 16, 1088, "packed"), (8, 128, 256, "packed"),
]  # fmt: skip
"""Bits, block, terms and zero points: blocks of a part of a step, of a step and of several; steps of each width."""


@pytest.mark.parametrize(("bits", "block", "k", "zeros"), FORMS)
@pytest.mark.parametrize(("dtype", "rows", "strip"), [(HALF, 1, Strip(16)), (BRAIN, 11, Strip(32, 4, 16))])
def test_every_form_of_a_weight_of_few_rows(
    bits: int, block: int, k: int, zeros: str, dtype: int, rows: int, strip: Strip
) -> None:
    """Rows and columns that end within a tile, rings that are shorter than a warp's share of the terms."""
    fused, inputs = packed.case("biased", dtype, (rows,), 40, Packing(bits, block, k), zeros)
    skinny(fused, inputs, strip)


@pytest.mark.parametrize("body", BODIES)
def test_every_body_of_few_rows(body: str) -> None:
    fused, inputs = packed.case(body, HALF, (2, 3), 56, Packing(4, 32, 384), "packed")
    skinny(fused, inputs)
    skinny(replace(fused, constants=frozenset(range(1, len(inputs)))), inputs)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize(
    ("bits", "block", "k", "zeros", "dtype"),
    [
        (4, 32, 160, "none", HALF), (4, 32, 160, "packed", BRAIN), (4, 16, 48, "real", HALF),
        (8, 16, 80, "real", BRAIN), (8, 64, 128, "packed", HALF), (2, 16, 80, "packed", HALF),
        (4, 16, 48, "packed", FLOAT), (8, 64, 128, "none", FLOAT),
    ],
)  # fmt: skip
def test_every_form_of_a_weight_of_many_rows(
    bits: int, block: int, k: int, zeros: str, dtype: int, aligned: bool
) -> None:
    """By words that are copied, or read one by one where they do not lie on words; float32 as TF32, or all of it."""
    fused, inputs = packed.case("biased", dtype, (33,), 72, Packing(bits, block, k), zeros)
    plan = cuda.plan(replace(fused, tf32=dtype != FLOAT), shapes(inputs), aligned, A100)
    assert not is_skinny(plan)
    emulated(fused, inputs, plan, aligned=aligned)


@pytest.mark.parametrize(
    ("body", "dtype", "rows", "n", "packing", "zeros", "tile"),
    [
        ("plain", HALF, (20,), 64, Packing(4, 32, 192), "none", None),
        ("biased", BRAIN, (70,), 128, Packing(4, 32, 160), "packed", None),
        ("swiglu", HALF, (130,), 64, Packing(4, 64, 192), "none", GemmTile(128, 64, 1, 2, 1)),
        ("residual", HALF, (40,), 128, Packing(8, 32, 96), "packed", None),
        ("pair", BRAIN, (40,), 64, Packing(8, 64, 192), "real", GemmTile(64, 64, 1)),
        ("heads", HALF, (2, 40), 128, Packing(4, 128, 256), "real", None),
        ("plain", HALF, (300,), 256, Packing(4, 32, 704), "packed", GemmTile(128, 128, 1, 2, 1)),
    ],
)  # fmt: skip
def test_hoppers_kernel_makes_elements_of_numbers(
    body: str, dtype: int, rows: tuple[int, ...], n: int, packing: Packing, zeros: str, tile: GemmTile | None
) -> None:
    """More stages than steps and a ring gone round, a last step of few terms, several tiles of a block."""
    fused, inputs = packed.case(body, dtype, rows, n, packing, zeros)
    plan = cuda.plan(fused, shapes(inputs), True, H200, GemmVariant(tile=tile))
    assert "RUN_PIECES" in plan.kernel.text
    emulated(fused, inputs, plan)


@pytest.mark.parametrize("body", BODIES)
def test_every_body_of_many_rows(body: str) -> None:
    fused, inputs = packed.case(body, HALF, (2, 20), 56, Packing(4, 32, 192), "packed")
    emulated(fused, inputs, cuda.plan(fused, shapes(inputs), True, A100))


@pytest.mark.parametrize("zeros", packed.ZEROS)
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_general_kernel_computes_it_too(bits: int, zeros: str) -> None:
    fused, inputs = packed.case("residual", HALF, (5,), 7, Packing(bits, 16, 48), zeros)
    plan = dispatch.general(fused, shapes(inputs), H200)
    emulated(fused, inputs, plan)


def test_where_the_kernel_for_few_rows_runs() -> None:
    def plans(rows: int, n: int, packing: Packing, dtype: int = HALF, aligned: bool = True) -> bool:
        fused, inputs = packed.case("plain", dtype, (rows,), n, packing)
        return is_skinny(cuda.plan(fused, shapes(inputs), aligned, H200))

    assert plans(1, 24, Packing(4, 32, 64))
    assert plans(16, 24, Packing(8, 16, 48), BRAIN)
    assert not plans(17, 24, Packing(4, 32, 64))
    assert not plans(1, 20, Packing(4, 32, 64))
    assert not plans(1, 24, Packing(4, 32, 64), FLOAT)
    assert not plans(1, 24, Packing(4, 32, 64), aligned=False)
    assert not plans(1, 24, Packing(2, 64, 64))
    assert not plans(1, 24, Packing(4, 16, 64))  # two scales for the numbers of a copy


def test_the_strip_by_which_no_multiprocessor_has_more_than_it_must() -> None:
    def chosen(n: int, k: int = 2048) -> object:
        fused, inputs = packed.case("plain", HALF, (1,), n, Packing(4, 32, k))
        return gemm.chosen(fused, shapes(inputs), H200)

    assert chosen(2048) == Strip(16, 16, 96)  # 128 blocks on 132 multiprocessors
    assert chosen(12288) == Strip(48, 8, 84)  # 256 blocks


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("strip", costs.PACKED_STRIPS, ids=str)
def test_every_strip_compiles_without_spilling_much(strip: Strip, rows: int) -> None:
    """Two blocks share the registers of a multiprocessor."""
    fused, inputs = packed.case("plain", HALF, (rows,), 2048, Packing(4, 32, 2048))
    if strip.columns == 64 and rows > 8:
        pytest.skip("more sums than registers: another strip is chosen")
    _, log = nvrtc.build(
        cuda.plan(fused, shapes(inputs), True, H200, GemmVariant(strip=strip)).kernel, H200, ("-Xptxas=-v",)
    )
    assert all(int(s) <= 128 for s in re.findall(r"(\d+) bytes spill stores", log)), log


def test_one_program_answers_for_every_number_of_rows() -> None:
    fused, inputs = packed.case("plain", HALF, (1,), 512, Packing(4, 32, 256))
    _, *weights = shapes(inputs)
    fixed = (None, 256, *(d for s in weights for d in s))
    made = dispatch.family(fused, Key((2, *map(len, weights)), fixed), True, H200)
    for rows in (1, 8, 9, 16, 17, 200, 1):
        now = ((rows, 256), *weights)
        if made.answer(now) is None:
            made.record(now)
        assert made.answer(now) == programs.plan(fused, now, True, H200)


def test_a_block_of_choice_is_taken() -> None:
    fused, inputs = packed.case("plain", HALF, (1,), 64, Packing(4, 32, 64))
    plan = cuda.plan(fused, shapes(inputs), True, H200, GemmVariant(block=Block(16, 64, 1, 2, 4)))
    assert not is_skinny(plan)
    emulated(fused, inputs, plan)


@pytest.mark.parametrize("rows", [3, 20])
def test_an_infinity_meets_the_numbers_as_they_are(rows: int) -> None:
    """Times a number that is its zero point it is no number, times any other infinite; other rows do not see it."""
    fused, inputs = packed.case("plain", HALF, (rows,), 64, Packing(4, 32, 192))
    inputs[0][0, 70] = np.inf
    emulated(fused, inputs, cuda.plan(fused, shapes(inputs), True, H200))


UNPACKED = [(4, 32, "none"), (4, 64, "packed"), (8, 32, "real"), (8, 64, "packed"), (4, 128, "real")]


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize(("bits", "block", "zeros"), UNPACKED)
def test_many_rows_take_the_elements_of_a_launch_before(
    body: str, bits: int, block: int, zeros: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one weight or two, with every kind of zero points: the same elements as the products make by themselves."""
    fused, inputs = packed.case(body, HALF if bits == 4 else BRAIN, (2, 136), 128, Packing(bits, block, 256), zeros)
    assert not cuda.plan(fused, shapes(inputs), True, H200).then
    cost = replace(costs.wgmma(), packed_of_rows=9.0, packed=9.0)
    monkeypatch.setattr(costs, "wgmma", lambda: cost)
    monkeypatch.setattr(unpack, "wgmma", lambda: cost)
    plan = cuda.plan(fused, shapes(inputs), True, H200)
    assert [p.kernel.entry.endswith("elements") for p in (plan, *plan.then)] == [True, False]
    emulated(fused, inputs, plan)


@pytest.mark.parametrize("extremes_of", [None, 0])
def test_elements_and_extremes_do_not_share_the_scratch_memory(extremes_of: int | None) -> None:
    """Where the range of the result is asked for, as by DynamicQuantizeLinear, another launch reads it for that."""
    fused, inputs = packed.case("plain", HALF, (4096,), 1024, Packing(4, 32, 1024))
    plan = gemm.plan(replace(fused, extremes_of=extremes_of), shapes(inputs), True, H200)
    (products,) = plan.then
    assert plan.extremes is products.extremes is None
    assert "void* scratch," not in products.kernel.text
