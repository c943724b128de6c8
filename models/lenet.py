"""LeNet-5 (LeCun et al., 1998), in today's spelling: Relu and max pooling."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models import layers
from models.network import Network


@dataclass(frozen=True)
class LeNet5:
    """LeNet-5 on 28x28 digits: two Conv + Relu + MaxPool, three Gemms."""

    classes: int = 10
    """Width of the output."""

    def write(self, net: Network) -> None:
        """Write image [batch, 1, 28, 28] -> logits [batch, classes]."""
        image = net.input("image", net.dtype, (net.form.batch, 1, 28, 28))
        x = _stage(net.at("conv1"), image, 1, 6, padding=2)
        x = _stage(net.at("conv2"), x, 6, 16, padding=0)
        x = net.Flatten(x, axis=1)
        x = net.Relu(layers.dense(net.at("fc1"), x, 16 * 5 * 5, 120, gain=2))
        x = net.Relu(layers.dense(net.at("fc2"), x, 120, 84, gain=2))
        net.output("logits", layers.dense(net.at("fc3"), x, 84, self.classes, gain=2), (net.form.batch, self.classes))

    def example(
        self, rng: np.random.Generator, batch: int, sequence: int, dtype: str
    ) -> dict[str, NDArray[np.generic]]:
        """Return images as they are after normalization: signed, mean 0, deviation 1."""
        return {"image": rng.standard_normal((batch, 1, 28, 28)).astype(dtype)}


def _stage(net: Network, x: str, inputs: int, outputs: int, padding: int) -> str:
    """Conv 5x5, Relu, and the maximum of each 2x2 square."""
    weight = net.weight("weight", (outputs, inputs, 5, 5), std=(2 / (25 * inputs)) ** 0.5)
    bias = net.weight("bias", (outputs,), std=layers.BIAS)
    y = net.Relu(net.Conv(x, weight, bias, kernel_shape=[5, 5], pads=[padding] * 4))
    return net.MaxPool(y, kernel_shape=[2, 2], strides=[2, 2])
