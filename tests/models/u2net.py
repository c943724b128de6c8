"""U2-Net (Qin et al., 2020): U-shaped blocks within a U, dilated convolutions, maps resized to one another's size."""

from dataclasses import dataclass
from typing import Any

import onnx

from models import layers
from models.network import Form, Network, start
from models.weights import seeded

BLOCKS = ((7, 32, 64), (6, 32, 128), (5, 64, 256), (4, 128, 512), (0, 256, 512), (0, 256, 512))
"""Levels, inner and outer channels of each block of the encoder; without levels it dilates instead of pooling."""
DECODED = ((0, 256, 512), (4, 128, 256), (5, 64, 128), (6, 32, 64), (7, 16, 64))
DILATIONS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Map:
    """A value of the graph and its channels."""

    name: str
    channels: int


def build(dtype: str = "float32", share: int = 1, opset: int = 17) -> onnx.ModelProto:
    """Return the model with open batch, height and width; `share`: every width is a so-manieth of the paper's."""
    net = start("u2net", Form(dtype, opset=opset), seeded(0))
    shape = (net.form.batch, 3, "height", "width")
    x, maps = Map(net.input("image", net.dtype, shape), 3), list[Map]()
    for number, block in enumerate(BLOCKS):
        x = _block(net.at(f"encoder{number}"), x if not maps else _pooled(net, x), _narrow(block, share))
        maps.append(x)
    sides = [x]
    for number, block in enumerate(DECODED):
        left = maps[-2 - number]
        x = _block(net.at(f"decoder{number}"), _joined(net, _resized(net, x, left), left), _narrow(block, share))
        sides.append(x)
    masks = [_conv(net.at(f"side{n}"), side, 1, relu=False) for n, side in enumerate(reversed(sides))]
    masks = [masks[0], *(_resized(net, m, masks[0]) for m in masks[1:])]
    fused = _conv(net.at("fuse"), Map(net.Concat(*(m.name for m in masks), axis=1), len(masks)), 1, relu=False, side=1)
    for number, mask in enumerate((fused, *masks)):
        net.output(f"mask{number}", net.Sigmoid(mask.name), (net.form.batch, 1, "height", "width"))
    onnx.checker.check_model(net.model)
    return net.model


def _narrow(block: tuple[int, int, int], share: int) -> tuple[int, int, int]:
    return block[0], block[1] // share, block[2] // share


def _block(net: Network, x: Map, block: tuple[int, int, int]) -> Map:
    """A residual U-block: down and up again by pooling, or by dilations at one size."""
    levels, inner, outer = block
    begin = _conv(net.at("in"), x, outer)
    dilations = DILATIONS if levels == 0 else (1,) * (levels - 1) + (2,)
    down = [_conv(net.at("down0"), begin, inner)]
    for number, dilation in enumerate(dilations[1:], 1):
        pooled = levels > 0 and number < len(dilations) - 1
        down.append(_conv(net.at(f"down{number}"), _pooled(net, down[-1]) if pooled else down[-1], inner, dilation))
    y = down.pop()
    while down:
        left, number = down.pop(), len(down)
        joined = _joined(net, _resized(net, y, left) if levels else y, left)
        y = _conv(net.at(f"up{number}"), joined, inner if down else outer, 1 if levels else DILATIONS[number])
    return Map(net.Add(y.name, begin.name), outer)


def _conv(net: Network, x: Map, channels: int, dilation: int = 1, *, relu: bool = True, side: int = 3) -> Map:
    """Conv, its batch normalization folded into it as exporters do, and Relu."""
    weight = net.weight("weight", (channels, x.channels, side, side), std=(1.5 / (side * side * x.channels)) ** 0.5)
    bias = net.weight("bias", (channels,), std=layers.BIAS)
    attributes: dict[str, Any] = {"kernel_shape": [side] * 2, "pads": [dilation * (side // 2)] * 4}
    y = net.Conv(x.name, weight, bias, dilations=[dilation] * 2, **attributes)
    return Map(net.Relu(y) if relu else y, channels)


def _pooled(net: Network, x: Map) -> Map:
    return Map(net.MaxPool(x.name, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1), x.channels)


def _resized(net: Network, x: Map, like: Map) -> Map:
    """To the height and width of another map, bilinear."""
    own = net.Slice(net.Shape(x.name), [0], [2], [0])
    sizes = net.Concat(own, net.Slice(net.Shape(like.name), [2], [4], [0]), axis=0)
    return Map(
        net.Resize(x.name, "", "", sizes, mode="linear", coordinate_transformation_mode="half_pixel"), x.channels
    )


def _joined(net: Network, a: Map, b: Map) -> Map:
    return Map(net.Concat(a.name, b.name, axis=1), a.channels + b.channels)
