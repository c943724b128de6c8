"""ResNet-50 (He et al., 2015, arXiv:1512.03385), stride in the 3x3 convolution as torchvision has it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models import layers
from models.network import Network

EXPANSION = 4


@dataclass(frozen=True)
class ResNet:
    """ResNet-50: 7x7 stem, 16 bottlenecks, every Conv followed by its BatchNormalization."""

    stages: tuple[int, ...] = (3, 4, 6, 3)
    """Bottlenecks of each stage; a stage has half the resolution and twice the channels of the one before."""
    width: int = 64
    """Channels of the stem, and inside the bottlenecks of the first stage."""
    image: int = 224
    """Height and width of the image in pixels."""
    classes: int = 1000
    """Width of the output."""
    folded: bool = False
    """Fold every BatchNormalization into its Conv, as exporters do with constant folding on."""

    def write(self, net: Network) -> None:
        """Write image [batch, 3, image, image] -> logits [batch, classes]."""
        image = net.input("image", net.dtype, (net.form.batch, 3, self.image, self.image))
        x = net.Relu(self._conv_norm(net, "conv1", "bn1", image, 3, self.width, kernel=7, stride=2))
        x = net.MaxPool(x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
        channels = self.width
        for stage, blocks in enumerate(self.stages):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                inner = self.width * 2**stage
                x = self._bottleneck(net.at(f"layer{stage + 1}.{block}"), x, channels, inner, stride)
                channels = inner * EXPANSION
        x = net.Flatten(net.GlobalAveragePool(x), axis=1)
        net.output("logits", layers.dense(net.at("fc"), x, channels, self.classes), (net.form.batch, self.classes))

    def example(
        self, rng: np.random.Generator, batch: int, sequence: int, dtype: str
    ) -> dict[str, NDArray[np.generic]]:
        """Return images as they are after normalization: signed, mean 0, deviation 1."""
        return {"image": rng.standard_normal((batch, 3, self.image, self.image)).astype(dtype)}

    def _bottleneck(self, net: Network, x: str, channels: int, inner: int, stride: int) -> str:
        """relu(x + 1x1(relu(3x3(relu(1x1(x)))))), x projected where its shape differs from the branch's."""
        outer = inner * EXPANSION
        y = net.Relu(self._conv_norm(net, "conv1", "bn1", x, channels, inner))
        y = net.Relu(self._conv_norm(net, "conv2", "bn2", y, inner, inner, kernel=3, stride=stride))
        # A quiet last norm, as in trained networks: 16 branches of full strength would sum to beyond float16.
        y = self._conv_norm(net, "conv3", "bn3", y, inner, outer, strength=0.3)
        if channels != outer:
            x = self._conv_norm(net, "downsample.0", "downsample.1", x, channels, outer, stride=stride)
        return net.Relu(net.Add(y, x))

    def _conv_norm(
        self,
        net: Network,
        conv: str,
        norm: str,
        x: str,
        inputs: int,
        outputs: int,
        kernel: int = 1,
        stride: int = 1,
        strength: float = 1.0,
    ) -> str:
        return layers.conv_norm(
            net, conv, norm, x, inputs, outputs, kernel=kernel, stride=stride, strength=strength, folded=self.folded
        )
