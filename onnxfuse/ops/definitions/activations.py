"""Activations with the bias before them, and gates."""

import math
from collections.abc import Sequence

from onnx import TensorProto

from onnxfuse.ops.definitions.writer import Defined

SINCE_GELU = 20
"""Operator set from which on ONNX has Gelu."""


def gelu(node: Defined) -> Sequence[str] | None:
    """Gelu of x, or of x and a bias."""
    dtype = node.to.dtype(node.read(0))
    return (_gelu(node, _biased(node), dtype),) if dtype else None


def fast_gelu(node: Defined) -> Sequence[str] | None:
    """Gelu by the hyperbolic tangent, of x or of x and a bias."""
    to, dtype = node.to, node.to.dtype(node.read(0))
    if dtype in (0, TensorProto.DOUBLE):  # of double ONNX Runtime's constants have the digits of float32
        return None
    x = _biased(node)
    if to.opset >= SINCE_GELU:
        return (to.add("Gelu", x, approximate="tanh"),)
    cube = to.add("Mul", to.add("Pow", x, node.scalar(3.0, dtype)), node.scalar(0.044715, dtype))
    inner = to.add("Mul", to.add("Add", x, cube), node.scalar(math.sqrt(2.0 / math.pi), dtype))
    factor = to.add("Add", to.add("Tanh", inner), node.scalar(1.0, dtype))
    return (to.add("Mul", to.add("Mul", x, node.scalar(0.5, dtype)), factor),)


def quick_gelu(node: Defined) -> Sequence[str] | None:
    """x * sigmoid(alpha * x)."""
    x, alpha, to = node.read(0), node.number("alpha", 1.702), node.to
    dtype = to.dtype(x)
    if not dtype:
        return None
    return (to.add("Mul", x, to.add("Sigmoid", x if alpha == 1.0 else to.add("Mul", x, node.scalar(alpha, dtype)))),)


def bias_split_gelu(node: Defined) -> Sequence[str] | None:
    """Half of x + bias times the Gelu of the other half."""
    x, bias, to = node.read(0), node.read(1), node.to
    half, dtype = node.extent(bias, 0), to.dtype(node.read(0))
    if half is None or not dtype:
        return None
    left, right = to.several(2, "Split", to.add("Add", x, bias), split=[half // 2] * 2, axis=-1)
    return (to.add("Mul", left, _gelu(node, right, dtype)),)


def bias_add(node: Defined) -> Sequence[str] | None:
    """x + bias + skip."""
    return (node.to.add("Add", node.to.add("Add", node.read(0), node.read(1)), node.read(2)),)


def _biased(node: Defined) -> str:
    x, bias = node.read(0), node.read(1)
    return node.to.add("Add", x, bias) if bias else x


def _gelu(node: Defined, x: str, dtype: int) -> str:
    to = node.to
    if to.opset >= SINCE_GELU:
        return to.add("Gelu", x)
    error = to.add("Erf", to.add("Div", x, node.scalar(math.sqrt(2.0), dtype)))
    return to.add("Mul", to.add("Mul", x, to.add("Add", error, node.scalar(1.0, dtype))), node.scalar(0.5, dtype))
