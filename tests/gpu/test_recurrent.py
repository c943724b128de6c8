"""Recurrent layers on a real GPU: all sizes, blocks that hand each other what their cells give, run after run."""

import numpy as np
import pytest

from bench.cases import ops
from bench.cases.ops import BRAIN
from bench.kernels.launching import launcher
from onnxfuse import cuda
from tests.gpu.test_kernels import DeviceBuffer, cupy, pytestmark
from tests.support.kernels import recurrents
from tests.support.kernels.recurrents import Case

__all__ = ["pytestmark"]


def check(case: Case, aligned: bool = True, general: bool = False, runs: int = 1) -> None:
    """Run the layer, early as sessions do; every run gives the same bits."""
    op, inputs, arch = case.op(), case.inputs(np.random.default_rng(0)), cuda.arch_of(0)
    if (reason := cuda.supports(op, lambda: arch)) is not None:
        pytest.skip(reason)
    shapes = tuple(case.shapes())
    plan = cuda.general(op, shapes, arch) if general else cuda.plan(op, shapes, aligned, arch)
    sources = [DeviceBuffer(x.shape, x.dtype, aligned, x) for x in inputs]
    results = [DeviceBuffer(s, ops.NUMPY[t], aligned) for s, t in zip(plan.output_shapes, op.outputs, strict=True)]
    launch = launcher(plan, [b.address for b in (*sources, *results)], early=True)
    found = []
    for _ in range(runs):
        launch()
        cupy.cuda.Device(0).synchronize()
        found.append([r.read().copy() for r in results])
    recurrents.within_budget(case, inputs, found[0])
    assert all(a.tobytes() == b.tobytes() for again in found[1:] for a, b in zip(found[0], again, strict=True))


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_every_kind_and_direction(kind: str, direction: str) -> None:
    check(Case(kind, 256, 20, 8, 64, direction))


@pytest.mark.parametrize("hidden", [32, 64, 100, 128, 192, 320, 384, 512])
def test_every_size(hidden: int) -> None:
    """One block, two and eight that share a direction; weights in registers and in shared memory."""
    check(Case("LSTM", hidden, 20, 8, 64, "bidirectional"))


@pytest.mark.parametrize("batch", [1, 2, 7, 8, 9, 31, 64, 70, 300])
@pytest.mark.parametrize("hidden", [33, 256, 512])
def test_any_number_of_sequences(hidden: int, batch: int) -> None:
    """Clusters that are not full, and more sequences in one."""
    check(Case("LSTM", hidden, 9, batch, 40, "bidirectional"))


@pytest.mark.parametrize("steps", [0, 1, 2, 127, 200])
@pytest.mark.parametrize("hidden", [64, 256])
def test_any_number_of_positions(hidden: int, steps: int) -> None:
    check(Case("LSTM", hidden, steps, 5, 33, "bidirectional"))


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("hidden", [1, 31, 255, 257])
def test_odd_sizes_and_pointers(hidden: int, aligned: bool) -> None:
    check(Case("GRU", hidden, 6, 3, 7, "bidirectional"), aligned)


@pytest.mark.parametrize(
    "case",
    [
        Case("LSTM", 256, 12, 4, states=False), Case("LSTM", 256, 12, 4, bias=False, outputs="h"),
        Case("LSTM", 256, 12, 4, outputs="c"), Case("GRU", 256, 12, 4, states=False, outputs="h"),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_node_may_lack(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_bfloat16(kind: str) -> None:
    check(Case(kind, 256, 30, 9, 64, "bidirectional", dtype=BRAIN))


@pytest.mark.parametrize("hidden", [100, 256])
def test_the_general_plan(hidden: int) -> None:
    check(Case("LSTM", hidden, 11, 20, 30, "bidirectional"), aligned=False, general=True)


@pytest.mark.parametrize(("hidden", "batch"), [(128, 8), (256, 8), (256, 200), (512, 33)])
def test_every_run_gives_the_same_bits(hidden: int, batch: int) -> None:
    """Nothing is read before it was handed over, nothing written before it was read."""
    check(Case("LSTM", hidden, 150, batch, 64, "bidirectional"), runs=30)
