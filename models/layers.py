"""The layers that several architectures share, spelled as torch's exporter spells them.

A layer keeps the variance of its input (weights have deviation sqrt(gain / fan in)), and every bias and shift is
non-zero and signed: a fusion that drops one changes the output.
"""

import math

from models.network import Network

BIAS = 0.1


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
