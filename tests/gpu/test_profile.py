"""Profiles on a real GPU: every kernel is seen, and joined with the node that launched it."""

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse import runtime
from onnxfuse.measure.benchmark import bench
from onnxfuse.measure.benchmark.ceilings import measured
from onnxfuse.measure.profile import cupti, profile

UNUSABLE = runtime.cuda_unusable()
UNSEEN = None if UNUSABLE is not None else cupti.missing()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(UNUSABLE is not None, reason=f"no GPU: {UNUSABLE}"),
    pytest.mark.skipif(UNSEEN is not None, reason=f"no CUPTI: {UNSEEN}"),
]

CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]
ROWS, COLUMNS = 8192, 1024


def block() -> onnx.ModelProto:
    """Linear with GELU's cheap cousin, residual, norm: 16 MB tensors of half precision."""
    rng = np.random.default_rng(0)
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]> g (float16[N,{COLUMNS}] x) => (float16[N,{COLUMNS}] y) {{
          [product] m = MatMul(x, w) [bias] h = Add(m, b) [act] a = Sigmoid(h) [gate] g0 = Mul(h, a)
          [residual] s = Add(g0, x) [norm] y = LayerNormalization(s, scale)
        }}"""
    )
    for name, shape in (("w", (COLUMNS, COLUMNS)), ("b", (COLUMNS,)), ("scale", (COLUMNS,))):
        weight = (rng.standard_normal(shape) / 32).astype(np.float16)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    return model


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_every_kernel_has_its_node(cuda_graph: bool) -> None:
    """Also in a CUDA graph, which launches them all at once; times and bandwidth are those of this card."""
    found = profile(
        block(), onnxfuse.optimize(block()), shapes={"N": (ROWS,)}, providers=CUDA, cuda_graph=cuda_graph
    )  # fmt: skip
    for side in found.sides.values():
        assert side.run is not None
        assert side.kernels is not None
        assert side.note == ""
        assert (side.run.unknown, side.run.launches > 0) == (0, True)
        assert sum(k.us for k in side.kernels) == pytest.approx(side.run.busy, rel=0.1)
        assert {n for k in side.kernels for n in k.nodes} <= {n.name for n in side.nodes}
    assert found.after is not None
    assert found.after.run is not None
    assert found.before.run is not None
    assert found.after.run.launches < found.before.run.launches
    assert any(kind.startswith("layer_norm") for k in found.after.kernels or () for kind in k.kinds)


def test_ceilings_are_a_cards() -> None:
    """A GPU that runs this moves 100 GB/s and multiplies at a TFLOP/s at the least; half precision is not slower."""
    found = measured({"float16", "float32"}, CUDA)
    assert 1e11 < found.bytes_per_second < 2e13
    assert 1e12 < found.flops_per_second["float32"] <= 1.1 * found.flops_per_second["float16"]


def test_a_benchmark_counts_launches_and_reaches_no_more_than_the_roofline() -> None:
    """A CUDA graph launches the kernels of the session without one; tensors as large as these leave the cache."""
    found = bench(
        block(), onnxfuse.optimize(block()), shapes={"N": (8 * ROWS,)}, providers=CUDA, runs=10, rounds=3
    )  # fmt: skip
    (block_,) = found.blocks
    launches = {(r.model, r.setting): r.launches for r in block_.rows}
    assert launches["original", "default"] == launches["original", "CUDA graph"]
    assert 0 < (launches["fused", "CUDA graph"] or 0) < (launches["original", "CUDA graph"] or 0)
    assert all(0.05 < (block_.roofline(row) or 0) < 1.1 for row in block_.rows)
