"""A product that ONNX Runtime sums as integers in the original may be summed in floating point, as the file has it."""

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, numpy_helper

from onnxfuse.verification.compare import compare
from onnxfuse.verification.run import sessions
from onnxfuse.verification.variants.as_written import as_written
from tests.support.small import parse


def product(*, quantized: bool = True) -> ModelProto:
    """Return a product of dequantized values, that ONNX Runtime computes as MatMulIntegerToFloat; or a plain one."""
    q, nodes = ("uint8", "a = DequantizeLinear (q, s, z)") if quantized else ("float", "a = Neg (q)")
    model = parse(
        f"""g ({q}[8,1024] q) => (float[8,6] y) <float s = {{0.0197}}, uint8 z = {{131}}> {{
  {nodes}
  {"k = DequantizeLinear <axis = 1> (w, sw)" if quantized else "k = Neg (f)"}
  y = MatMul (a, k)
}}"""
    )
    rng = np.random.default_rng(0)
    w = rng.integers(-127, 128, (1024, 6), np.int8)
    for name, array in {"w": w, "f": w.astype(np.float32), "sw": rng.uniform(0.01, 0.03, 6).astype(np.float32)}.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def test_what_the_nodes_say_is_within_the_budget() -> None:
    model = product()
    plain = ort.SessionOptions()
    plain.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    feeds = {"q": np.random.default_rng(1).integers(0, 256, (8, 1024), np.uint8)}
    bytes_ = model.SerializeToString()
    exact, rounded = (ort.InferenceSession(bytes_, o).run(None, feeds)[0] for o in (None, plain))
    assert not np.array_equal(exact, rounded)
    written = as_written(model, [sessions.CPU], {})
    assert written is not None
    assert np.array_equal(written(feeds)["y"], rounded)


def test_models_without_quantization_have_none() -> None:
    assert as_written(product(quantized=False), [sessions.CPU], {}) is None


def test_a_floating_point_product_passes() -> None:
    """The same numbers, of which ONNX Runtime does not make integers."""
    model, fused = product(), product()
    w, sw = (numpy_helper.to_array(t) for t in fused.graph.initializer if t.name in ("w", "sw"))
    del fused.graph.node[1]
    fused.graph.initializer.append(numpy_helper.from_array(w * sw, "k"))
    report = compare.compare(model, fused, providers=[sessions.CPU])
    assert report.ok, report
    assert max(row.measure.error for row in report.rows) > 0
