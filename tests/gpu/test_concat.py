"""Kernels that write their channels of one output, on a real GPU: by themselves and in a session, against float64."""

import numpy as np
import onnxruntime
import pytest

import onnxfuse
from bench.cases import ops
from bench.cases.ops import BRAIN, FLOAT, HALF
from bench.kernels.launching import launcher
from onnxfuse import cuda, runtime
from tests.gpu.test_kernels import DeviceBuffer, _gpu
from tests.support.kernels import joined
from tests.support.small import assert_within_budget, doubled, evaluate, signed_inputs
from tests.unit.fusion.steps.test_concat import inception

cupy = pytest.importorskip("cupy", reason="needs CuPy")
CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_gpu() is not None, reason=_gpu() or "")]


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
def test_the_parts_write_the_whole_output_once(dtype: int, aligned: bool) -> None:
    """Fresh inputs, poisoned outputs between guards; launch after launch."""
    op, shapes = joined.case(dtype, 3, (29, 27), 48)
    given = joined.inputs(op, shapes, np.random.default_rng(0))
    plan = cuda.plan(op, tuple(shapes), aligned, cuda.arch_of(0))
    sources = [DeviceBuffer(x.shape, x.dtype, aligned, x) for x in given]
    results = [DeviceBuffer(s, ops.NUMPY[t], aligned) for s, t in zip(plan.output_shapes, op.outputs, strict=True)]
    work = launcher(plan, [b.address for b in (*sources, *results)])
    for _ in range(20):
        work()
    cupy.cuda.Device(0).synchronize()
    ops.within_budget(op, given, [r.read() for r in results], 432 // 8 if dtype == FLOAT else 0)


def test_a_session_launches_every_part() -> None:
    """Four branches, one of them read elsewhere, too; one op."""
    model = inception()
    made, given = onnxfuse.optimize(model), signed_inputs(model)
    truth = evaluate(doubled(model), {k: a.astype(np.float64) for k, a in given.items()})
    before = onnxruntime.InferenceSession(model.SerializeToString(), providers=CUDA).run(None, given)
    session = runtime.session(made, CUDA)
    assert [p.runs_as for p in session.fused if p.rule == "concat"] == ["kernel"]
    for _ in range(3):
        for output in zip(truth, before, session.run(None, given), strict=True):
            assert_within_budget("inception", *output)
