"""Memory on the GPU: a pool that grows under captured graphs, limits, and an arena that follows changing shapes."""

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse import runtime
from onnxfuse.support.errors import MemoryLimitError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(runtime.cuda_unusable() is not None, reason=f"no GPU: {runtime.cuda_unusable()}"),
]

SUMS = """<ir_version: 8, opset_import: ["": 17]>
sums (float[N, 64] x) => (float[64] y) {
    axes = Constant <value_ints = [0]> ()
    a = Mul (x, x)
    b = Tanh (a)
    y = ReduceSum <keepdims = 0> (b, axes)
}"""
"""Of many rows, whose blocks leave partial sums in scratch memory and count those that came."""
PAGES = """<ir_version: 8, opset_import: ["": 17]>
pages (float[N, 8] x) => (float[N, 8] y) {
    a = Concat <axis = 1> (x, x, x, x)
    b = Relu (a)
    c = Concat <axis = 1> (b, b)
    d = Exp (c)
    e = MatMul (d, w)
    y = Add (e, x)
}"""


def sums(x: np.ndarray) -> np.ndarray:
    return np.tanh(x.astype(np.float64) ** 2).sum(0)


def test_graphs_stay_right_while_scratch_memory_grows_and_other_sessions_end() -> None:
    """Each graph has the addresses of its capture; other shapes and sessions use the same stream's pool meanwhile."""
    model = onnxfuse.optimize(onnx.parser.parse_model(SUMS))
    chance = np.random.default_rng(0)
    sizes = (30_000, 60_000, 7, 500_000, 1_000_000)
    given = [chance.standard_normal((rows, 64)).astype(np.float32) for rows in sizes]
    with onnxfuse.runner(model) as run:
        for repeat in range(4):
            for x in given:
                np.testing.assert_allclose(run({"x": x})["y"], sums(x), rtol=1e-4)
            with onnxfuse.runner(model, graphs=0) as other:
                np.testing.assert_allclose(other({"x": given[repeat]})["y"], sums(given[repeat]), rtol=1e-4)
        assert run.captured == len(sizes), run.why_not
        use = run.memory()
    assert 0 < use.workspaces < 64 << 20
    assert use.graphs >= sum(x.nbytes for x in given)


def test_a_stream_of_changing_shapes_stays_near_its_largest() -> None:
    """At most a fifth above what that takes in a session of its own."""
    model = onnx.parser.parse_model(PAGES)
    weight = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    fused = onnxfuse.optimize(model)
    session, alone = onnxfuse.session(fused), onnxfuse.session(fused)
    for megabytes in (8, 13, 10, 18, 24, 16, 30, 12, 40, 26, 60, 35, 50, 9, 60):
        session.run(None, {"x": np.zeros((megabytes * 31_250, 8), np.float32)})
    for _ in range(5):
        alone.run(None, {"x": np.zeros((60 * 31_250, 8), np.float32)})
    use, largest = session.memory(), alone.memory()
    assert use.arena + use.workspaces <= 1.2 * (largest.arena + largest.workspaces)


def test_a_run_beyond_the_limit_says_what_would_do_and_the_next_one_works() -> None:
    model = onnx.parser.parse_model(PAGES)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((64, 8), np.float32), "w"))
    session = onnxfuse.session(onnxfuse.optimize(model), memory_limit=100_000_000)
    x = np.ones((31_250, 8), np.float32)
    first = session.run(None, {"x": x})[0]
    with pytest.raises(MemoryLimitError, match=r"memory_limit=\d+ is the least for it"):
        session.run(None, {"x": np.ones((40 * 31_250, 8), np.float32)})
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], first)
