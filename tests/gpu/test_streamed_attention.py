"""The attention kernel for any length on a real GPU, through CuPy alone: lengths up to 5000 against float64."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.cases.attentions import Case
from bench.cases.ops import BRAIN, FLOAT, HALF
from onnxfuse.cuda.templates.attention.variant import AttentionVariant, Queries
from tests.gpu.test_kernels import _gpu
from tests.gpu.test_short_attention import OF_NETS, check

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_gpu() is not None, reason=_gpu() or "")]

WAYS = [Queries(4, 2, 1, 64, 1), Queries(4, 1, 1, 64, 1), Queries(2, 1, 1, 64, 1), Queries(4, 2, 1, 32, 1)]
LENGTHS = [1, 2, 15, 64, 65, 127, 128, 197, 511, 1024, 2047, 5000]


def heads(length: int) -> int:
    """Return how many heads there are beside so many queries: float64 scores of all of them fit the memory."""
    return 12 if length <= 512 else 2 if length <= 2048 else 1


@pytest.mark.parametrize("masked", ["no mask", "causal", "by key", "by query", "causal, by key"])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_every_length(length: int, masked: str, dtype: int) -> None:
    """As the plan of a model of open length chooses it."""
    many = heads(length)
    bias = {"by key": (2, 1, 1, length), "causal, by key": (2, 1, 1, length), "by query": (1, many, length, length)}
    case = Case(2, many, length, length, dtype=dtype, bias=bias.get(masked), causal="causal" in masked)
    check(case, any_length=True)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
@pytest.mark.parametrize("size", [16, 32, 48, 64, 80, 96, 112, 128, 192, 256])
def test_every_size_of_a_head(size: int, dtype: int, aligned: bool) -> None:
    check(Case(2, 4, 150, 333, size, dtype), aligned, any_length=True)
    check(Case(2, 4, 333, 333, size, dtype, causal=True), aligned, any_length=True)


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize("size", [8, 24, 40, 72, 136, 248])
def test_a_product_may_end_behind_a_head(size: int, dtype: int, aligned: bool) -> None:
    check(Case(2, 4, 150, 333, size, dtype), aligned)
    check(Case(2, 4, 150, 336, size, dtype, bias=(2, 1, 150, 336)), aligned, any_length=True)
    check(
        Case(2, 4, 150, 333, size, dtype, heads_first="qkvy"),
        aligned,
        AttentionVariant(queries=WAYS[0] if size < 64 else None),
    )


@pytest.mark.parametrize(
    "case",
    [
        *OF_NETS,
        Case(32, 12, 1, 1970),
        Case(2, 4, 40, 2500, 64, heads_first="qky"),
        Case(2, 2, 1000, 1000, 128, heads_first="kv"),
        Case(2, 4, 40, 0),
        Case(2, 4, 100, 300, scale=-0.2),
    ],
)
@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_windows_captions_one_query_and_crossed_sequences(case: Case, dtype: int) -> None:
    check(replace(case, dtype=dtype), any_length=True)


@settings(max_examples=80, deadline=None)
@given(
    queries=st.integers(1, 700), keys=st.integers(1, 700), size=st.sampled_from([16, 32, 48, 64]),
    way=st.none() | st.sampled_from(WAYS), masked=st.sampled_from(["", "key", "query", "causal"]),
    aligned=st.booleans(), dtype=st.sampled_from([HALF, BRAIN, FLOAT]),
)  # fmt: skip
def test_any_attention(
    queries: int, keys: int, size: int, way: Queries | None, masked: str, aligned: bool, dtype: int
) -> None:
    bias = {"key": (2, 1, 1, keys), "query": (2, 1, queries, keys)}.get(masked)
    case = Case(2, 3, queries, keys, size, dtype, bias=bias)
    if masked == "causal":
        case = replace(case, queries=keys, causal=True)
    check(case, aligned, AttentionVariant(queries=way), any_length=True)
