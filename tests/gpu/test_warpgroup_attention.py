"""The attention kernel for Hopper on a real GPU, by CuPy alone: lengths, heads, masks and groups against float64."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.cases import ops
from bench.cases.attentions import Case, within_budget
from bench.cases.ops import BRAIN, HALF
from onnxfuse import cuda
from onnxfuse.cuda.isa.factors import FLOAT16
from onnxfuse.cuda.templates.attention.variant import AttentionVariant, Queries
from tests.emulator.test_warpgroup_attention import MASKS, hidden, windowed
from tests.gpu.test_kernels import DeviceBuffer, _gpu, launch

cupy = pytest.importorskip("cupy", reason="needs CuPy")


def _missing() -> str | None:
    reason = _gpu()
    return reason or (None if cuda.arch_of(0).isa.wgmma(FLOAT16) else "needs a Hopper GPU")


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_missing() is not None, reason=_missing() or "")]

WAYS = [
    Queries(4 * w, 1, 1, s, warpgroups=1, ahead=a)
    for w, s, a in ((1, 64, 1), (1, 128, 1), (2, 128, 1), (3, 64, 1), (2, 64, 0))
]
EACH = pytest.mark.parametrize("way", WAYS[:2], ids=str)


def check(case: Case, way: Queries, inputs: list[np.ndarray] | None = None) -> np.ndarray:
    """Fresh inputs, poisoned output between guards; the second launch finds rooms as the first left them."""
    inputs = case.inputs(np.random.default_rng(case.keys)) if inputs is None else inputs
    plan = cuda.plan(case.op(), case.shapes(), True, cuda.arch_of(0), AttentionVariant(queries=way))
    sources = [DeviceBuffer(x.shape, x.dtype, True, x) for x in inputs]
    (shape,) = plan.output_shapes
    result = DeviceBuffer(shape, ops.NUMPY[case.dtype], True)
    for _ in range(2):
        launch(plan, [b.address for b in (*sources, result)])
    cupy.cuda.Device(0).synchronize()
    got = result.read()
    within_budget(case, inputs, got)
    return got


@EACH
@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("length", [1, 15, 64, 77, 128, 197, 512, 1025, 2500])
def test_every_length(length: int, dtype: int, way: Queries) -> None:
    check(Case(2, 3, length, length, 64, dtype), way)
    check(Case(2, 3, max(length // 2, 1), length, 64, dtype, bias=(2, 1, 1, length)), way)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("size", [8, 16, 32, 40, 48, 64, 72, 80, 96, 128, 248, 256])
def test_every_size_of_a_head(size: int, way: Queries) -> None:
    if size > 128:
        way = Queries(8, 1, 1, 64, warpgroups=1)
    check(Case(2, 4, 200, 333, size), way)
    check(Case(2, 4, 333, 333, size, BRAIN, causal=True), way)


@EACH
@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize(
    "bias", [(2, 1, 1, 520), (1, 4, 1, 520), (520,), (2, 4, 300, 520), (1, 4, 300, 520), (2, 1, 300, 520), (300, 520)]
)
def test_biases(bias: tuple[int, ...], dtype: int, way: Queries) -> None:
    check(Case(2, 4, 300, 520, 64, dtype, bias=bias), way)


@EACH
def test_layouts(way: Queries) -> None:
    check(Case(2, 4, 300, 520, 64, heads_first="qkvy"), way)
    check(Case(2, 4, 300, 520, 64, heads_first="kv", group=2, bias=(2, 1, 300, 520)), way)
    check(Case(2, 4, 300, 520, 128, group=4, apart="qk"), way)
    check(Case(1, 71, 300, 520, 64, heads_first="kv", group=71, bias=(1, 1, 300, 520)), way)


@EACH
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("dtype", "low"), [(HALF, "lowest"), (HALF, "-inf"), (BRAIN, "lowest")])
def test_masks(mask: str, dtype: int, low: str, way: Queries) -> None:
    case = Case(1, 2, 300, 320, 64, dtype, bias=(1, 1, 300, 320))
    q, k, v, bias = case.inputs(np.random.default_rng(0))
    bias[0, 0] = np.where(MASKS[mask], 0, hidden(dtype, low))
    check(case, way, [q, k, v, bias])


@EACH
@pytest.mark.parametrize(("low", "dtype"), [("lowest", HALF), ("-inf", HALF), ("lowest", BRAIN)])
def test_a_query_that_sees_no_key(low: str, dtype: int, way: Queries) -> None:
    case = Case(1, 2, 150, 320, 64, dtype, bias=(1, 1, 150, 320))
    q, k, v, bias = case.inputs(np.random.default_rng(0))
    seen = windowed(150, 320, 10)
    seen[[3, 100]] = False
    bias[...] = np.where(seen, 0, hidden(dtype, low))
    check(case, way, [q, k, v, bias])


@settings(max_examples=40, deadline=None)
@given(
    queries=st.integers(1, 700), keys=st.integers(1, 90), way=st.sampled_from(WAYS),
    masked=st.sampled_from(["", "key", "query", "causal"]), seed=st.integers(0, 9),
)  # fmt: skip
def test_any_attention(queries: int, keys: int, way: Queries, masked: str, seed: int) -> None:
    """Lengths that stand in no text; masks of islands."""
    keys *= 8
    bias = {"key": (2, 1, 1, keys), "query": (2, 1, queries, keys)}.get(masked)
    case = Case(2, 3, queries, keys, 64, bias=bias)
    if masked == "causal":
        case = replace(case, queries=keys, causal=True)
    random = np.random.default_rng(seed)
    inputs = case.inputs(random)
    if bias is not None:
        shown = np.repeat(random.random((*bias[:-1], keys // 8)) < 0.2, 8, -1)
        inputs[3] = np.where(shown, inputs[3], -65504).astype(inputs[3].dtype)
    check(case, way, inputs)
