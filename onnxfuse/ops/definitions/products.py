"""Products and convolutions with what stands around them: transposes, factors, activations."""

from collections.abc import Sequence
from typing import Any

from onnxfuse.ops.definitions.writer import Defined

CONVOLVED = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
MULTIPLIED = ("alpha", "beta", "transA", "transB")


def fused_matmul(node: Defined) -> Sequence[str] | None:
    """alpha * A B, each factor transposed if its attribute says so."""
    if node.integer("transBatchA") or node.integer("transBatchB"):
        return None
    factors = list[str]()
    for value, transposed in ((node.read(0), "transA"), (node.read(1), "transB")):
        factor = _transposed(node, value) if node.integer(transposed) else value
        if factor is None:
            return None
        factors.append(factor)
    alpha, dtype = node.number("alpha", 1.0), node.to.dtype(node.read(0))
    if alpha != 1.0 and not dtype:
        return None
    y = node.to.add("MatMul", *factors)
    return (node.to.add("Mul", y, node.scalar(alpha, dtype)) if alpha != 1.0 else y,)


def _transposed(node: Defined, value: str) -> str | None:
    """Write the transpose of matrices; None if their number of axes is unknown."""
    rank = node.rank(value)
    if rank is None:
        return None
    order = [*range(rank)]
    order[-2:] = order[-2:][::-1]
    return node.to.add("Transpose", value, perm=order) if rank > 1 else value


def fused_gemm(node: Defined) -> Sequence[str] | None:
    """An activation of a Gemm."""
    numbers = [float(node.attributes[k]) for k in ("activation_alpha", "activation_beta") if k in node.attributes]
    if "activation_beta" in node.attributes and len(numbers) == 1:  # it is not said what alpha is then
        return None
    y = node.to.add("Gemm", *filter(None, node.inputs), **_those(node, MULTIPLIED))
    return _activated(node, y, numbers)


def fused_conv(node: Defined) -> Sequence[str] | None:
    """An activation of a convolution, to which a value may be added before."""
    x, weight, bias, skip = (node.read(i) for i in range(4))
    y = node.to.add("Conv", x, weight, *([bias] if bias else []), **_those(node, CONVOLVED))
    y = node.to.add("Add", y, skip) if skip else y
    return _activated(node, y, [*node.attributes.get("activation_params", ())])


def _those(node: Defined, attributes: Sequence[str]) -> dict[str, Any]:
    return {k: v for k, v in node.attributes.items() if k in attributes}


def _activated(node: Defined, x: str, numbers: Sequence[float]) -> Sequence[str] | None:
    """Write the activation that a node names; its numbers are alpha and beta, or the bounds of a Clip."""
    name, dtype = node.text("activation"), node.to.dtype(node.read(0))
    match name, [*numbers]:
        case "", _:
            return (x,)
        case (("Relu" | "Tanh" | "Sigmoid"), _):
            return (node.to.add(name, x),)
        case "LeakyRelu", [float(alpha), *_]:
            return (node.to.add(name, x, alpha=alpha),)
        case "HardSigmoid", [float(alpha), float(beta)]:
            return (node.to.add(name, x, alpha=alpha, beta=beta),)
        case "Clip", [float(low), float(high)] if dtype:
            return (node.to.add("Min", node.to.add("Max", x, node.scalar(low, dtype)), node.scalar(high, dtype)),)
        case _:
            return None
