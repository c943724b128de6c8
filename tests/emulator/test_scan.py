"""Running sums, run by the host's compiler: along rows of any length and across them, with pointwise work around."""

import re
from dataclasses import replace

import numpy as np
import pytest

from bench.cases import ops
from bench.cases.ops import BOOL, BRAIN, DOUBLE, FLOAT, HALF, INT32, INT64
from onnxfuse import cuda
from onnxfuse.cuda import Arch
from onnxfuse.cuda.build import nvrtc
from onnxfuse.cuda.templates.scan import plan as scan
from onnxfuse.cuda.templates.scan.costs import costs_of
from onnxfuse.model.fused import FusedOp
from onnxfuse.support.errors import KernelError
from tests.emulator import emulate
from tests.emulator.test_whole_kernels import H200, check

UINT32 = 12


def running(axis: int = -1, attributes: str = "") -> str:
    """Return the body of a running sum with pointwise work on both sides."""
    return f"""(x, b) => (y) {{ i = Constant <value_int = {axis}> () n = Neg (x) s = CumSum {attributes} (n, i)
        m = Mul (s, b) y = Add (m, x) }}"""


def plain(dtype: int, axis: int, attributes: str = "") -> FusedOp:
    """Return the op of a running sum alone."""
    text = f"(x) => (y) {{ i = Constant <value_int = {axis}> () y = CumSum {attributes} (x, i) }}"
    return ops.op(text, (dtype,), (dtype,), "scan")


WAYS = ["", "<exclusive = 1>", "<reverse = 1>", "<exclusive = 1, reverse = 1>"]


@pytest.mark.parametrize(
    ("columns", "attributes"),
    [
        *((columns, WAYS[n % 4]) for n, columns in enumerate([1, 2, 7, 8, 31, 197, 264, 2048, 4104])),
        *((columns, attributes) for columns in (40, 1025) for attributes in WAYS),
    ],
)
@pytest.mark.parametrize("aligned", [True, False])
def test_rows_of_any_length(columns: int, attributes: str, aligned: bool) -> None:
    """One thread, a part of a warp, a warp, a block, a block that walks: the body's values."""
    check(ops.op(running(-1, attributes), (HALF,) * 2, (HALF,), "scan"), [(3, columns), (columns,)], aligned)


