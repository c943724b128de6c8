"""Products whose blocks compute the rows before them, by the host's compiler: residual, norm, gate, siblings."""

from dataclasses import replace

import numpy as np
import pytest

from bench.cases import ops
from bench.cases.ops import BRAIN, HALF
from bench.cases.row_products import BODIES, RMS, case, drawn, few_bits
from onnxfuse import cuda
from onnxfuse.cuda.build import nvrtc
from onnxfuse.cuda.planning.arch import A100, H200, Arch
from onnxfuse.cuda.templates.gemm import costs
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic.packing import Packing
from tests.emulator import emulate

MEASURED = costs.skinny


@pytest.fixture
def several_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let blocks compute as many rows as their kernels take, of which one was measured to pay."""
    monkeypatch.setattr(costs, "skinny", lambda arch: replace(MEASURED(arch), left_rows=16))


def runs(fused: FusedOp, inputs: list[np.ndarray], launches: int, arch: Arch = H200, *, aligned: bool = True) -> None:
    plan = cuda.plan(fused, tuple(x.shape for x in inputs), aligned, arch)
    assert 1 + len(plan.then) == launches
    got = emulate.run(plan, inputs, [ops.NUMPY[t] for t in fused.outputs], aligned)
    ops.within_budget(fused, inputs, got)


@pytest.mark.usefixtures("several_rows")
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize(("dtype", "rows", "n", "k"), [
    (HALF, (1,), 40, 264), (BRAIN, (1, 3), 72, 2048), (HALF, (8, 1), 136, 520),
])  # fmt: skip
def test_few_rows_take_one_launch(body: str, dtype: int, rows: tuple[int, ...], n: int, k: int) -> None:
    """One row by all threads, several at once by fewer; rows that threads hold in several vectors."""
    fused, shapes = case(body, dtype, rows, n, k)
    runs(replace(fused, constants=frozenset(range(2, len(shapes)))), drawn(fused, shapes), 1)


@pytest.mark.usefixtures("several_rows")
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("rows", [1, 5])
def test_blocks_take_several_strips_of_the_same_rows_in_turns(body: str, rows: int) -> None:
    """Two blocks or one: the rows stay where the block has computed them, and the first block alone writes them."""
    fused, shapes = case(body, HALF, (rows,), 136, 520)
    one = replace(H200, sm_count=1)
    plan = cuda.plan(replace(fused, constants=frozenset(range(2, len(shapes)))), tuple(shapes), True, one)
    assert "SEVERAL = true" in plan.kernel.text
    runs(replace(fused, constants=frozenset(range(2, len(shapes)))), drawn(fused, shapes), 1, one)


@pytest.mark.usefixtures("several_rows")
def test_rows_that_no_block_holds_take_two_launches() -> None:
    for body, rows, k, aligned in (("gate", 9, 264, True), ("alone", 8, 8192, True), ("alone", 2, 264, False)):
        fused, shapes = case(body, HALF, (rows,), 40, k)
        runs(fused, drawn(fused, shapes), 2, A100, aligned=aligned)


@pytest.mark.usefixtures("several_rows")
@pytest.mark.parametrize(("dtype", "rows", "packing"), [
    (HALF, 1, Packing(4, 32, 640)), (BRAIN, 11, Packing(8, 64, 256)), (HALF, 16, Packing(4, 128, 384)),
])  # fmt: skip
def test_weights_in_few_bits(dtype: int, rows: int, packing: Packing) -> None:
    """Up to sixteen rows, of which a block computes several at once."""
    fused, inputs = few_bits(dtype, (rows,), 40, packing)
    runs(fused, inputs, 1)
    runs(replace(fused, constants=frozenset(range(1, len(inputs)))), inputs, 1)


@pytest.mark.usefixtures("several_rows")
@pytest.mark.parametrize("rows", [1, 5, 8])
@pytest.mark.parametrize("arch", [H200, A100], ids=lambda arch: arch.name)
def test_the_kernels_spill_nothing(rows: int, arch: Arch) -> None:
    """What a thread holds of its rows fits beside the copies that are on their way."""
    packed, inputs = few_bits(HALF, (rows,), 5632, Packing(4, 32, 2048))
    for fused, shapes in (case("gate", HALF, (rows,), 5632, 2048), (packed, [x.shape for x in inputs])):
        plan = cuda.plan(replace(fused, constants=frozenset(range(2, len(shapes)))), tuple(shapes), True, arch)
        _, log = nvrtc.build(plan.kernel, arch, ("-Xptxas=-v",))
        assert "0 bytes spill stores" in log


def test_as_many_rows_as_were_measured_to_pay() -> None:
    for rows, launches in ((1, 1), (2, 2)):
        fused, shapes = case("beside", HALF, (rows,), 2048, 2048)
        assert 1 + len(cuda.plan(fused, tuple(shapes), True, H200).then) == launches


@pytest.mark.usefixtures("several_rows")
@pytest.mark.parametrize("rest", ["y = Add (m, s)", "y = Add (m, h)", "t = Sigmoid (m) y = Mul (t, h)"])
def test_what_else_reads_the_rows_waits_for_them(rest: str) -> None:
    """One block alone writes them: the epilogues of the others would read what was there before."""
    text = f"(x, r, g, w) => (s, h, y) {{ s = Add (x, r) {RMS.replace('HALF', str(HALF))} m = MatMul (h, w) {rest} }}"
    fused, shapes = ops.op(text, (HALF,) * 4, (HALF,) * 3, "row_product"), [(1, 264), (1, 264), (264,), (264, 264)]
    runs(replace(fused, constants=frozenset({2, 3})), drawn(fused, shapes), 2)


@pytest.mark.usefixtures("several_rows")
def test_part_of_the_rows_is_no_left_factor_of_theirs() -> None:
    """A block would keep whole rows in the memory of a part."""
    bounds = "i = Constant <value = int64[1] {0}> () j = Constant <value = int64[1] {128}> ()"
    part = f"{bounds} l = Constant <value = int64[1] {{-1}}> () c2 = Slice (h, i, j, l)"
    norm = f"s = Add (x, r) {RMS.replace('HALF', str(HALF))}"
    text = f"(x, r, g, w) => (s, h, y) {{ {norm} {part} y = MatMul (c2, w) }}"
    fused, shapes = ops.op(text, (HALF,) * 4, (HALF,) * 3, "row_product"), [(1, 264), (1, 264), (264,), (128, 264)]
    runs(replace(fused, constants=frozenset({2, 3})), drawn(fused, shapes), 2)
