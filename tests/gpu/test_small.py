"""Small tensors on a real GPU: the plans that tensors get whose time is that of a thread, not of the memory."""

import pytest

from bench.cases import moved, ops
from bench.cases.ops import BRAIN, FLOAT, HALF
from bench.cases.rows import TEMPLATES
from onnxfuse.cuda.planning import launch_plan
from tests.emulator.test_whole_kernels import CHAIN, POINTWISE_SHAPES
from tests.gpu.conftest import MEASURED
from tests.gpu.test_kernels import check, pytestmark

__all__ = ["pytestmark"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans as they are outside of these tests."""
    monkeypatch.setattr(launch_plan, "small_costs", MEASURED)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize(("dtype", "aligned"), [(HALF, True), (FLOAT, False)])
def test_families(name: str, dtype: int, aligned: bool) -> None:
    check(TEMPLATES[name].op(dtype), TEMPLATES[name].small, aligned)


@pytest.mark.parametrize("name", moved.small(HALF))
@pytest.mark.parametrize(("dtype", "aligned"), [(HALF, True), (FLOAT, False)])
def test_moved_data(name: str, dtype: int, aligned: bool) -> None:
    op, shapes = moved.small(dtype)[name]
    check(op, shapes, aligned)


@pytest.mark.parametrize("shapes", POINTWISE_SHAPES.values(), ids=POINTWISE_SHAPES)
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
def test_chains(shapes: list[tuple[int, ...]], dtype: int) -> None:
    check(ops.op(CHAIN, (dtype,) * 3, (dtype,)), shapes)
