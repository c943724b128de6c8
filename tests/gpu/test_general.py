"""The general kernel on a real GPU: every body that a template takes, unaligned, against the body."""

import numpy as np
import pytest

from bench.cases import attentions, ops
from bench.kernels.launching import launcher
from onnxfuse import cuda, runtime
from onnxfuse.model.fused import FusedOp
from tests.gpu.test_kernels import DeviceBuffer, cupy, pytestmark
from tests.support.fused_models import chain
from tests.support.kernels import generals
from tests.support.kernels.generals import ATTENTIONS, Shapes
from tests.unit.runtime.sessions.test_inference import CUDA, chain_error

__all__ = ["pytestmark"]

CASES = generals.cases()


def run(op: FusedOp, shapes: Shapes, inputs: list[np.ndarray]) -> list[np.ndarray]:
    plan = cuda.general(op, shapes, cuda.arch_of(0))
    sources = [DeviceBuffer(x.shape, x.dtype, False, x) for x in inputs]
    results = [DeviceBuffer(s, ops.NUMPY[t], False) for s, t in zip(plan.output_shapes, op.outputs, strict=True)]
    launcher(plan, [b.address for b in (*sources, *results)], early=True)()
    cupy.cuda.Device(0).synchronize()
    return [r.read() for r in results]


@pytest.mark.parametrize("name", CASES)
def test_it_computes_the_body(name: str) -> None:
    op, shapes = CASES[name]
    inputs = generals.inputs(op, shapes, np.random.default_rng(0))
    ops.within_budget(op, inputs, run(op, shapes, inputs))


@pytest.mark.parametrize("name", ATTENTIONS)
def test_it_computes_attention(name: str) -> None:
    case = ATTENTIONS[name]
    inputs = case.inputs(np.random.default_rng(0))
    attentions.within_budget(case, inputs, run(case.op(), case.shapes(), inputs)[0])


def test_a_session_by_general_kernels_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes that come and go, in place where ONNX Runtime says so: all by one kernel for each op."""
    plan = cuda.general
    monkeypatch.setattr(cuda, "plan", lambda op, shapes, aligned, arch, tuning=None: plan(op, shapes, arch))
    monkeypatch.setattr("onnxfuse.runtime.kernels.programs.Programs.learn", lambda *facts: None)
    session = runtime.session(chain(), CUDA)
    assert max(chain_error(session, rows) for rows in (3, 197, 3, 0, 1025)) < 1e-6
