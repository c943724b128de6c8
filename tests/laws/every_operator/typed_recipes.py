"""What a graph may go on with in integers, in truth values and in 8 bits."""

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.laws.every_operator.grow import Grower, RefusedError

INTEGERS = (np.int64, np.int64, np.int32, np.int8, np.uint8, np.int16, np.uint32, np.uint64)


def _mine(g: Grower) -> int:
    return helper.np_dtype_to_tensor_dtype(g.numpy)


def _number(g: Grower, value: str) -> str:
    return g.add("Cast", [value], to=_mine(g))


def _integer(g: Grower) -> str:
    """Return an integer value in hand, or one that is cast from a number: small ones, so that all types have them."""
    if g.chance(0.6) and any(g.found[v].dtype.kind in "iu" for v in g.in_hand()):
        return g.of_kind("iu")
    dtype = np.dtype(g.pick(INTEGERS))
    x = g.any()
    if dtype.kind == "u":
        x = g.add("Abs", [x])
    x = g.add("Min", [x, g.number(40.0)]) if dtype.itemsize == 1 else x
    return g.add("Cast", [x], to=helper.np_dtype_to_tensor_dtype(dtype))


def _beside(g: Grower, x: str) -> str:
    """Return an integer that is broadcast beside another: never 0."""
    shape, dtype = g.shape(x), g.found[x].dtype
    own = [n if g.chance(0.5) else 1 for n in shape][int(g.rng.integers(len(shape) + 1)) :]
    return g.constant(g.rng.integers(1, 5, own).astype(dtype))


def integers(g: Grower) -> None:
    """Arithmetic of whole numbers: division goes towards 0, what is too large wraps around."""
    x = _integer(g)
    dtype = g.found[x].dtype
    op = g.pick(("Add", "Sub", "Mul", "Div", "Max", "Min", "Mod", "Add", "Mul"))
    pair = [x, _beside(g, x)]
    y = g.add(op, pair if op in ("Div", "Mod") or g.chance(0.7) else pair[::-1])
    match g.pick(range(9)):
        case 0:
            y = g.add("Neg" if dtype.kind == "i" else "Sign", [y])
        case 1:
            y = g.add("Abs", [y])
        case 2:
            low, high = (g.constant(np.array(n, dtype)) for n in (1, 20))
            y = g.add("Clip", [y, low, high])
        case 3:
            y = g.along("ReduceSum", y, [-1], keepdims=int(g.chance(0.5)))
        case 4:
            y = g.along(g.pick(("ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd")), y, [-1], keepdims=1)
        case 5:
            held = g.add(g.pick(("Greater", "Less", "Equal")), [y, _beside(g, y)])
            y = g.add("Where", [held, y, _beside(g, y)])
        case 6 if dtype.kind == "u":
            shift = g.constant(np.array(g.pick((1, 2)), dtype))
            y = g.add("BitShift", [y, shift], direction=g.pick(("LEFT", "RIGHT")))
        case 7 if g.opset >= 18:
            y = g.add(g.pick(("BitwiseAnd", "BitwiseOr", "BitwiseXor")), [y, _beside(g, y)])
        case _:
            y = g.add("Mul", [y, g.constant(np.array(2, dtype))])
    if g.chance(0.7):
        _number(g, y)


def truths(g: Grower) -> None:
    """What is true of numbers, moved, joined, chosen by, reduced."""
    x = g.any()
    held = g.add(g.pick(("Greater", "Less", "Equal")), [x, g.number(g.pick((0.0, 0.5, -1.0)))])
    for _ in range(g.pick((1, 2, 3))):
        match g.pick(range(7)):
            case 0:
                held = g.add("Not", [held])
            case 1:
                other = g.constant(np.array(g.chance(0.5)))
                held = g.add(g.pick(("And", "Or", "Xor", "Equal")), [held, other])
            case 2:
                other = g.constant(g.rng.random(g.shape(held)) > 0.5)
                held = g.add(g.pick(("And", "Or", "Xor", "Equal")), [held, other])
            case 3:
                held = g.along("Unsqueeze", held, [0])
            case 4:
                held = g.add("Where", [held, g.constant(np.array(True)), g.constant(np.array(g.chance(0.5)))])
            case 5 if g.opset >= 20 and g.shape(held):
                held = g.along(g.pick(("ReduceMax", "ReduceMin")), held, [-1], keepdims=1)
            case _:
                held = g.add("Cast", [g.add("Cast", [held], to=TensorProto.INT32)], to=TensorProto.BOOL)
    if g.chance(0.5):
        _number(g, held)
    else:
        g.add("Where", [held, x, g.number(2.0)])


