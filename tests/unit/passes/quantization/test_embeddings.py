"""An embedding of 8 bits: its rows are gathered as they are stored; nothing dequantizes the table."""

import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnxruntime import quantization

from tests.support.small import evaluate, ops, optimize, parse

FORMS = {
    "as quantize_dynamic writes it": "r = Gather (table, ids) e = DequantizeLinear (r, s, z)",
    "as static tools write it": "f = DequantizeLinear (table, s, z) e = Gather (f, ids)",
    "without a zero point": "r = Gather (table, ids) c = Cast <to = 1> (r) e = Mul (c, s)",
}


def inputs() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"ids": rng.integers(0, 50, (3, 5))}


def assert_stored_in_8_bits(made: onnx.ModelProto) -> None:
    (table,) = (t for t in made.graph.initializer if list(t.dims) == [50, 32])
    assert table.data_type in (TensorProto.INT8, TensorProto.UINT8)


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_gathered_and_dequantized_by_the_norm_that_reads_them(form: str) -> None:
    """One kernel, of 8-bit rows."""
    rng = np.random.default_rng(0)
    model = parse(
        f"""g (int64[N,S] ids) => (float[N,S,32] y) <float s = {{0.5}}, int8 z = {{3}}> {{
  {FORMS[form]}
  a = Add (e, positions)
  y = LayerNormalization (a, scale)
}}""",
        opset=21,
    )
    weights: dict[str, np.ndarray] = {
        "table": rng.integers(-128, 128, (50, 32)).astype(np.int8),
        "positions": rng.standard_normal((1, 1, 32)).astype(np.float32),
        "scale": rng.standard_normal(32).astype(np.float32),
    }
    model.graph.initializer.extend(numpy_helper.from_array(w, n) for n, w in weights.items())
    made, _ = optimize(model)
    (op,) = ops(made)
    assert op.startswith("{Gather")
    assert_stored_in_8_bits(made)
    fed = inputs()
    np.testing.assert_allclose(evaluate(made, fed)[0], evaluate(model, fed)[0], rtol=0, atol=2e-6)


@pytest.mark.parametrize("weights", ["QInt8", "QUInt8"])
def test_a_model_of_the_tool(weights: str) -> None:
    """Rows of 8 bits are gathered, and quantized anew by the range of their sums for the product behind them."""
    rng = np.random.default_rng(0)
    model = parse(
        "g (int64[N,S] ids) => (float[N,S,32] y) { e = Gather (table, ids) a = Add (e, p) y = MatMul (a, w) }", opset=21
    )
    for name, shape in {"table": (50, 32), "p": (1, 1, 32), "w": (32, 32)}.items():
        weight = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "quantized.onnx")
        quantization.quantize_dynamic(model, path, weight_type=quantization.QuantType[weights])
        quantized = onnx.load(path)
    made, _ = optimize(quantized)
    assert [op.split()[0] for op in ops(made)[:3]] == ["Gather", "{DequantizeLinear", "{ReduceMax"]
    assert_stored_in_8_bits(made)
    fed = inputs()
    before, after = evaluate(quantized, fed)[0], evaluate(made, fed)[0]
    np.testing.assert_allclose(after, before, rtol=0, atol=2e-6 * np.abs(before).max())
