"""EfficientNet-B0 (Tan and Le, 2019, arXiv:1905.11946), as torchvision has it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models import layers
from models.network import Network

EXPANSIONS = (1, 6, 6, 6, 6, 6, 6)
KERNELS = (3, 3, 5, 3, 5, 5, 3)
STRIDES = (1, 2, 2, 2, 1, 2, 1)
HEAD = 40
SQUEEZE = 4
"""The gate of a block has its input's channels divided by this inside."""

SILU, GATED = 2.2, 3.0
"""Gains of convolutions before a SiLU, and after a gate. A SiLU leaves 1 / 2.8 of the power of small inputs and half of
large ones, so that no gain keeps the power in every layer; with these the logits have a deviation near 1."""


@dataclass(frozen=True)
class EfficientNet:
    """EfficientNet-B0: inverted bottlenecks with depthwise convolutions, SiLU and squeeze-and-excite gates."""

    width: int = 32
    """Channels of the stem; before the classifier there are 40 times as many."""
    stages: tuple[int, ...] = (1, 2, 2, 3, 3, 4, 1)
    """Blocks of each stage."""
    channels: tuple[int, ...] = (16, 24, 40, 80, 112, 192, 320)
    """Channels that each stage ends with."""
    image: int = 224
    """Height and width of the image in pixels."""
    classes: int = 1000
    """Width of the output."""
    folded: bool = False
    """Fold every BatchNormalization into its Conv, as exporters do with constant folding on."""

    def write(self, net: Network) -> None:
        """Write image [batch, 3, image, image] -> logits [batch, classes]."""
        image = net.input("image", net.dtype, (net.form.batch, 3, self.image, self.image))
        x = _silu(net, self._conv_norm(net.at("features.0"), image, 3, self.width, kernel=3, stride=2))
        inputs = self.width
        shapes = zip(self.stages, self.channels, EXPANSIONS, KERNELS, STRIDES, strict=False)
        for stage, (blocks, outputs, expansion, kernel, stride) in enumerate(shapes, start=1):
            for block in range(blocks):
                at = net.at(f"features.{stage}.{block}.block")
                x = self._block(at, x, inputs, outputs, expansion, kernel, stride if block == 0 else 1)
                inputs = outputs
        last, outputs = net.at(f"features.{len(self.stages) + 1}"), HEAD * self.width
        x = _silu(last, self._conv_norm(last, x, inputs, outputs))
        x = net.Flatten(net.GlobalAveragePool(x), axis=1)
        logits = layers.dense(net.at("classifier.1"), x, outputs, self.classes)
        net.output("logits", logits, (net.form.batch, self.classes))

    def example(
        self, rng: np.random.Generator, batch: int, sequence: int, dtype: str
    ) -> dict[str, NDArray[np.generic]]:
        """Return images as they are after normalization: signed, mean 0, deviation 1."""
        return {"image": rng.standard_normal((batch, 3, self.image, self.image)).astype(dtype)}

    def _block(self, net: Network, x: str, inputs: int, outputs: int, expansion: int, kernel: int, stride: int) -> str:
        """x + 1x1(gate(silu(depthwise(silu(1x1(x)))))), without the sum where the shape changes."""
        inner, y, part = inputs * expansion, x, 0
        if expansion > 1:
            y, part = _silu(net, self._conv_norm(net.at("0"), y, inputs, inner)), 1
        depthwise = self._conv_norm(net.at(str(part)), y, inner, inner, kernel=kernel, stride=stride, groups=inner)
        y = _gate(net.at(str(part + 1)), _silu(net, depthwise), inner, max(1, inputs // SQUEEZE))
        y = self._conv_norm(net.at(str(part + 2)), y, inner, outputs, gain=GATED)
        return net.Add(y, x) if stride == 1 and inputs == outputs else y

    def _conv_norm(
        self,
        net: Network,
        x: str,
        inputs: int,
        outputs: int,
        kernel: int = 1,
        stride: int = 1,
        groups: int = 1,
        gain: float = SILU,
    ) -> str:
        return layers.conv_norm(
            net,
            "0",
            "1",
            x,
            inputs,
            outputs,
            kernel=kernel,
            stride=stride,
            groups=groups,
            gain=gain,
            folded=self.folded,
        )


def _silu(net: Network, x: str) -> str:
    return net.Mul(x, net.Sigmoid(x))


def _gate(net: Network, x: str, channels: int, inner: int) -> str:
    """x * sigmoid(fc2(silu(fc1(mean of x over the image))))."""
    y = _silu(net, layers.conv(net.at("fc1"), net.GlobalAveragePool(x), channels, inner, gain=SILU))
    return net.Mul(net.Sigmoid(layers.conv(net.at("fc2"), y, inner, channels)), x)
