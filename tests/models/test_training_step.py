"""The training step: right gradients, and what fuses of its backward pass."""

import numpy as np
import onnx
import pytest

import models
import onnxfuse
from onnxfuse.passes import pipeline
from tests.models import small
from tests.support.small import ops


def loss(model: onnx.ModelProto, feeds: dict[str, np.ndarray], **parameters: np.ndarray) -> float:
    """Return sum((y - target)^2) / 2 by numpy in float64."""
    w = {t.name: onnx.numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer} | parameters
    x, target = (feeds[n].astype(np.float64) for n in ("x", "target"))
    y = np.maximum(x @ w["0.weight"] + w["0.bias"], 0) @ w["2.weight"] + w["2.bias"]
    return float(((y - target) ** 2).sum() / 2)


@pytest.mark.parametrize("parameter", ["0.weight", "0.bias", "2.weight", "2.bias"])
def test_gradients_are_the_slopes_of_the_loss(parameter: str) -> None:
    """By central differences in float64, along a random direction."""
    model = models.build("training_step", batch=200)
    feeds = models.example_inputs("training_step", batch=200)
    names = [o.name for o in model.graph.output]
    gradient = small.run(model, feeds)[names.index(f"{parameter}.grad")]
    (tensor,) = (t for t in model.graph.initializer if t.name == parameter)
    value = onnx.numpy_helper.to_array(tensor).astype(np.float64)
    assert gradient.shape == value.shape
    direction, step = np.random.default_rng(0).standard_normal(value.shape), 1e-6
    above, below = (loss(model, feeds, **{parameter: value + s * direction}) for s in (step, -step))
    assert (gradient * direction).sum() == pytest.approx((above - below) / (2 * step), rel=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_backward_pass_fuses(dtype: str) -> None:
    """Mask, Where and the sum over the batch with its Reshape are one kernel; so is the gradient of the last bias."""
    model = models.build("training_step", dtype=dtype)
    made = models.build("training_step", dtype=dtype)
    pipeline.run(made)
    left = ops(made)
    assert [f for f in left if "Where" in f and "ReduceSum Reshape" in f]
    assert [f for f in left if f.startswith("{") and "Sub ReduceSum Reshape" in f]
    assert len(left) < len([n for n in model.graph.node if n.op_type != "Constant"]) - 6
    feeds = models.example_inputs("training_step", batch=77, dtype=dtype)
    plain = onnxfuse.unfuse(made)
    for one, other in zip(small.run(model, feeds), small.run(plain, feeds), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5 if dtype == "float32" else 1e-2, atol=1e-4)
