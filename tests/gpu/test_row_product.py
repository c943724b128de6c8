"""Norms in the kernels of the products that read them, on a real GPU, against float64."""

from dataclasses import replace

import numpy as np
import pytest

from bench.cases import ops
from bench.cases.ops import BRAIN, HALF
from bench.cases.row_products import BODIES, case, drawn, few_bits
from onnxfuse import cuda
from onnxfuse.cuda.templates.gemm import costs
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic.packing import Packing
from tests.gpu.test_gemm import launch
from tests.gpu.test_kernels import DeviceBuffer, _gpu

cupy = pytest.importorskip("cupy", reason="needs CuPy")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_gpu() is not None, reason=_gpu() or "")]


MEASURED = costs.skinny


@pytest.fixture
def several_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let blocks compute as many rows as their kernels take, of which one was measured to pay."""
    monkeypatch.setattr(costs, "skinny", lambda arch: replace(MEASURED(arch), left_rows=16))


def check(fused: FusedOp, inputs: list[np.ndarray], launches: int, *, aligned: bool = True) -> None:
    """Two runs write the same to the last bit, and nothing beside their outputs."""
    fused = replace(fused, constants=frozenset(range(len(inputs) - 1, len(inputs))))
    plan = cuda.plan(fused, tuple(x.shape for x in inputs), aligned, cuda.arch_of(0))
    assert 1 + len(plan.then) == launches
    sources, found = [DeviceBuffer(x.shape, x.dtype, aligned, x) for x in inputs], []
    for _ in range(2):
        results = [
            DeviceBuffer(s, ops.NUMPY[t], aligned) for s, t in zip(plan.output_shapes, fused.outputs, strict=True)
        ]
        for part in (plan, *plan.then):
            launch(part, [b.address for b in (*sources, *results)])
        cupy.cuda.Device(0).synchronize()
        found.append([b.read() for b in results])
    for first, second in zip(*found, strict=True):
        assert first.tobytes() == second.tobytes()
    ops.within_budget(fused, inputs, found[0])


@pytest.mark.usefixtures("several_rows")
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize(("rows", "launches"), [((1,), 1), ((2, 3), 1), ((8, 1), 1), ((9,), 2), ((70,), 2)])
@pytest.mark.parametrize(("n", "k"), [(40, 264), (2048, 2048), (11264, 2048)])
def test_every_body(body: str, rows: tuple[int, ...], launches: int, n: int, k: int) -> None:
    fused, shapes = case(body, BRAIN if rows == (2, 3) else HALF, rows, n, k)
    check(fused, drawn(fused, shapes), launches)


@pytest.mark.usefixtures("several_rows")
@pytest.mark.parametrize("rows", [1, 5, 8, 16, 40])
@pytest.mark.parametrize("packing", [Packing(4, 32, 2048), Packing(8, 128, 1024), Packing(4, 128, 4096)])
def test_weights_in_few_bits(rows: int, packing: Packing) -> None:
    held = rows <= 16 and packing.terms * rows <= 2**15
    check(*few_bits(HALF, (rows,), 1032, packing), 1 if held else 2)
