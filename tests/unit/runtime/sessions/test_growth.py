"""A server's memory stays flat: shapes are bounded, and a closed session leaves next to nothing."""

from typing import Any

import numpy as np

from onnxfuse import runtime
from tests.support import fused_models as models
from tests.support import growth, stand_in_kernels
from tests.support.scenarios import FakeCuda

KEPT = 1024
"""Shapes of an op that are kept."""


def test_closed_sessions_leave_next_to_nothing(on_fake_cuda: FakeCuda) -> None:
    """Of 200 sessions those after the first third left 19 kB each once; 7 now, steps of the allocator among them."""
    before, _, after = on_fake_cuda(growth.sessions)
    assert (after - before) / (200 * 2 / 3) < 13


def test_shapes_beyond_those_that_are_kept_leave_nothing(on_fake_cuda: FakeCuda) -> None:
    """Of 1,800 shapes the last third left 12 kB each once, of three ops."""
    _, before, after = on_fake_cuda(growth.shapes)
    assert (after - before) / (1800 / 3) < 2


def negate_rows(scratch: int) -> Any:
    graph = "one (float[N, 8] x) => (float[N, 8] y) { y = onnxfuse.Negate_3 (x) }"
    kernels = stand_in_kernels.install(scratch_bytes=scratch)
    session = runtime.session(models.model(graph, models.NEGATE), growth.CUDA)
    wrong = 0
    for rows in (*range(1, KEPT + 1), 1, KEPT + 1, KEPT + 2, KEPT, 1, 2, 3):
        x = np.full((rows, 8), rows, np.float32)
        wrong += bool((session.run(None, {"x": x})[0] != -x).any())
    return {"wrong": wrong, "again": [shapes[0][0] for _, shapes, _ in kernels.planned[KEPT + 2 :]]}


def without_scratch() -> Any:
    return negate_rows(0)


def with_scratch() -> Any:
    return negate_rows(64)


def test_the_shapes_met_again_are_kept(on_fake_cuda: FakeCuda) -> None:
    """What went is planned again where it is met again, and is as right; what is met stays."""
    for scenario in (without_scratch, with_scratch):
        assert on_fake_cuda(scenario) == {"wrong": 0, "again": [2, 3]}
