"""Small tensors: few elements a thread, and what lies apart read where it lies."""

import pytest

from bench.cases import moved, ops
from bench.cases.ops import BRAIN, FLOAT, HALF
from bench.cases.rows import TEMPLATES
from onnxfuse import cuda
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.launch_plan import SmallCosts
from tests.emulator.test_whole_kernels import H200, check


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans as they are outside of these tests."""
    monkeypatch.setattr(launch_plan, "small_costs", lambda arch: SmallCosts(1024, 128))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("layer norm of NCHW", HALF), ("softmax over channels", BRAIN), ("relu backward + bias gradient", FLOAT),
        ("group norm + silu", HALF), ("group norm of NHWC + silu", HALF), ("arg max over channels", HALF),
        ("batch statistics", FLOAT), ("log softmax", HALF),
    ],
)  # fmt: skip
def test_rows_are_spread_over_many_threads(name: str, dtype: int) -> None:
    """Neither vectors that begin before the row, nor sums that blocks exchange."""
    family = TEMPLATES[name]
    text = check(family.op(dtype), family.small).kernel.text
    assert "SHIFTED = false" in text
    assert "INNER_RANK" not in text


@pytest.mark.parametrize(
    "name", ["to nhwc, 197", "keys of 197", "transpose + add, odd", "window partition, 3 channels"]
)
def test_moved_data_needs_no_tile(name: str) -> None:
    op, shapes = moved.small(HALF)[name]
    assert "ROWS = " not in check(op, shapes).kernel.text


def test_vectors_are_halved_where_threads_are_few() -> None:
    bias = ops.op("(x, b) => (y) { y = Add (x, b) }", (HALF,) * 2, (HALF,))
    widths = {8: 4096, 4: 128, 1: 8}
    for width, rows in widths.items():
        assert f"WIDTH = {width}," in cuda.plan(bias, ((rows, 768), (768,)), True, H200).kernel.text
