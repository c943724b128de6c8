"""Attention of 8-bit integers: bodies taken apart, and kernels run by the host's compiler, step for step."""

from dataclasses import replace

import numpy as np
import pytest

from bench.cases import ops
from onnxfuse import cuda
from onnxfuse.cuda.build import nvrtc
from onnxfuse.cuda.planning.arch import A100, H200, SUPPORTED
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.cuda.templates.attention.variant import AttentionVariant, Queries
from onnxfuse.support.errors import KernelError
from tests.emulator import emulate
from tests.support.kernels.integer_attentions import CASES, INT8, UINT8, Case
from tests.support.kernels.quantized import assert_same_steps


def check(case: Case, tuning: Variant | None = None, aligned: bool = True) -> None:
    """Assert that the integers are those of exact sums, but for ties."""
    inputs = case.inputs()
    plan = cuda.plan(case.op(), case.shapes(), aligned, H200, tuning)
    (got,) = emulate.run(plan, inputs, [ops.NUMPY[case.result]], aligned)
    wanted = case.wanted(inputs)
    assert len(np.unique(wanted)) > 5
    assert_same_steps(got, wanted)


@pytest.mark.parametrize("name", CASES)
def test_integers_are_those_of_exact_sums(name: str) -> None:
    check(CASES[name])


@pytest.mark.parametrize("name", ["uint8", "a mask by query of 8 bits", "heads of 80"])
def test_pointers_off_16_bytes(name: str) -> None:
    check(CASES[name], aligned=False)


@pytest.mark.parametrize("name", ["plain", "a mask of 8 bits", "wide heads", "several steps"])
def test_keys_may_go_by_step_by_step(name: str) -> None:
    """Twice: for the sum of the weights, and for the values. Of wide heads the queries are in shared memory, too."""
    check(CASES[name], AttentionVariant(queries=Queries(4, 1, 1, 64, streamed=1)))
    check(CASES[name], AttentionVariant(queries=Queries(2, 2, 1, 16, streamed=1)))
    check(CASES[name], AttentionVariant(queries=Queries(1, 1, 2, 64, streamed=1)))


@pytest.mark.parametrize("way", [(2, 1, 2, 32), (1, 2, 1, 48), (4, 1, 1, 16)], ids=str)
def test_the_queries_may_be_shared_in_any_way(way: tuple[int, int, int, int]) -> None:
    """Passes over the keys of one step, or twice over those of several."""
    check(replace(CASES["a mask by key"], queries=70), AttentionVariant(queries=Queries(*way)))


def test_the_general_kernel_gives_the_same() -> None:
    case = CASES["a mask of 8 bits"]
    (got,) = emulate.run(cuda.general(case.op(), case.shapes(), A100), case.inputs(), [np.int8])
    assert_same_steps(got, case.wanted(case.inputs()))


def test_sums_of_the_greatest_factors_are_exact() -> None:
    """255 * 255 for each of 256 elements of a head is just below 2^24."""
    case = Case(1, 16, 16, 1, 256, dtype=UINT8)
    inputs = [np.full(shape, 255, np.uint8) for shape in case.shapes()]
    (got,) = emulate.run(cuda.plan(case.op(), case.shapes(), True, H200), inputs, [np.int8])
    assert_same_steps(got, case.wanted(inputs))


@pytest.mark.parametrize("case", [Case(0, 33, 40), Case(2, 0, 40)])
def test_nothing_to_compute_launches_nothing(case: Case) -> None:
    assert cuda.plan(case.op(), case.shapes(), True, H200).grid[0] == 0


def test_another_size_of_heads_is_refused() -> None:
    case = Case(1, 9, 21, 2, 24)
    with pytest.raises(KernelError, match="heads of 24 elements, expected a multiple of 16"):
        cuda.plan(case.op(), case.shapes(), True, H200)


PARTS = {
    "probabilities that are no integers": (
        "pq = QuantizeLinear (p, sp, zp) pf = DequantizeLinear (pq, sp, zp)", "pf = Mul (p, sp)",
        "no integers of 8 bits",
    ),
    "a result of float32": ("o8 = QuantizeLinear (o, so, zo)", "o8 = Mul (o, so)", "not of 8 bits"),
    "a Transpose that splits no heads": (
        "kt = Transpose <perm = [0,2,3,1]> (k4)", "kt = Transpose <perm = [0,2,1,3]> (k4)", "another way",
    ),
    "queries that are computed": (
        "qf = DequantizeLinear (qt, sq, zq)", "qd = DequantizeLinear (qt, sq, zq) qf = Relu (qd)", "constant scale",
    ),
    "no softmax": ("p = Softmax <axis = -1> (a8)", "p = Sigmoid (a8)", "without a softmax"),
    "a softmax over the queries": ("Softmax <axis = -1>", "Softmax <axis = 2>", "no softmax over the keys"),
    "another Reshape": ("int64[3] {0,0,-1}", "int64[2] {0,-1}", "takes another way"),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_other_bodies_are_refused_with_the_reason(name: str) -> None:
    old, new, told = PARTS[name]
    text = CASES["plain"].text()
    assert old in text
    result = 1 if name == "a result of float32" else INT8
    fused = ops.op(text.replace(old, new), (INT8,) * 3, (result,), "attention")
    with pytest.raises(KernelError, match=told):
        cuda.plan(fused, CASES["plain"].shapes(), True, H200)


@pytest.mark.parametrize("arch", {a.name: a for a in SUPPORTED}.values(), ids=lambda a: a.name)
def test_the_kernels_compile_for_each_gpu(arch: cuda.Arch) -> None:
    for case in (CASES["a mask of 8 bits"], Case(1, 4000, 4000, 2, 64)):
        nvrtc.compile(cuda.plan(case.op(), case.shapes(), True, arch).kernel, arch)
