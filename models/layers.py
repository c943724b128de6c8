"""The layers that several architectures share, spelled as torch's exporter spells them.

A layer keeps the variance of its input (weights have deviation sqrt(gain / fan in)), and every bias and shift is
non-zero and signed: a fusion that drops one changes the output.
"""

import math

import numpy as np

from models.network import Network

BIAS = 0.1
BATCH_NORM_EPSILON = 1e-5


def linear(net: Network, x: str, inputs: int, outputs: int, gain: float = 1.0) -> str:
    """y = x W + b over the last axis of a tensor of rank 3: MatMul and Add, the bias first."""
    weight = net.draw("weight", (outputs, inputs), std=math.sqrt(gain / inputs))
    return net.Add(net.weight("bias", (outputs,), std=BIAS), net.MatMul(x, net.add_weight("weight", weight.T)))


def dense(net: Network, x: str, inputs: int, outputs: int, gain: float = 1.0) -> str:
    """y = x W + b for a matrix: one Gemm, its weight [outputs, inputs] as torch keeps it."""
    weight = net.weight("weight", (outputs, inputs), std=math.sqrt(gain / inputs))
    return net.Gemm(x, weight, net.weight("bias", (outputs,), std=BIAS), transB=1)


def layer_norm(net: Network, x: str, width: int, epsilon: float) -> str:
    """y = (x - mean) / sqrt(variance + epsilon) * scale + bias over the last axis."""
    scale = net.weight("weight", (width,), std=0.1, mean=1.0)
    bias = net.weight("bias", (width,), std=BIAS)
    if net.form.opset >= 17:
        return net.LayerNormalization(x, scale, bias, axis=-1, epsilon=epsilon)
    centered = net.Sub(x, net.ReduceMean(x, axes=[-1]))
    variance = net.ReduceMean(net.Pow(centered, 2.0), axes=[-1])
    normal = net.Div(centered, net.Sqrt(net.Add(variance, epsilon)))
    return net.Add(net.Mul(normal, scale), bias)


def gelu(net: Network, x: str) -> str:
    """y = x / 2 (1 + erf(x / sqrt 2)): the op where the opset has it, else its five ops."""
    if net.form.opset >= 20:
        return net.Gelu(x)
    phi = net.Add(net.Erf(net.Div(x, math.sqrt(2.0))), 1.0)
    return net.Mul(net.Mul(x, phi), 0.5)


def feed_forward(net: Network, x: str, hidden: int, intermediate: int, first: str, second: str) -> str:
    """y = W2 gelu(W1 x + b1) + b2; `first` and `second` name the two linear layers."""
    return linear(net.at(second), gelu(net, linear(net.at(first), x, hidden, intermediate)), intermediate, hidden)


def conv(
    net: Network,
    x: str,
    inputs: int,
    outputs: int,
    kernel: int = 1,
    stride: int = 1,
    pad: int = 0,
    groups: int = 1,
    gain: float = 1.0,
) -> str:
    """y = conv(x, W) + b with a square kernel."""
    fan_in = inputs // groups * kernel**2
    weight = net.weight("weight", (outputs, inputs // groups, kernel, kernel), std=math.sqrt(gain / fan_in))
    bias = net.weight("bias", (outputs,), std=BIAS)
    return net.Conv(x, weight, bias, **_geometry(kernel, stride, pad, groups))


def _geometry(kernel: int, stride: int, pad: int, groups: int) -> dict[str, int | list[int]]:
    written: dict[str, int | list[int]] = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
    return written if groups == 1 else {**written, "group": groups}


def conv_norm(
    net: Network,
    conv: str,
    norm: str,
    x: str,
    inputs: int,
    outputs: int,
    *,
    kernel: int = 1,
    stride: int = 1,
    groups: int = 1,
    gain: float = 2.0,
    strength: float = 1.0,
    folded: bool = False,
) -> str:
    """y = norm(conv(x, W)), the size kept but for the stride; `conv` and `norm` name the two layers.

    The default gain is He's: the Relu before each Conv halves the power. `strength` is the mean of the norm's scale;
    `folded` leaves no norm in the graph.
    """
    shape = (outputs, inputs // groups, kernel, kernel)
    weight = net.at(conv).draw("weight", shape, std=(gain / (inputs // groups * kernel**2)) ** 0.5)
    scale = net.at(norm).draw("weight", (outputs,), std=0.1 * strength, mean=strength)
    shift = net.at(norm).draw("bias", (outputs,), std=BIAS)
    mean = net.at(norm).draw("running_mean", (outputs,), std=0.1)
    variance = net.at(norm).draw("running_var", (outputs,), std=0.1, mean=1.0)
    geometry = _geometry(kernel, stride, kernel // 2, groups)

    if folded:
        factor = scale / np.sqrt(variance.astype(np.float64) + BATCH_NORM_EPSILON)
        kernels = net.at(conv).add_weight("weight", weight * factor[:, np.newaxis, np.newaxis, np.newaxis])
        return net.at(conv).Conv(x, kernels, net.at(conv).add_weight("bias", shift - mean * factor), **geometry)
    y = net.at(conv).Conv(x, net.at(conv).add_weight("weight", weight), **geometry)
    parameters = {"weight": scale, "bias": shift, "running_mean": mean, "running_var": variance}
    names = [net.at(norm).add_weight(name, values) for name, values in parameters.items()]
    return net.at(norm).BatchNormalization(y, *names, epsilon=BATCH_NORM_EPSILON, momentum=0.9)