def quantized(g: Grower) -> None:
    """Numbers as 8 bits and back: for a whole value, or each part along an axis."""
    x = g.any()
    shape = g.shape(x)
    code = g.pick((np.uint8, np.int8))
    axis: dict[str, Any] = {}
    scale, zero = np.array(g.pick((0.25, 0.07, 0.5))), np.array(g.pick((0, 3)))
    if g.opset >= 13 and shape and g.chance(0.4):
        at = int(g.rng.integers(-len(shape), len(shape)))
        axis = {"axis": at}
        scale, zero = np.linspace(0.05, 0.3, shape[at]), np.zeros(shape[at])
    held = [g.constant(scale.astype(g.numpy)), g.constant(zero.astype(code))]
    q = g.add("QuantizeLinear", [x, *held[: g.pick((1, 2, 2)) if code == np.uint8 else 2]], **axis)
    if g.chance(0.3) and shape:
        q = g.add("Reshape", [q, g.ints(*shape[:-1], -1)]) if 0 not in shape else q
    if g.found[q].dtype != code:
        raise RefusedError
    y = g.add("DequantizeLinear", [q, *held], **axis)
    if g.chance(0.5):
        g.add(g.pick(("Relu", "Neg", "Abs")), [y])


def quantized_product(g: Grower) -> None:
    """Products of 8 bits: by their own operators, or between codes and numbers."""
    x = g.any(least=2, most=3)
    k, n = g.shape(x)[-1], g.pick((1, 4, 8))
    w = g.constant(g.rng.integers(-9, 9, (k, n)).astype(np.int8))
    zero = g.constant(np.array(0, np.int8))
    match g.pick(range(3)):
        case 0:
            a, scale, at = g.add("DynamicQuantizeLinear", [g.add("Cast", [x], to=TensorProto.FLOAT)], outputs=3)
            y = g.add("Cast", [g.add("MatMulInteger", [a, w, at, zero])], to=TensorProto.FLOAT)
            y = g.add("Mul", [y, g.add("Mul", [scale, g.constant(np.array(0.1, np.float32))])])
            g.add("Cast", [y], to=_mine(g))
        case 1:
            scale = g.constant(np.array(0.125, g.numpy))
            q = g.add("QuantizeLinear", [x, scale, zero])
            g.add("MatMul", [g.add("DequantizeLinear", [q, scale, zero]), g.add("DequantizeLinear", [w, scale, zero])])
        case _:
            scale = g.constant(np.array(0.125, np.float32))
            q = g.add("QuantizeLinear", [g.add("Cast", [x], to=TensorProto.FLOAT), scale, zero])
            y = g.add("QLinearMatMul", [q, scale, zero, w, scale, zero, scale, zero])
            g.add("Cast", [g.add("DequantizeLinear", [y, scale, zero])], to=_mine(g))


def labels(g: Grower) -> None:
    """Losses, classes, counts of what is chosen."""
    x = g.any(least=2, most=4)
    shape = g.shape(x)
    target = g.constant(g.rng.integers(0, max(shape[1], 1), (shape[0], *shape[2:])).astype(np.int64))
    kind = g.pick(("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"))
    g.add(kind, [x, target], reduction=g.pick(("none", "mean", "sum")))


TYPED: tuple[Callable[[Grower], None], ...] = (integers, integers, truths, truths, quantized, quantized_product, labels)
