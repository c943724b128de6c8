"""Attention of 8-bit integers on a real GPU: the same integers as exact sums give."""

import numpy as np
import pytest

from bench.cases import ops
from onnxfuse import cuda
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.cuda.templates.attention.variant import AttentionVariant, Queries
from tests.gpu.test_kernels import DeviceBuffer, _gpu, launch
from tests.support.kernels.integer_attentions import CASES, INT8, UINT8, Case
from tests.support.kernels.quantized import assert_same_steps

cupy = pytest.importorskip("cupy", reason="needs CuPy")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_gpu() is not None, reason=_gpu() or "")]

LARGER = {
    "BERT-base": Case(32, 128, 128, 12, 64, mask=(32, 1, 1, 128), mask_type=INT8),
    "ViT-B/16": Case(8, 197, 197, 12, 64, dtype=UINT8, result=UINT8),
    "384 tokens": Case(2, 384, 384, 12, 64, mask=(2, 1, 1, 384)),
    "2000 tokens": Case(1, 2000, 2000, 4, 64),
    "wide heads": Case(1, 1000, 1000, 2, 256, mask=(1, 2, 1000, 1000), mask_type=INT8),
}


def check(case: Case, aligned: bool = True, tuning: Variant | None = None) -> None:
    inputs = case.inputs()
    plan = cuda.plan(case.op(), case.shapes(), aligned, cuda.arch_of(0), tuning)
    sources = [DeviceBuffer(x.shape, x.dtype, aligned, x) for x in inputs]
    (shape,) = plan.output_shapes
    result = DeviceBuffer(shape, ops.NUMPY[case.result], aligned)
    launch(plan, [b.address for b in (*sources, result)])
    cupy.cuda.Device(0).synchronize()
    assert_same_steps(result.read(), case.wanted(inputs))


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_integers_are_those_of_exact_sums(name: str, aligned: bool) -> None:
    check(CASES[name], aligned)


@pytest.mark.parametrize("name", LARGER)
def test_the_layers_of_real_nets(name: str) -> None:
    check(LARGER[name])


@pytest.mark.parametrize("name", ["plain", "a mask of 8 bits", "wide heads", "several steps"])
def test_keys_may_go_by_step_by_step(name: str) -> None:
    for way in (Queries(4, 1, 1, 64, streamed=1), Queries(2, 2, 1, 16, streamed=1)):
        check(CASES[name], tuning=AttentionVariant(queries=way))


def test_the_greatest_sums_are_exact() -> None:
    case = Case(1, 64, 64, 1, 256, dtype=UINT8)
    inputs = [np.full(shape, 255, np.uint8) for shape in case.shapes()]
    plan = cuda.plan(case.op(), case.shapes(), True, cuda.arch_of(0))
    sources = [DeviceBuffer(x.shape, x.dtype, True, x) for x in inputs]
    result = DeviceBuffer(plan.output_shapes[0], np.int8, True)
    launch(plan, [b.address for b in (*sources, result)])
    cupy.cuda.Device(0).synchronize()
    assert_same_steps(result.read(), case.wanted(inputs))