@pytest.mark.parametrize(("attributes", "few"), [*zip(WAYS, (True, False, False, True), strict=True)])
@pytest.mark.parametrize("shape", [(5, 3), (37, 40), (2, 19, 3, 8), (3, 130, 1, 2), (1, 7, 300)], ids=str)
def test_across_neighbours(shape: tuple[int, ...], attributes: str, few: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that share a column and threads that have it alone; vectors and columns one by one."""
    cost = costs_of(H200)
    monkeypatch.setattr(scan, "costs_of", lambda arch: replace(cost, busy=cost.busy if few else 0))
    axis = 0 if len(shape) == 2 else 1
    fused = ops.op(running(axis, attributes), (FLOAT,) * 2, (FLOAT,), "scan")
    text = check(fused, [shape, shape[-1:]]).kernel.text
    assert "scan/column.cu" in text
    assert ("SEGMENTS = 1;" in text) != few


@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT, DOUBLE, INT32, INT64, UINT32])
@pytest.mark.parametrize("axis", [1, -1])
def test_element_types(dtype: int, axis: int) -> None:
    """All that CumSum knows; integers exactly."""
    check(plain(dtype, axis), [(6, 9, 16)])


def test_operands_are_broadcast_along_the_axis_and_beside_it() -> None:
    """A number for each row, one for each column, one for all."""
    for other in ((5, 1), (40,), (1,), (3, 1, 1)):
        for axis in (-1, 1):
            check(ops.op(running(axis), (HALF,) * 2, (HALF,), "scan"), [(3, 5, 40), other])


def test_positions_of_what_a_mask_keeps() -> None:
    """The token positions of RoBERTa: a mask of bytes, counted."""
    text = """(k) => (y) { i = Constant <value_int = 1> () m = Cast <to = 7> (k) s = CumSum (m, i) p = Mul (s, m)
        o = Constant <value = int64 {1}> () y = Add (p, o) }"""
    check(ops.op(text, (BOOL,), (INT64,), "scan"), [(4, 130)])


def test_sums_of_16_bit_floats_are_taken_in_float32() -> None:
    """4096 times 1: float16 alone ends at 2048, where a 1 more is lost."""
    fused = plain(HALF, -1)
    plan = cuda.plan(fused, ((1, 4096),), True, H200)
    (got,) = emulate.run(plan, [np.ones((1, 4096), np.float16)], [np.float16])
    np.testing.assert_array_equal(got[0], np.arange(1, 4097).astype(np.float16))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(3, 40), (70, 1025)], ids=str)
def test_an_output_may_lie_over_an_input(axis: int, shape: tuple[int, int]) -> None:
    """As `inplace` says of those of one type."""
    fused = ops.op(running(axis), (HALF,) * 2, (HALF,), "scan")
    assert cuda.inplace(fused) == ((0, 0), (1, 0))
    check(fused, [shape, shape[-1:]], over=0)
    check(fused, [(*shape[:-1], 33), (33,)], aligned=False, over=0)


def test_wide_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above 2^31 elements the same text runs on 64-bit indices; forced here on small tensors."""
    monkeypatch.setattr("onnxfuse.cuda.planning.launch_plan.index_bits", lambda elements: 64)
    for axis in (0, 1):
        plan = check(ops.op(running(axis), (HALF,) * 2, (HALF,), "scan"), [(33, 72), (72,)])
        assert "using Index = unsigned long long" in plan.kernel.text


@pytest.mark.parametrize("arch", [Arch("sm_80", 108), H200], ids=["sm_80", "sm_90a"])
@pytest.mark.parametrize("shape", [(4096, 4096), (8, 4096, 64), (4096, 3, 4096)], ids=str)
@pytest.mark.parametrize("dtype", [HALF, DOUBLE])
def test_kernels_compile_without_spills(shape: tuple[int, ...], dtype: int, arch: Arch) -> None:
    """A flag beside each sum of the widest type, too: shared memory and registers suffice."""
    text = """(x, b) => (y, k) { i = Constant <value_int = 1> () s = CumSum (x, i) y = Mul (s, b)
        k = Greater (s, x) }"""
    fused = ops.op(text, (dtype,) * 2, (dtype, BOOL), "scan")
    _, log = nvrtc.build(cuda.plan(fused, (shape, shape[-1:]), True, arch).kernel, arch, ("-Xptxas=-v",))
    assert set(re.findall(r"(\d+) bytes spill stores", log)) == {"0"}


def test_without_elements_nothing_is_launched() -> None:
    """The outputs have their shapes."""
    plan = cuda.plan(plain(FLOAT, 1), ((3, 0, 4),), True, H200)
    assert (plan.grid[0], plan.output_shapes) == (0, ((3, 0, 4),))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(x) => (y) { y = Relu (x) }", "0 kinds of CumSum"),
        ("(x) => (y) { i = Constant <value_int = 1> () s = CumSum (x, i) y = CumSum (s, i) }", "1 kind of CumSum"),
        (
            """(x) => (y) { i = Constant <value_int = 1> () j = Constant <value_int = 0> () s = CumSum (x, i)
            t = CumSum (x, j) y = Add (s, t) }""",
            "2 kinds of CumSum",
        ),
        ("(x) => (y) { i = Constant <value_int = 1> () s = CumSum (x, i) y = Softmax (s) }", "no kernel for Softmax"),
    ],
)
def test_what_is_no_single_scan_is_refused(text: str, reason: str) -> None:
    """With the reason in one line."""
    assert reason in str(cuda.supports(ops.op(text, (FLOAT,), (FLOAT,), "scan")))


def test_shapes_that_are_not_the_scans_are_refused() -> None:
    """An operand that is larger than what is summed, an axis that is not there."""
    text = "(x, b) => (y) { i = Constant <value_int = 1> () s = CumSum (x, i) y = Add (s, b) }"
    with pytest.raises(KernelError, match=r"a value of shape \[1, 8\] in an op that scans \[3, 8\]"):
        cuda.plan(ops.op(text, (FLOAT,) * 2, (FLOAT,), "scan"), ((1, 8), (3, 8)), True, H200)
    with pytest.raises(KernelError, match="over axis 2 of a value of rank 2"):
        cuda.plan(plain(FLOAT, 2), ((3, 8),), True, H200)
