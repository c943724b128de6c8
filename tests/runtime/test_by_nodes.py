"""Shapes that a model's own dimension names do not allow: where no kernel takes them, the nodes of the body run."""

import ctypes
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from onnxfuse import kernels, runtime
from onnxfuse.kernels import Arch
from onnxfuse.model.errors import NoPlanError
from onnxfuse.model.fused import FusedOp, fused_ops
from onnxfuse.runtime import by_nodes, loader
from tests.rewrite.small import optimize, parse
from tests.runtime import fused_models as models
from tests.runtime import stand_in_kernels
from tests.runtime.conftest import FakeCuda
from tests.runtime.test_session_on_cuda import CUDA, chain_error, feeds, message_of

W = "float[8,8] w = {" + ",".join(str(7 * i % 5 - 2) for i in range(64)) + "}"
LINEAR = f"""g (float[N,5,8] x, float[N,5,8] r) => (float[N,5,8] y) <{W}> {{
  p = MatMul (x, w)  s = Add (p, r)  y = Relu (s)
}}"""
IMAGES = """g (float[N,6,6,32] x, float[8,1,1,32] w, float[N,6,6,8] r) => (float[N,6,6,8] y) {
  image = Transpose <perm = [0,3,1,2]> (x)  filters = Transpose <perm = [0,3,1,2]> (w)
  c = Conv (image, filters)  m = Transpose <perm = [0,2,3,1]> (c)  s = Add (m, r)  y = Relu (s)
}"""


def on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pointers be those of the host, and the nodes run there."""
    monkeypatch.setattr(by_nodes, "DEVICE", "cpu")
    monkeypatch.setattr(by_nodes, "providers", lambda device, tf32: ["CPUExecutionProvider"])
    monkeypatch.setattr(kernels, "wait", lambda stream, device: True)
    monkeypatch.setattr(kernels, "copy", lambda source, to, size, device: ctypes.memmove(to, source, size))
    monkeypatch.setattr(kernels, "arch_of", lambda device: Arch("sm_90a", 132))


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
def test_what_no_kernel_takes_runs_by_its_nodes(
    text: str, shapes: tuple[tuple[int, ...], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A residual that is given for one image alone, and one image with several residuals: right, and a warning."""
    on_the_host(monkeypatch)
    op, named = the_op(text, *shapes)
    assert op.template == "gemm"
    with pytest.warns(UserWarning, match=r"no kernel for input shapes.*its nodes run through ONNX Runtime"):
        launch = loader.planner(op)(tuple(named.values()), True, 0)
    rng = np.random.default_rng(0)
    given = {name: rng.standard_normal(s).astype(np.float32) for name, s in named.items()}
    taken = dict(zip(op.body.input, given.values(), strict=True))
    (want,) = ReferenceEvaluator(op.body).run(None, taken, attributes={})
    assert launch.output_shapes == (want.shape,)
    y = np.empty(want.shape, np.float32)
    assert launch.nodes is not None
    launch.nodes([a.ctypes.data for a in (*given.values(), y)], 0)
    np.testing.assert_allclose(y, want, rtol=1e-6, atol=1e-5)


def test_shapes_that_the_nodes_do_not_take_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 rows and 7 residuals: nobody adds them."""
    on_the_host(monkeypatch)
    op, named = the_op(LINEAR, (4, 5, 8), (8, 8), (7, 5, 8))
    with pytest.raises(NoPlanError, match=r"no kernel for input shapes .*4x5x8.*7x5x8"):
        loader.planner(op)(tuple(named.values()), True, 0)


def through_the_bridge() -> Any:
    def refuse(op: str) -> None:
        raise NoPlanError(f"{op}: no kernel for input shapes", "")

    stand_in_kernels.install(on_plan=refuse)
    waited = []
    by_nodes.DEVICE = "cpu"
    by_nodes.providers = lambda device, tf32: ["CPUExecutionProvider"]
    by_nodes.kernels = SimpleNamespace(
        item_size=kernels.item_size,
        wait=lambda stream, device: waited.append(stream) or len(waited) <= 9,
        copy=lambda source, to, size, device: ctypes.memmove(to, source, size),
    )
    session = runtime.session(models.chain(), CUDA)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        errors = [chain_error(session, rows) for rows in (3, 3, 0)]
    return {
        "errors": errors,
        "told": sorted({str(w.message).split(":")[0] for w in told}),
        "streams": len(set(waited)),
        "calls and launches": [sum(count().values()) for count in (runtime.calls, runtime.launches)],
        "captured": message_of(Exception, session.run, None, feeds()),
    }


def test_nodes_run_on_what_the_op_is_given(on_fake_cuda: FakeCuda) -> None:
    """In the session's turn, after what its stream holds, in place where ONNX Runtime says so; not in a CUDA graph."""
    facts = on_fake_cuda(through_the_bridge)
    assert max(facts["errors"]) < 1e-6
    assert facts["told"] == ["BiasRelu_1", "Negate_3", "TwiceTanh_2"]
    assert facts["streams"] == 1
    assert facts["calls and launches"] == [9, 0]
    assert "which cannot be in a CUDA graph" in facts["captured"]
    assert "without enable_cuda_graph" in facts["captured"]
