"""One training step as a graph: forward, the gradient of the squared error, and the gradients of all parameters."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models import layers
from models.network import Network


@dataclass(frozen=True)
class TrainingStep:
    """MLP 1-64-1 with Relu, forward and backward, in the ops that a compiler of training graphs writes."""

    hidden: int = 64
    """Width of the hidden layer."""

    def write(self, net: Network) -> None:
        """Write x, target [batch, 1] -> y [batch, 1] and the gradients of sum((y - target)^2) / 2."""
        batch, hidden = net.form.batch, self.hidden
        x = net.input("x", net.dtype, (batch, 1))
        target = net.input("target", net.dtype, (batch, 1))
        w1 = net.weight("0.weight", (1, hidden), std=1.0)
        b1 = net.weight("0.bias", (hidden,), std=layers.BIAS)
        w2 = net.weight("2.weight", (hidden, 1), std=(2 / hidden) ** 0.5)
        b2 = net.weight("2.bias", (1,), std=layers.BIAS)

        forward = net.at("forward")
        a = forward.Relu(forward.Add(forward.MatMul(x, w1), b1))
        y = forward.Add(forward.MatMul(a, w2), b2)

        backward = net.at("backward")
        dy = backward.Sub(y, target)
        dw2 = backward.MatMul(backward.Transpose(a, perm=[1, 0]), dy)
        db2 = backward.Reshape(backward.ReduceSum(dy, [0], keepdims=1), [1])
        da = backward.MatMul(dy, backward.Transpose(w2, perm=[1, 0]))
        # The derivative of Relu by its own result, as torch.compile writes it.
        dh = backward.Where(_at_most_zero(backward, a), 0.0, da)
        dw1 = backward.MatMul(backward.Transpose(x, perm=[1, 0]), dh)
        db1 = backward.Reshape(backward.ReduceSum(dh, [0], keepdims=1), [hidden])

        net.output("y", y, (batch, 1))
        for name, value, shape in (
            ("0.weight.grad", dw1, (1, hidden)), ("0.bias.grad", db1, (hidden,)),
            ("2.weight.grad", dw2, (hidden, 1)), ("2.bias.grad", db2, (1,)),
        ):  # fmt: skip
            net.output(name, value, shape)

    def example(
        self, rng: np.random.Generator, batch: int, sequence: int, dtype: str
    ) -> dict[str, NDArray[np.generic]]:
        """Return points on both sides of zero, and the sine of them to learn."""
        x = rng.uniform(-3, 3, size=(batch, 1))
        return {"x": x.astype(dtype), "target": np.sin(x).astype(dtype)}


def _at_most_zero(net: Network, x: str) -> str:
    """LessOrEqual takes float16 from operator set 16 on."""
    return net.LessOrEqual(x, 0.0) if net.form.opset >= 16 else net.Not(net.Greater(x, 0.0))
