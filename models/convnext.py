"""ConvNeXt-Tiny (Liu et al., 2022, arXiv:2201.03545), as torchvision has it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models import layers
from models.network import Network

EPSILON = 1e-6
EXPANSION = 4
PATCH = 4
"""Height and width of the patches that the stem sees."""

TO_LAST, TO_FIRST = [0, 2, 3, 1], [0, 3, 1, 2]


@dataclass(frozen=True)
class ConvNext:
    """ConvNeXt-Tiny: 7x7 depthwise convolutions, LayerNormalization over the channels, layer scale."""

    stages: tuple[int, ...] = (3, 3, 9, 3)
    """Blocks of each stage; a stage has half the resolution and twice the channels of the one before."""
    width: int = 96
    """Channels of the first stage."""
    image: int = 224
    """Height and width of the image in pixels."""
    classes: int = 1000
    """Width of the output."""

    def write(self, net: Network) -> None:
        """Write image [batch, 3, image, image] -> logits [batch, classes]."""
        image = net.input("image", net.dtype, (net.form.batch, 3, self.image, self.image))
        x = layers.conv(net.at("features.0.0"), image, 3, self.width, kernel=PATCH, stride=PATCH)
        x = _channel_norm(net.at("features.0.1"), x, self.width)
        channels = self.width
        for stage, blocks in enumerate(self.stages):
            if stage:
                at = net.at(f"features.{2 * stage}")
                x = _channel_norm(at.at("0"), x, channels)
                x = layers.conv(at.at("1"), x, channels, 2 * channels, kernel=2, stride=2)
                channels *= 2
            for block in range(blocks):
                x = _block(net.at(f"features.{2 * stage + 1}.{block}"), x, channels)
        x = _channel_norm(net.at("classifier.0"), net.GlobalAveragePool(x), channels)
        logits = layers.dense(net.at("classifier.2"), net.Flatten(x, axis=1), channels, self.classes)
        net.output("logits", logits, (net.form.batch, self.classes))

    def example(
        self, rng: np.random.Generator, batch: int, sequence: int, dtype: str
    ) -> dict[str, NDArray[np.generic]]:
        """Return images as they are after normalization: signed, mean 0, deviation 1."""
        return {"image": rng.standard_normal((batch, 3, self.image, self.image)).astype(dtype)}


def _block(net: Network, x: str, channels: int) -> str:
    """x + scale * W2 gelu(W1 norm(depthwise(x)) + b1) + b2, the linear layers over the channels."""
    inner = net.at("block")
    y = layers.conv(inner.at("0"), x, channels, channels, kernel=7, pad=3, groups=channels)
    y = layers.layer_norm(inner.at("2"), inner.Transpose(y, perm=TO_LAST), channels, EPSILON)
    y = inner.Transpose(layers.feed_forward(inner, y, channels, EXPANSION * channels, "3", "5"), perm=TO_FIRST)
    return net.Add(net.Mul(net.weight("layer_scale", (channels, 1, 1), std=0.1, mean=0.3), y), x)


def _channel_norm(net: Network, x: str, channels: int) -> str:
    """LayerNormalization over the channels of every pixel."""
    normal = layers.layer_norm(net, net.Transpose(x, perm=TO_LAST), channels, EPSILON)
    return net.Transpose(normal, perm=TO_FIRST)
