"""Floating-point operations of a node, from the shapes of its values.

A multiply-add is two, everything else one per element and step of the formula, be it an addition or an exponential.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class NodeShapes:
    """The shapes of a node's values, and its attributes."""

    output: tuple[int, ...] | None
    """Shape of the first output, None if unknown."""
    inputs: list[tuple[int, ...] | None]
    """Shapes of the inputs, None for absent and unknown ones."""
    present: list[bool]
    """Whether each input is there."""
    attribute: Callable[[str, object], object]
    """Returns the value of an attribute by its name, or else the default."""

    def input(self, position: int) -> tuple[int, ...] | None:
        """Return the shape of an input, None if it is absent or unknown."""
        return self.inputs[position] if position < len(self.inputs) else None


Flops = Callable[[NodeShapes], int | None]
"""Returns the operations of a node, None if a shape that they depend on is unknown."""


def none(_: NodeShapes) -> int:
    """Return 0: data is moved, compared or selected."""
    return 0


def per_output(steps: int) -> Flops:
    """Return the count of so many steps for each element of the output."""
    return lambda of: None if of.output is None else math.prod(of.output) * steps


def per_operand(steps: int) -> Flops:
    """Return the count of so many steps for each element of the output and each further operand."""

    def count(of: NodeShapes) -> int | None:
        return None if of.output is None else math.prod(of.output) * steps * max(1, sum(of.present) - 1)

    return count


def per_input(steps: int) -> Flops:
    """Return the count of so many steps for each element of the first input."""
    return lambda of: None if (shape := of.input(0)) is None else math.prod(shape) * steps


def matmul(of: NodeShapes) -> int | None:
    """Return the operations of a product, the first operand transposed or not."""
    left, out = of.input(0), of.output
    return None if not left or out is None else 2 * math.prod(out) * left[-2 if of.attribute("transA", 0) else -1]


def packed(of: NodeShapes) -> int | None:
    """Return the operations of a product by a weight in few bits, without those that make numbers of it."""
    return None if of.output is None else 2 * math.prod(of.output) * int(str(of.attribute("K", 0)))


def gemm(of: NodeShapes) -> int | None:
    """Return the operations of a product of matrices and of its bias."""
    left, out = of.input(0), of.output
    if left is None or out is None:
        return None
    return math.prod(out) * (2 * left[0 if of.attribute("transA", 0) else 1] + _biased(of))


def convolution(of: NodeShapes) -> int | None:
    """Return the operations of a convolution and of its bias."""
    weight, out = of.input(1), of.output
    return None if weight is None or out is None else math.prod(out) * (2 * math.prod(weight[1:]) + _biased(of))


def transposed_convolution(of: NodeShapes) -> int | None:
    """Return the operations of a transposed convolution and of its bias."""
    x, weight, out = of.input(0), of.input(1), of.output
    if x is None or weight is None or out is None:
        return None
    return 2 * math.prod(x) * math.prod(weight[1:]) + _biased(of) * math.prod(out)


def _biased(of: NodeShapes) -> bool:
    return of.present[2:3] == [True]


def window(of: NodeShapes) -> int | None:
    """Return the operations of a pooling: one for each tap."""
    kernel = of.attribute("kernel_shape", ())
    return None if of.output is None or not isinstance(kernel, Sequence) else math.prod(of.output) * math.prod(kernel)


def einsum(of: NodeShapes) -> int | None:
    """Return one multiplication per operand and one addition for every combination of all indices."""
    equation = of.attribute("equation", b"")
    terms = (equation.decode() if isinstance(equation, bytes) else str(equation)).replace(" ", "").split("->")[0]
    extents: dict[str, int] = {}
    free = 1
    for term, shape in zip(terms.split(","), of.inputs, strict=False):
        if shape is None:
            return None
        named = term.replace("...", "")
        free = max(free, math.prod(shape[: len(shape) - len(named)]) if "..." in term else 1)
        extents.update(zip(named, shape[len(shape) - len(named) :], strict=False))
    return len(of.inputs) * math.prod(extents.values()) * free


def attention(of: NodeShapes) -> int | None:
    """Return the operations of two matrix products and a softmax.

    ONNX's `Attention`: 4-D [batch, heads, length, size], or 3-D with merged heads.
    """
    q, k, v = of.input(0), of.input(1), of.input(2)
    if q is None or k is None or v is None:
        return None
    if len(q) == 3:
        heads = int(str(of.attribute("q_num_heads", 1)))
        size, value = q[-1] // heads, v[-1] // int(str(of.attribute("kv_num_heads", heads)))
    else:
        heads, size, value = q[1], q[-1], v[-1]
    return q[0] * heads * q[-2] * k[-2] * (2 * size + 2 * value + 6)


def multi_head_attention(of: NodeShapes) -> int | None:
    """Return the same for ONNX Runtime's `MultiHeadAttention`: Q, K, V as [batch, length, heads x size]."""
    q, k, v = of.input(0), of.input(1), of.input(2)
    if q is None or k is None or v is None or len(q) != 3:
        return None
    heads, length = int(str(of.attribute("num_heads", 1))), k[-2]
    return q[0] * q[1] * length * (2 * q[2] + 2 * v[-1] * (len(v) == 3 or heads) + 6 * heads)
