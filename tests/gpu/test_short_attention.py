"""The attention kernel on a real GPU, through CuPy alone: sizes, layouts, biases and ways to share against float64."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.cases import ops
from bench.cases.attentions import Case, within_budget
from bench.cases.ops import BRAIN, FLOAT, HALF
from onnxfuse import cuda
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.cuda.templates.attention.variant import AttentionVariant, Queries
from tests.gpu.test_kernels import DeviceBuffer, _gpu, launch

cupy = pytest.importorskip("cupy", reason="needs CuPy")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_gpu() is not None, reason=_gpu() or "")]


def check(case: Case, aligned: bool = True, tuning: Variant | None = None, *, any_length: bool = False) -> None:
    """Fresh inputs, poisoned output between guards."""
    inputs = case.inputs(np.random.default_rng(case.keys))
    op = replace(case.op(), open_length=any_length)
    plan = cuda.plan(op, case.shapes(), aligned, cuda.arch_of(0), tuning)
    sources = [DeviceBuffer(x.shape, x.dtype, aligned, x) for x in inputs]
    (shape,) = plan.output_shapes
    result = DeviceBuffer(shape, ops.NUMPY[case.dtype], aligned)
    launch(plan, [b.address for b in (*sources, result)])
    cupy.cuda.Device(0).synchronize()
    within_budget(case, inputs, result.read())


@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
@pytest.mark.parametrize("sequence", [1, 49, 77, 128, 197, 256])
@pytest.mark.parametrize("size", [32, 64])
def test_the_layers_of_real_nets(dtype: int, sequence: int, size: int) -> None:
    check(Case(8, 12, sequence, sequence, size, dtype, bias=(8, 1, 1, sequence)))


OF_NETS = [
    Case(64, 3, 49, 49, 32, bias=(1, 3, 49, 49)),
    Case(64, 3, 49, 49, 32, bias=(1, 16, 3, 49, 49), apart="qk", target=(-1, 7, 7, 96)),
    Case(4, 8, 77, 77, causal=True),
    Case(32, 12, 1, 197),
    Case(2, 4, 40, 250, 64, heads_first="qky"),
    Case(2, 2, 100, 100, 128),
]
"""Windows, captions, one query, crossed sequences."""


@pytest.mark.parametrize("case", OF_NETS)
@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_windows_captions_one_query_and_crossed_sequences(case: Case, dtype: int) -> None:
    check(replace(case, dtype=dtype))


@settings(max_examples=60, deadline=None)
@given(
    queries=st.integers(1, 300), keys=st.integers(1, 300), size=st.sampled_from([16, 32, 48, 64]),
    way=st.none() | st.builds(Queries, warps=st.integers(1, 8), tiles=st.integers(1, 2), passes=st.integers(1, 4),
                              step=st.sampled_from([16, 32, 64, 112])),
    bias=st.booleans(), aligned=st.booleans(), dtype=st.sampled_from([HALF, BRAIN]),
)  # fmt: skip
def test_any_short_attention(
    queries: int, keys: int, size: int, way: Queries | None, bias: bool, aligned: bool, dtype: int
) -> None:
    case = Case(2, 3, queries, keys, size, dtype, bias=(2, 1, 1, keys) if bias else None)
    check(case, aligned, AttentionVariant(queries=way))
