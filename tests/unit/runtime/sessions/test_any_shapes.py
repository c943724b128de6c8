"""Shapes that a model's own dimension names do not allow: where its template has no kernel, the general one runs."""

import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from onnxfuse import cuda, runtime
from onnxfuse.cuda import Arch
from onnxfuse.model.fused import FusedOp, fused_ops
from onnxfuse.runtime.engine.launch import LaunchArguments
from onnxfuse.runtime.kernels import loader
from onnxfuse.support.errors import NoPlanError
from tests.emulator import emulate
from tests.support import fused_models as models
from tests.support import stand_in_kernels
from tests.support.scenarios import FakeCuda
from tests.support.small import optimize, parse
from tests.unit.runtime.sessions.test_inference import CUDA, chain_error

W = "float[8,8] w = {" + ",".join(str(7 * i % 5 - 2) for i in range(64)) + "}"
LINEAR = f"""g (float[N,5,8] x, float[N,5,8] r) => (float[N,5,8] y) <{W}> {{
  p = MatMul (x, w)  s = Add (p, r)  y = Relu (s)
}}"""
IMAGES = """g (float[N,6,6,32] x, float[8,1,1,32] w, float[N,6,6,8] r) => (float[N,6,6,8] y) {
  image = Transpose <perm = [0,3,1,2]> (x)  filters = Transpose <perm = [0,3,1,2]> (w)
  c = Conv (image, filters)  m = Transpose <perm = [0,2,3,1]> (c)  s = Add (m, r)  y = Relu (s)
}"""


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[cuda.KernelSource]:
    """Return what is loaded from here on; nothing is compiled."""
    found: list[cuda.KernelSource] = []
    monkeypatch.setattr(cuda, "arch_of", lambda device: Arch("sm_90a", 132))
    function = SimpleNamespace(kernel=SimpleNamespace(ptr=0xF00))

    def load(kernel: cuda.KernelSource, device: int) -> Any:
        found.append(kernel)
        return function

    monkeypatch.setattr(cuda, "load", load)
    return found


def the_op(text: str, *shapes: tuple[int, ...]) -> tuple[FusedOp, dict[str, tuple[int, ...]]]:
    """Return the one fused op, and the shapes of x, w and r, by the names of what it takes for them."""
    made = optimize(parse(text))[0]
    (op,) = fused_ops(made).values()
    (node,) = made.graph.node
    given = dict(zip("xwr", shapes, strict=True))
    return op, {name: given[name[0]] for name in node.input}


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        (LINEAR, ((4, 5, 8), (8, 8), (1, 5, 8))),
        (LINEAR, ((1, 5, 8), (8, 8), (7, 5, 8))),
        (IMAGES, ((4, 6, 6, 32), (8, 1, 1, 32), (1, 6, 6, 8))),
        (IMAGES, ((1, 6, 6, 32), (8, 1, 1, 32), (3, 6, 6, 8))),
    ],
)
def test_what_no_kernel_of_a_template_takes_the_general_one_does(
    text: str, shapes: tuple[tuple[int, ...], ...], loaded: list[cuda.KernelSource]
) -> None:
    """A residual that is given for one image alone, and one image with several residuals: right, and a warning."""
    op, named = the_op(text, *shapes)
    assert op.template == "gemm"
    given = tuple(named.values())
    with pytest.warns(UserWarning, match=r"no kernel for input shapes.*the kernel for all shapes runs"):
        launch = loader.planner(op)(given, True, 0, None, None)
    assert isinstance(launch, LaunchArguments)
    plan = cuda.general(op, given, Arch("sm_90a", 132))
    assert loaded == [plan.kernel] * 2
    parts = (launch, *launch.then)
    assert [(p.grid, p.parameters, p.counter_bytes) for p in parts] == [
        (p.grid, p.parameters, 0) for p in (plan, *plan.then)
    ]
    assert {p.scratch_bytes for p in parts} == {plan.scratch_bytes}
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(s).astype(np.float32) for s in given]
    want: Any
    (want,) = ReferenceEvaluator(op.body).run(None, dict(zip(op.body.input, inputs, strict=True)), attributes={})
    (got,) = emulate.run(plan, inputs, [np.dtype(np.float32)])
    assert launch.output_shapes == (want.shape,)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-5)


def test_shapes_that_the_body_does_not_take_are_an_error(loaded: list[cuda.KernelSource]) -> None:
    """4 rows and 7 residuals: nobody adds them."""
    op, named = the_op(LINEAR, (4, 5, 8), (8, 8), (7, 5, 8))
    with pytest.raises(NoPlanError, match=r"no kernel for input shapes .*4x5x8.*7x5x8"):
        loader.planner(op)(tuple(named.values()), True, 0, None, None)
    assert not loaded


def through_the_bridge() -> Any:
    stand_in = stand_in_kernels.install(launches=3, scratch_bytes=64, unplanned=True)
    session = runtime.session(models.chain(), CUDA)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for rows in (3, 4, 3):
            chain_error(session, rows)
    return {
        "told": sorted(str(w.message).split(":")[0] for w in told),
        "launches": sum(runtime.launches().values()),
        "scratch": len({one.scratch for one in stand_in.launched}),
    }


def test_the_general_kernel_runs_in_several_launches(on_fake_cuda: FakeCuda) -> None:
    """With one scratch memory, and a warning for each new shape."""
    facts = on_fake_cuda(through_the_bridge)
    assert len(facts["told"]) == 2 * 3
    assert set(facts["told"]) == {"BiasRelu_1", "Negate_3", "TwiceTanh_2"}
    assert facts["launches"] == 3 * 3 * 3
    assert facts["scratch"] == 1
