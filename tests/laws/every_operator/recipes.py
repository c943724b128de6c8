"""What a graph may go on with: one way, or some, to use each operator."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.laws.every_operator.grow import EXTENTS, Grower, RefusedError, attributes_of
from tests.laws.every_operator.nested_recipes import NESTED
from tests.laws.every_operator.newer_recipes import NEWER
from tests.laws.every_operator.typed_recipes import TYPED

UNARY = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Celu", "Cos", "Cosh", "Elu", "Erf", "Exp",
    "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity", "LeakyRelu", "Log", "Mish", "Neg", "Reciprocal", "Relu",
    "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh",
    "ThresholdedRelu", "Dropout",
)  # fmt: skip
BINARY = ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "PRelu", "Mod", "Add", "Mul", "Sub")
SEVERAL = ("Sum", "Mean", "Max", "Min")
COMPARED = ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")
REDUCED = (
    "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceSumSquare",
)  # fmt: skip


def begin(g: Grower, wider: bool = False) -> None:
    """Give a graph its first inputs: of any rank, an image, or tokens; these more often where recipes are wider."""
    g.input(_shape(g, int(g.rng.integers(0, 7))))
    if g.chance(0.7 if wider else 0.4):
        channels, sizes = ((1, 3, 4, 8, 16, 32), (1, 4, 7, 8, 11)) if wider else ((1, 3, 4, 8), (1, 4, 5, 8))
        g.input((g.pick((1, 2)), g.pick(channels), *(g.pick(sizes) for _ in range(g.pick((1, 2, 2, 3))))))
    if g.chance(0.6 if wider else 0.3):
        g.input((g.pick((1, 2)), g.pick((1, 4, 5)), g.pick((8, 16))))


def step(g: Grower, wider: bool = False) -> None:
    """Add what one recipe adds, one of the wider ones if so. Raises RefusedError where that does not fit."""
    g.pick(WIDER if wider else RECIPES)(g)


def _shape(g: Grower, rank: int) -> tuple[int, ...]:
    shape = [g.pick(EXTENTS) for _ in range(rank)]
    while np.prod(shape) > 1000:
        shape[int(np.argmax(shape))] = 1
    return (0, *shape[1:]) if rank and g.chance(0.02) else tuple(shape)


def beside(g: Grower, x: str) -> str:
    """Return what is broadcast beside a value: itself, another one, a weight of fewer or more axes, a number."""
    shape = g.shape(x)
    match g.pick((0, 1, 2, 2, 2, 3, 4, 5)):
        case 0:
            return x
        case 1:
            return g.any()
        case 2:
            own = [n if g.chance(0.6) else 1 for n in shape][int(g.rng.integers(len(shape) + 1)) :]
            return g.input(tuple(own)) if g.chance(0.3) else g.weight(tuple(own))
        case 3:
            more = (1,) * int(g.rng.integers(1, 3)) + tuple(n if g.chance(0.5) else 1 for n in shape)
            return g.weight(more[:6])
        case 4:
            return g.number(g.pick((0.5, 1.0, 2.0, -1.0, 0.0, 3.0)))
        case _:
            return g.input((1,) * int(g.rng.integers(0, 3)))


def unary(g: Grower) -> None:
    """An elementwise operator; one that is defined for some numbers alone reads these."""
    x, op = g.any(), g.pick(UNARY)
    if op in ("Log", "Sqrt", "Reciprocal", "Acosh", "Pow") and g.chance(0.8):
        x = g.add("Add", [g.add("Abs", [x]), g.number(1.0)])
    written = {}
    if g.chance(0.3) and "alpha" in attributes_of(op, g.opset):
        written["alpha"] = g.pick((0.1, 0.5, 1.0, 2.0))
    if op == "Gelu" and g.chance(0.5):
        written["approximate"] = "tanh"
    g.add(op, [x], **written)


def binary(g: Grower) -> None:
    """Two operands in any order."""
    op, x = g.pick(BINARY), g.any()
    pair = [x, beside(g, x)]
    if op == "Mod":
        g.add(op, pair, fmod=1)
    elif op == "Pow":
        g.add(op, [x, g.number(g.pick((2.0, 3.0, 1.0, 0.5)))])
    else:
        g.add(op, pair if g.chance(0.6) or op == "PRelu" else pair[::-1])


def several(g: Grower) -> None:
    """A sum, mean or maximum of several values."""
    x = g.any()
    g.add(g.pick(SEVERAL), [x, *(beside(g, x) for _ in range(g.pick((0, 1, 2, 2, 3, 14))))])


def compared(g: Grower) -> None:
    """What is compared, chooses, or is cast to a number again."""
    x = g.any()
    held = g.add(g.pick(COMPARED), [x, beside(g, x)])
    if g.chance(0.3):
        held = g.add("Not", [held])
    if g.chance(0.3):
        held = g.add(g.pick(("And", "Or", "Xor")), [held, g.add("Less", [x, beside(g, x)])])
    if g.chance(0.3):
        held = expanded(g, held)
    if g.chance(0.7) and g.opset >= 9:
        pair = [x, beside(g, x)]
        g.add("Where", [held, *(pair if g.chance(0.5) else pair[::-1])])
    else:
        g.add("Cast", [held], to=helper.np_dtype_to_tensor_dtype(g.numpy))


def cast(g: Grower) -> None:
    """A cast to another type and back, or to the same."""
    mine = helper.np_dtype_to_tensor_dtype(g.numpy)
    there = g.pick(
        (TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64, TensorProto.DOUBLE, TensorProto.BOOL, mine)
    )
    y = g.add("Cast", [g.any()], to=there)
    if there in (TensorProto.FLOAT, TensorProto.DOUBLE) and g.chance(0.5):
        y = g.add(g.pick(("Neg", "Abs", "Relu", "Sqrt")), [y])
    g.add("Cast", [y], to=mine)


def clip(g: Grower) -> None:
    """Bounds as attributes or inputs, one or both."""
    x = g.any()
    if "min" in attributes_of("Clip", g.opset):
        bounds: dict[str, Any] = {"min": -1.0} if g.chance(0.7) else {}
        if g.chance(0.7):
            bounds["max"] = 2.0
        g.add("Clip", [x], **bounds)
    else:
        low, high = (g.constant(np.array(n, g.numpy)) if g.chance(0.7) else "" for n in (-1, 2))
        g.add("Clip", [x, low, high])


# ---- data movement


def expanded(g: Grower, x: str) -> str:
    """Return a value repeated along axes of 1, or with axes before it."""
    shape = g.shape(x)
    target = [g.pick((1, 2, 3, 4)) if n == 1 and g.chance(0.5) else g.pick((n, n, 1)) for n in shape]
    target = [g.pick((1, 1, 2, 3)) for _ in range(g.pick((0, 0, 1, 2)))] + target
    return g.add("Expand", [x, g.ints(*target)])


def expand(g: Grower) -> None:
    """An Expand, and what reads it: a number, itself, what has its shape."""
    y = expanded(g, g.any())
    if g.chance(0.5):
        other = g.pick((y, g.number(2.0), beside(g, y)))
        g.add(g.pick(BINARY[:3]), [y, other] if g.chance(0.5) else [other, y])


def transpose(g: Grower) -> None:
    """One permutation, or two."""
    x = g.any(floats=False, least=1, most=6)
    for _ in range(g.pick((1, 1, 2))):
        rank = len(g.shape(x))
        images = {3: ([0, 2, 1],), 4: ([0, 2, 3, 1], [0, 3, 1, 2], [0, 2, 1, 3]), 5: ([0, 2, 3, 4, 1], [0, 4, 1, 2, 3])}
        perm = g.pick(images[rank]) if rank in images and g.chance(0.5) else [int(a) for a in g.rng.permutation(rank)]
        x = g.add("Transpose", [x], perm=perm)


def _target(g: Grower, x: str) -> list[int]:
    shape = list(g.shape(x))
    count = int(np.prod(shape))
    match g.pick((0, 1, 2, 3, 4)):
        case 0:
            return shape
        case 1:
            return [-1]
        case 2:
            at = int(g.rng.integers(len(shape) + 1))
            return [*shape[:at], 1, *shape[at:]]
        case 3 if len(shape) > 1:
            at = int(g.rng.integers(len(shape) - 1))
            return [*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]]
        case _:
            if not count:
                return shape
            first = g.pick([d for d in (1, 2, 4, 8, 3) if count % d == 0])
            return [first, -1] if g.chance(0.5) else [1, first, count // first]


def reshape(g: Grower) -> None:
    """A view: by a constant target with 0 and -1, or by one that is computed."""
    x = g.any(floats=False)
    target = _target(g, x)
    if g.chance(0.4):
        target = [
            0 if i < len(g.shape(x)) and n == g.shape(x)[i] and g.chance(0.4) else n for i, n in enumerate(target)
        ]
    if -1 not in target and 0 not in target and target and g.chance(0.4):
        target[int(g.rng.integers(len(target)))] = -1
    if g.chance(0.2) and g.shape(x):
        shape = g.add("Shape", [x])
        first = g.add("Gather", [shape, g.constant(np.array([0], np.int64))], axis=0)
        g.add("Reshape", [x, g.add("Concat", [first, g.ints(-1)], axis=0)])
        return
    g.add("Reshape", [x, g.ints(*target)])


def flatten(g: Grower) -> None:
    """A matrix of all axes before one, and all after."""
    x = g.any(floats=False)
    g.add("Flatten", [x], axis=int(g.rng.integers(0, len(g.shape(x)) + 1)))


def single(g: Grower) -> None:
    """Axes of 1 put in or taken out."""
    x = g.any(floats=False, most=5)
    rank = len(g.shape(x))
    if g.chance(0.5):
        count = g.pick((1, 1, 2))
        g.along("Unsqueeze", x, sorted(g.rng.choice(rank + count, count, replace=False)))
        return
    ones = [a for a, n in enumerate(g.shape(x)) if n == 1]
    if not ones:
        raise RefusedError
    if g.chance(0.2):
        g.add("Squeeze", [x])
    else:
        g.along("Squeeze", x, [a for a in ones if g.chance(0.7)] or ones)


def slices(g: Grower) -> None:
    """Parts along one axis or some: whole ones, steps, backwards; as attributes or inputs."""
    x = g.any(floats=False, least=1)
    shape = g.shape(x)
    axes = sorted(g.rng.choice(len(shape), int(g.rng.integers(1, min(2, len(shape)) + 1)), replace=False))
    starts, ends, steps = [], [], []
    for axis in axes:
        n = shape[axis]
        start, end = sorted(int(i) for i in g.rng.integers(0, n + 1, 2))
        kind = g.pick(("whole", "part", "part", "negative", "back", "step"))
        starts.append({"whole": 0, "negative": -n if n else 0, "back": n - 1}.get(kind, start))
        ends.append({"whole": g.pick((n, 2**31 - 1, 2**63 - 1)), "back": -n - 1}.get(kind, end))
        steps.append({"back": -1, "step": 2}.get(kind, 1))
    axes = [int(a) if g.chance(0.7) else int(a) - len(shape) for a in axes]
    if "starts" in attributes_of("Slice", g.opset):
        g.add("Slice", [x], starts=starts, ends=ends, axes=axes)
    elif all(s == 1 for s in steps) and g.chance(0.5):
        g.add("Slice", [x, g.ints(*starts), g.ints(*ends), g.ints(*axes)])
    else:
        g.add("Slice", [x, g.ints(*starts), g.ints(*ends), g.ints(*axes), g.ints(*steps)])


def split(g: Grower) -> None:
    """Equal or unequal parts, some of which are put together again."""
    x = g.any(floats=False, least=1)
    axis = int(g.rng.integers(len(g.shape(x))))
    n = g.shape(x)[axis]
    cut = int(g.rng.integers(0, n + 1))
    parts = [cut, n - cut] if g.chance(0.6) else [1] * n
    if not 1 <= len(parts) <= 5:
        raise RefusedError
    if "split" in attributes_of("Split", g.opset):
        made = g.add("Split", [x], outputs=len(parts), axis=axis, split=parts)
    elif "num_outputs" in attributes_of("Split", g.opset) and g.chance(0.4):
        made = g.add("Split", [x], outputs=len(parts), axis=axis, num_outputs=len(parts))
    else:
        made = g.add("Split", [x, g.ints(*parts)], outputs=len(parts), axis=axis)
    made = [made] if isinstance(made, str) else made
    if g.chance(0.5):
        g.add("Concat", made if g.chance(0.6) else made[::-1], axis=axis)


def concat(g: Grower) -> None:
    """A value beside others of its kind; many, one, or itself."""
    x = g.any(least=1)
    axis = int(g.rng.integers(len(g.shape(x))))
    alike = [v for v in g.in_hand() if g.shape(v) == g.shape(x) and g.is_float(v)]
    parts = [g.pick(alike) if g.chance(0.7) else g.weight(g.shape(x)) for _ in range(g.pick((0, 1, 1, 2, 14)))]
    g.add("Concat", [x, *parts], axis=axis - (len(g.shape(x)) if g.chance(0.3) else 0))


def pad(g: Grower) -> None:
    """Pads of each mode, as attributes or inputs, along all axes or some, negative ones too."""
    x = g.any(least=1, most=5)
    rank = len(g.shape(x))
    mode = g.pick(("constant", "constant", "edge", "reflect", "wrap"))
    pads = [g.pick((0, 0, 1, 2, -1 if mode == "constant" else 0)) for _ in range(2 * rank)]
    if "pads" in attributes_of("Pad", g.opset):
        g.add("Pad", [x], pads=pads, mode=mode)
        return
    inputs = [x, g.ints(*pads), g.constant(np.array(1.5, g.numpy)) if g.chance(0.4) else ""]
    if g.opset >= 18 and g.chance(0.4):
        axis = int(g.rng.integers(-rank, rank))
        inputs = [x, g.ints(pads[0], pads[1]), inputs[2], g.ints(axis)]
    while not inputs[-1]:
        inputs.pop()
    g.add("Pad", inputs, mode=mode)


def tile(g: Grower) -> None:
    """Repeats along each axis."""
    x = g.any(floats=False)
    g.add("Tile", [x, g.ints(*(g.pick((1, 1, 2, 3)) for _ in g.shape(x)))])


def gather(g: Grower) -> None:
    """Rows by constants, by an input, by positions element by element."""
    x = g.any(floats=False, least=1)
    axis = int(g.rng.integers(len(g.shape(x))))
    n = g.shape(x)[axis]
    if not n:
        raise RefusedError
    kind = g.pick(("Gather", "Gather", "Gather", "GatherElements", "GatherND"))
    if kind == "GatherElements":
        at = g.rng.integers(-n, n, g.shape(x))
    elif kind == "GatherND":
        at = np.stack([g.rng.integers(0, max(e, 1), 3) for e in g.shape(x)[: g.pick((1, 2))]], -1)
    else:
        at = g.pick((np.arange(n), g.rng.integers(-n, n, g.pick(((), (1,), (3,), (2, 2)))), np.arange(n)[::-1]))
    at = np.array(at, g.pick((np.int64, np.int64, np.int32)))
    places = g.input(at.shape, at) if g.chance(0.3) else g.constant(at)
    along: dict[str, Any] = {} if kind == "GatherND" else {"axis": axis}
    g.add(kind, [x, places], **along)


def scatter(g: Grower) -> None:
    """Values written into others, by element or by row."""
    x = g.any(least=1)
    shape = g.shape(x)
    if 0 in shape:
        raise RefusedError
    if g.chance(0.5):
        axis = int(g.rng.integers(len(shape)))
        along = [-1 if a == axis else 1 for a in range(len(shape))]
        at = np.broadcast_to(g.rng.permutation(shape[axis]).reshape(along), shape)
        g.add(
            "ScatterElements" if g.opset >= 11 else "Scatter",
            [x, g.constant(at.astype(np.int64)), g.weight(shape)],
            axis=axis,
        )
    else:
        rows = np.sort(g.rng.choice(shape[0], max(1, shape[0] // 2), replace=False)).reshape(-1, 1)
        g.add("ScatterND", [x, g.constant(rows.astype(np.int64)), g.weight((len(rows), *shape[1:]))])


def blocks(g: Grower) -> None:
    """Channels to places and back."""
    x = g.any(least=4, most=4)
    g.add(g.pick(("DepthToSpace", "SpaceToDepth")), [x], blocksize=g.pick((1, 2)))


def extents(g: Grower) -> None:
    """Numbers made of a shape: a fill, a range, a count that scales."""
    x = g.any(floats=False)
    mine = helper.np_dtype_to_tensor_dtype(g.numpy)
    match g.pick((0, 1, 2, 3)):
        case 0:
            value = onnx.numpy_helper.from_array(np.array([0.5], g.numpy))
            y = g.add("ConstantOfShape", [g.add("Shape", [x])], value=value)
            if g.is_float(x):
                g.add("Add", [y, x])
        case 1:
            size = g.add("Cast", [g.add("Size", [x])], to=mine)
            g.add("Mul", [g.any(), size])
        case 2:
            g.add("Expand", [g.any(most=2), g.add("Shape", [x])])
        case _:
            y = g.add("Cast", [g.add("Shape", [x])], to=mine)
            g.add("Mul", [y, g.number(0.5)])


# ---- reductions, norms, products, windows


def reduce(g: Grower) -> None:
    """A reduction over some axes or all, which stay or go."""
    x, op = g.any(), g.pick(REDUCED)
    rank = len(g.shape(x))
    axes = sorted(int(a) for a in g.rng.choice(rank, int(g.rng.integers(0, rank + 1)), replace=False))
    # Before operator set 11 an axis is never counted from the end; what ONNX Runtime makes of one is its own.
    axes = [a if g.opset < 11 or g.chance(0.7) else a - rank for a in axes]
    keep: dict[str, Any] = {"keepdims": int(g.chance(0.5))} if g.chance(0.8) else {}
    if op in ("ReduceLogSum", "ReduceLogSumExp"):
        x = g.add("Abs", [x])
    if not axes:
        more: dict[str, Any] = (
            {"noop_with_empty_axes": 1} if "axes" not in attributes_of(op, g.opset) and g.chance(0.3) else {}
        )
        g.add(op, [x], **keep, **more)
    else:
        g.along(op, x, axes, **keep)


def chosen(g: Grower) -> None:
    """The greatest: its place, or some of them."""
    x = g.any(least=1)
    axis = int(g.rng.integers(-len(g.shape(x)), len(g.shape(x))))
    match g.pick((0, 1, 2)):
        case 0:
            y = g.add(g.pick(("ArgMax", "ArgMin")), [x], axis=axis, keepdims=int(g.chance(0.5)))
            g.add("Cast", [y], to=helper.np_dtype_to_tensor_dtype(g.numpy))
        case 1 if g.opset >= 10:
            g.add("TopK", [x, g.ints(1)], outputs=2, axis=axis)
        case _:
            g.add("Hardmax", [x], axis=axis)


def soft(g: Grower) -> None:
    """Softmax and its like, along one axis or, of old, all from one on."""
    x = g.any(least=1)
    op = g.pick(("Softmax", "Softmax", "LogSoftmax", "LpNormalization", "CumSum"))
    axis = int(g.rng.integers(-len(g.shape(x)), len(g.shape(x))))
    if op == "CumSum":
        g.add(op, [x, g.constant(np.array(axis, np.int64))], exclusive=int(g.chance(0.3)), reverse=int(g.chance(0.3)))
    else:
        g.add(op, [x], axis=axis)


def norm(g: Grower) -> None:
    """A norm, as one operator or spelled out."""
    x = g.any(least=1)
    shape = g.shape(x)
    kind = g.pick(("LayerNormalization", "RMSNormalization", "BatchNormalization", "InstanceNormalization", "LRN",
                   "GroupNormalization", "MeanVarianceNormalization", "spelled", "spelled"))  # fmt: skip
    if kind in ("LayerNormalization", "RMSNormalization"):
        axis = int(g.rng.integers(-len(shape), 0))
        scale = g.weight(shape[axis:])
        bias = [g.weight(shape[axis:])] if kind == "LayerNormalization" and g.chance(0.6) else []
        g.add(kind, [x, scale, *bias], axis=axis, epsilon=1e-3)
    elif kind == "spelled":
        mean = g.along("ReduceMean", x, [-1], keepdims=1)
        d = g.add("Sub", [x, mean])
        square = g.add("Mul", [d, d]) if g.chance(0.5) else g.add("Pow", [d, g.number(2.0)])
        root = g.add("Sqrt", [g.add("Add", [g.along("ReduceMean", square, [-1], keepdims=1), g.number(0.01)])])
        g.add("Mul", [g.add("Div", [d, root]), g.weight(shape[-1:])])
    elif kind in ("LRN", "MeanVarianceNormalization"):
        size: dict[str, Any] = {"size": 3} if kind == "LRN" else {}
        g.add(kind, [x], **size)
    else:
        x = g.any(least=2)
        channels = g.shape(x)[1]
        scale, shift = g.weight((channels,)), g.weight((channels,))
        if kind == "BatchNormalization":
            positive = g.constant(np.abs(g.values((channels,))))
            x = _window(g) if g.chance(0.4) else x
            if g.shape(x)[1] != channels:
                raise RefusedError
            g.add(kind, [x, scale, shift, g.weight((channels,)), positive], epsilon=1e-3)
        elif kind == "InstanceNormalization":
            g.add(kind, [x, scale, shift], epsilon=1e-2)
        else:
            groups = g.pick([d for d in (1, 2, 4) if channels % d == 0] or [1])
            length = groups if g.opset < 21 else channels
            g.add(kind, [x, g.weight((length,)), g.weight((length,))], num_groups=groups, epsilon=1e-2)


def product(g: Grower) -> None:
    """Products with weights from either side, with what was computed, of values with themselves; scaled, transposed."""
    x = g.any(least=1, most=5)
    shape = g.shape(x)
    match g.pick((0, 0, 1, 2, 3, 4, 5)):
        case 0:
            y = g.add("MatMul", [x, g.weight((shape[-1], g.pick((1, 4, 8))), 0.2)])
            if g.chance(0.5):
                g.add("Add", [y, beside(g, y)])
        case 1 if len(shape) > 1:
            g.add("MatMul", [g.weight((g.pick((1, 3, 4)), shape[-2]), 0.2), x])
        case 2 if len(shape) > 1:
            m = g.add("Mul", [x, g.number(0.25)]) if g.chance(0.6) else x
            perm = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
            t = g.add("Transpose", [m], perm=perm)
            g.add("MatMul", [m, t] if g.chance(0.5) else [t, m])
        case 3 if len(shape) > 1:
            w = g.weight((g.pick((1, 4, 8)), shape[-1]), 0.2)
            g.add("MatMul", [x, g.add("Transpose", [w], perm=[1, 0])])
        case 4:
            g.add("MatMul", [x, g.weight((shape[-1],), 0.2)])
        case _:
            flat = x if len(shape) == 2 else g.add("Flatten", [x], axis=min(1, len(shape)))
            k, n, turned = g.shape(flat)[1], g.pick((1, 4, 8)), int(g.chance(0.5))
            w = g.weight((n, k) if turned else (k, n), 0.2)
            bias = [g.weight(g.pick(((n,), (1, n), (1, 1), ())))] if g.chance(0.7) or g.opset < 11 else []
            scaled: dict[str, Any] = {"alpha": 0.5, "beta": 2.0} if g.chance(0.3) else {}
            g.add("Gemm", [flat, w, *bias], transB=turned, **scaled)


def einsum(g: Grower) -> None:
    """A product by letters."""
    x = g.any(least=2, most=3)
    letters = "abc"[: len(g.shape(x))]
    n = g.pick((1, 4))
    out = letters[:-1] + "n" if g.chance(0.6) else "n" + letters[:-1]
    g.add("Einsum", [x, g.weight((g.shape(x)[-1], n), 0.2)], equation=f"{letters},{letters[-1]}n->{out}")


def _window(g: Grower) -> str:
    """A convolution or pooling of signals, images or volumes, and what stands behind it."""
    x = g.any(least=3, most=5)
    channels, *sizes = g.shape(x)[1:]
    if not channels:
        raise RefusedError
    whole = g.chance(0.3)
    kernel = sizes if whole else [g.pick((1, 1, 2, 3)) for _ in sizes]
    pads = [0 if whole else g.pick((0, 0, k // 2)) for k in kernel]
    window: dict[str, Any] = {
        "kernel_shape": kernel,
        "pads": [*pads, *pads],
        "strides": [1 if whole else g.pick((1, 1, 2)) for _ in kernel],
    }
    match g.pick((0, 0, 0, 1, 2, 3, 3, 4)):
        case 0:
            groups = g.pick((1, 1, channels))
            filters = g.pick((1, 4, 8, 16)) if groups == 1 else channels
            w = g.weight((filters, channels // groups, *kernel), 0.1)
            y = g.add("Conv", [x, w, *([g.weight((filters,))] if g.chance(0.6) else [])], group=groups, **window)
        case 1:
            filters = g.pick((1, 4))
            y = g.add("ConvTranspose", [x, g.weight((channels, filters, *kernel), 0.1)], **window)
        case 2:
            y = g.add("MaxPool", [x], **window)
        case 3:
            y = g.add("AveragePool", [x], count_include_pad=int(g.chance(0.5)), **window)
        case _:
            y = g.add(g.pick(("GlobalAveragePool", "GlobalMaxPool")), [x])
    return y


def window(g: Grower) -> None:
    """A window with an activation, another one, or a view behind it."""
    y = _window(g)
    for _ in range(g.pick((0, 1, 1, 2))):
        match g.pick((0, 1, 2, 3, 4)):
            case 0:
                y = g.add(g.pick(("Relu", "Sigmoid", "Identity", "LeakyRelu")), [y])
            case 1:
                channels = g.shape(y)[1]
                w = g.weight((g.pick((4, 8)), channels, *([1] * (len(g.shape(y)) - 2))), 0.1)
                y = g.add("Conv", [y, w])
            case 2:
                y = g.add("Reshape", [y, g.ints(*_target(g, y))])
                return
            case 3:
                y = g.add("Add", [y, beside(g, y)])
                if len(g.shape(y)) < 3:
                    return
            case _:
                rank = len(g.shape(y))
                g.add("Transpose", [y], perm=[0, *range(2, rank), 1])
                return


def resize(g: Grower) -> None:
    """An enlarged image, to the nearest pixel or linear."""
    x = g.any(least=3, most=5)
    rank = len(g.shape(x))
    scales = g.constant(np.array([1, 1, *(g.pick((1, 2)) for _ in range(rank - 2))], np.float32))
    mode = g.pick(("nearest", "linear"))
    if g.opset < 9:
        raise RefusedError
    if g.opset == 9:
        g.add("Upsample", [x, scales], mode=mode)
    elif g.opset == 10:
        g.add("Resize", [x, scales], mode=mode)
    else:
        way = g.pick(("asymmetric", "half_pixel", "align_corners"))
        more: dict[str, Any] = {"nearest_mode": "floor"} if way == "asymmetric" else {}
        g.add(
            "Resize",
            [x, g.constant(np.zeros(0, np.float32)), scales],
            mode=mode,
            coordinate_transformation_mode=way,
            **more,
        )


def attention(g: Grower) -> None:
    """Heads of one sequence, with a scale and a mask in some spelling."""
    x = g.any(least=3, most=3)
    _, length, width = g.shape(x)
    heads = g.pick([h for h in (1, 2, 4) if width % h == 0])
    size = width // heads

    def split_heads(perm: list[int]) -> str:
        y = g.add("MatMul", [x, g.weight((width, width), 0.1)])
        return g.add("Transpose", [g.add("Reshape", [y, g.ints(0, 0, heads, size)])], perm=perm)

    q, v, k = split_heads([0, 2, 1, 3]), split_heads([0, 2, 1, 3]), split_heads([0, 2, 3, 1])
    scores = g.add("MatMul", [g.add("Mul", [q, g.number(0.5)]) if g.chance(0.4) else q, k])
    if g.chance(0.6):
        scores = g.add(g.pick(("Mul", "Div")), [scores, g.number(2.0)])
    if g.chance(0.5):
        scores = g.add(
            "Add", [scores, g.weight(g.pick(((length,), (1, length), (1, 1, 1, length), (1, 1, length, length))))]
        )
    y = g.add("MatMul", [g.add("Softmax", [scores], axis=-1 if g.opset >= 13 else 3), v])
    g.add("Reshape", [g.add("Transpose", [y], perm=[0, 2, 1, 3]), g.ints(0, 0, width)])


def recurrent(g: Grower) -> None:
    """A layer of a recurrent net."""
    x = g.any(least=3, most=3)
    op = g.pick(("LSTM", "GRU", "RNN"))
    gates, cells = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], g.pick((2, 4))
    w, r = g.weight((1, gates * cells, g.shape(x)[-1]), 0.1), g.weight((1, gates * cells, cells), 0.1)
    g.add("Squeeze", [g.add(op, [x, w, r], hidden_size=cells)]) if g.chance(0.5) else g.add(
        op, [x, w, r], hidden_size=cells
    )


def contributed(g: Grower) -> None:
    """ONNX Runtime's own operators."""
    x = g.any(least=1, most=3)
    width = g.shape(x)[-1]
    match g.pick((0, 1, 2, 3, 4)):
        case 0:
            g.add(g.pick(("Gelu", "QuickGelu", "FastGelu", "ScaledSiLU")), [x], domain="com.microsoft")
        case 1:
            g.add("BiasGelu", [x, g.weight((width,))], domain="com.microsoft")
        case 2 if len(g.shape(x)) == 3:
            rest = [g.weight(g.shape(x)), g.weight((width,)), g.weight((width,))]
            g.add("SkipLayerNormalization", [x, *rest], domain="com.microsoft", epsilon=1e-2)
        case 3 if len(g.shape(x)) == 3:
            rest = [g.weight(g.shape(x)), g.weight((width,))]
            g.add("SkipSimplifiedLayerNormalization", [x, *rest], domain="com.microsoft", epsilon=1e-2)
        case _:
            g.add("FusedMatMul", [x, g.weight((width, 4), 0.2)], domain="com.microsoft", alpha=0.5)


