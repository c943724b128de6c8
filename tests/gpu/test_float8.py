"""float8 e4m3 on the GPU: rounded by its own instruction from sm_89 on, in kernels of elements, rows and products."""

import ml_dtypes
import numpy as np
import pytest

import onnxfuse
from onnxfuse.verification import verify
from tests.gpu.test_kernels import _gpu
from tests.support.small import parse
from tests.unit.passes.quantization.test_modelopt import COLUMNS, TERMS, layer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(_gpu() is not None, reason=_gpu() or "")]

ELEMENTS = """g (float[N,64] x) => (float8e4m3fn[N,64] q, float[N,64] y) <float s = {0.5}, float8e4m3fn z = {0}> {
  a = Neg (x)
  q = QuantizeLinear (a, s, z)
  d = DequantizeLinear (q, s, z)
  y = Relu (d)
}"""
NORM = """g (float16[N,64] x, float16[64] w) => (float16[N,64] y) <float16 s = {9503}, float8e4m3fn z = {0}> {
  a = LayerNormalization <axis = -1> (x, w)
  q = QuantizeLinear (a, s, z)
  d = DequantizeLinear (q, s, z)
  y = Neg (d)
}"""


def test_values_are_rounded_as_the_cpu_does() -> None:
    """All sizes, beside and in the middle of two numbers, what saturates, infinities, and what is no number."""
    every = np.sort(np.arange(0x7F, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)) / 2
    middle = (every[1:] + every[:-1]) / 2
    x = np.concatenate([every, middle, np.nextafter(middle, np.float32(np.inf)), [300, 1e30, np.inf, np.nan, 1e-30, 0]])
    x = np.resize(np.concatenate([x, -x]), (16, 64)).astype(np.float32)
    model = parse(ELEMENTS, 21)
    made = onnxfuse.optimize(model)
    session = onnxfuse.session(made, ["CUDAExecutionProvider", "CPUExecutionProvider"], wait_for_kernels=True)
    (y,) = session.run(["y"], {"x": x})
    steps = np.clip(-x / np.float32(0.5), -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    wanted = np.maximum(steps * np.float32(0.5), 0)
    np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize("text", [ELEMENTS, NORM], ids=["elements", "a norm"])
def test_kernels_give_what_the_model_gives(text: str) -> None:
    model = parse(text, 21)
    made = onnxfuse.optimize(model)
    report = verify(model, made, providers=["CPUExecutionProvider"], fused_providers=["CUDAExecutionProvider"])
    assert report.ok, report


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_layers_of_modelopt(dtype: type[np.floating], stored: bool) -> None:
    model = layer(dtype, float8=True, stored=stored)
    made = onnxfuse.optimize(model)
    x = (np.random.default_rng(1).standard_normal((33, TERMS)) * 2).astype(dtype)
    session = onnxfuse.session(made, ["CUDAExecutionProvider", "CPUExecutionProvider"], wait_for_kernels=True)
    (y,) = session.run(None, {"x": x})
    plain = onnxfuse.session(model, ["CPUExecutionProvider"])
    (wanted,) = plain.run(None, {"x": x})
    assert y.shape == (33, COLUMNS)
    close = np.abs(y.astype(np.float64) - wanted.astype(np.float64)) <= 4e-3 * np.abs(wanted).max()
    assert close.all()
