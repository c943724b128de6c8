"""Vision Transformer (Dosovitskiy et al., 2020, arXiv:2010.11929), as torchvision's `vit_b_16` exports."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models import layers
from models.network import Network
from onnxfuse.support.errors import UsageError

EPSILON = 1e-6


@dataclass(frozen=True)
class Vit:
    """ViT-B/16: 12 pre-norm layers of 768 on 16x16 patches, packed QKV projection, class token, erf GELU."""

    layers: int = 12
    """Encoder layers."""
    hidden: int = 768
    """Width of the residual stream."""
    heads: int = 12
    """Attention heads; a divisor of `hidden`."""
    intermediate: int = 3072
    """Width inside the feed-forward network."""
    image: int = 224
    """Height and width of the image in pixels; a multiple of `patch`."""
    patch: int = 16
    """Height and width of one patch in pixels."""
    classes: int = 1000
    """Width of the output."""

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise UsageError(f"hidden is {self.hidden}, expected a multiple of heads, which is {self.heads}.")
        if self.image % self.patch:
            raise UsageError(f"image is {self.image}, expected a multiple of patch, which is {self.patch}.")

    @property
    def tokens(self) -> int:
        """The patches and the class token."""
        return (self.image // self.patch) ** 2 + 1

    def write(self, net: Network) -> None:
        """Write image [batch, 3, image, image] -> logits [batch, classes]."""
        image = net.input("image", net.dtype, (net.form.batch, 3, self.image, self.image))
        x = net.Concat(_class_token(net, image, self), _patches(net.at("conv_proj"), image, self), axis=1)
        x = net.Add(x, net.at("encoder").weight("pos_embedding", (1, self.tokens, self.hidden), std=0.5))
        for i in range(self.layers):
            x = _layer(net.at(f"encoder.layers.encoder_layer_{i}"), x, self)
        x = layers.layer_norm(net.at("encoder.ln"), x, self.hidden, EPSILON)
        logits = layers.dense(net.at("heads.head"), net.Gather(x, 0, axis=1), self.hidden, self.classes)
        net.output("logits", logits, (net.form.batch, self.classes))

    def example(
        self, rng: np.random.Generator, batch: int, sequence: int, dtype: str
    ) -> dict[str, NDArray[np.generic]]:
        """Return images as they are after normalization: signed, mean 0, deviation 1."""
        return {"image": rng.standard_normal((batch, 3, self.image, self.image)).astype(dtype)}


def _patches(net: Network, image: str, size: Vit) -> str:
    """Return one vector per patch, [batch, patches, hidden]: a Conv whose stride is its kernel."""
    patch = size.patch
    weight = net.weight("weight", (size.hidden, 3, patch, patch), std=(3 * patch * patch) ** -0.5)
    bias = net.weight("bias", (size.hidden,), std=layers.BIAS)
    grid = net.Conv(image, weight, bias, kernel_shape=[patch, patch], strides=[patch, patch])
    return net.Transpose(net.Reshape(grid, [0, size.hidden, size.tokens - 1]), perm=[0, 2, 1])


def _class_token(net: Network, image: str, size: Vit) -> str:
    """Return the class token once per image, [batch, 1, hidden]."""
    token = net.weight("class_token", (1, 1, size.hidden), std=0.5)
    if isinstance(net.form.batch, int):
        return net.Expand(token, [net.form.batch, 1, size.hidden])
    batch = net.Unsqueeze(net.Gather(net.Shape(image), 0, axis=0), [0])
    return net.Expand(token, net.Concat(batch, [1, size.hidden], axis=0))


def _layer(net: Network, x: str, size: Vit) -> str:
    normal = layers.layer_norm(net.at("ln_1"), x, size.hidden, EPSILON)
    x = net.Add(_attention(net.at("self_attention"), normal, size), x)
    normal = layers.layer_norm(net.at("ln_2"), x, size.hidden, EPSILON)
    return net.Add(x, layers.feed_forward(net, normal, size.hidden, size.intermediate, "mlp.0", "mlp.3"))


def _attention(net: Network, x: str, size: Vit) -> str:
    """softmax(Q K^T / sqrt(d)) V, each head on its own, the way torch.nn.MultiheadAttention spells it.

    Tokens come first inside ([tokens, batch, hidden]), Q and K are each scaled by the fourth root of 1/d.
    """
    width = size.hidden // size.heads
    split = net.Unsqueeze(net.Reshape(_in_projection(net, x, size), [0, 0, 3, size.hidden]), [0])
    packed = net.Squeeze(net.Transpose(split, perm=[3, 1, 2, 0, 4]), [3])

    def heads(part: int) -> str:
        merged = net.Reshape(net.Gather(packed, part, axis=0), [size.tokens, -1, width])
        return net.Reshape(net.Transpose(merged, perm=[1, 0, 2]), [-1, size.heads, size.tokens, width])

    query, key, value = heads(0), heads(1), heads(2)
    scale = width**-0.25
    scores = net.MatMul(net.Mul(query, scale), net.Mul(net.Transpose(key, perm=[0, 1, 3, 2]), scale))
    mixed = net.MatMul(net.Softmax(scores, axis=-1), value)
    rows = net.Reshape(net.Transpose(mixed, perm=[2, 0, 1, 3]), [-1, size.hidden])
    out = layers.dense(net.at("out_proj"), rows, size.hidden, size.hidden)
    return net.Transpose(net.Reshape(out, [size.tokens, -1, size.hidden]), perm=[1, 0, 2])


def _in_projection(net: Network, x: str, size: Vit) -> str:
    """Return Q, K and V side by side, [tokens, batch, 3 * hidden]."""
    weight = net.draw("in_proj_weight", (3 * size.hidden, size.hidden), std=size.hidden**-0.5)
    product = net.MatMul(net.Transpose(x, perm=[1, 0, 2]), net.add_weight("in_proj_weight", weight.T))
    return net.Add(net.weight("in_proj_bias", (3 * size.hidden,), std=layers.BIAS), product)