def other(g: Grower) -> None:
    """What has no recipe of its own: one input, or some of its shape, the defaults of all attributes."""
    x = g.any()
    op = g.pick(("IsNaN", "IsInf", "NonZero", "Trilu", "Det", "EyeLike", "Compress", "OneHot", "GlobalLpPool", "LpPool",
                 "Range", "Unique"))  # fmt: skip
    mine = helper.np_dtype_to_tensor_dtype(g.numpy)
    if op in ("IsNaN", "IsInf", "NonZero"):
        g.add("Cast", [g.add(op, [x])], to=mine)
    elif op == "Trilu":
        g.add(op, [x], upper=int(g.chance(0.5)))
    elif op == "Compress":
        g.add(op, [x, g.constant(g.rng.random(g.shape(x)[0] if g.shape(x) else 1) > 0.3)], axis=0)
    elif op == "OneHot":
        at = g.add("Cast", [g.add("Abs", [x])], to=TensorProto.INT64)
        g.add(op, [at, g.constant(np.array(4, np.int64)), g.constant(np.array([0, 1], g.numpy))])
    elif op == "LpPool":
        g.add(op, [x], kernel_shape=[1] * max(len(g.shape(x)) - 2, 1))
    elif op == "Range":
        g.add(op, [g.constant(np.array(n, np.float32)) for n in (0, g.pick((1, 4)), 1)])
    elif op == "Unique":
        g.add(op, [x])
    else:
        g.add(op, [x])


RECIPES: tuple[Callable[[Grower], None], ...] = (
    unary, unary, binary, binary, binary, several, compared, cast, clip, expand, expand, transpose, transpose, reshape,
    reshape, flatten, single, single, slices, slices, split, concat, pad, tile, gather, scatter, blocks, extents,
    reduce, reduce, chosen, soft, norm, norm, product, product, einsum, window, window, window, resize, attention,
    recurrent, contributed, other,
)  # fmt: skip

WIDER = (*NESTED, *NEWER, *TYPED)
