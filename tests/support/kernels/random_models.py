"""Random ONNX models over what fused bodies may hold: a seed makes the same model, the same inputs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench.cases import ops

OPSETS: dict[int, int] = {TensorProto.BFLOAT16: 22}
"""The first with windows and activations of bfloat16; else 20, which ONNX Runtime has most kernels for."""
EXTENTS = (1, 1, 2, 3, 4, 7, 8, 16, 17, 31, 33, 64, 65, 100, 197)
CHANNELS = (1, 3, 4, 8, 12, 16, 24, 32, 40, 64)
TYPES = (TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.BFLOAT16)
ELEMENTS = 20_000
"""Of a value: the truth is computed by plain numpy."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A model with inputs for it."""

    seed: str
    kind: str
    """Which part of the language it is of."""
    dtype: int
    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]


@dataclass
class Maker:
    """A graph under construction: shapes in hand, so that whatever is added fits."""

    rng: np.random.Generator
    dtype: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    feeds: dict[str, np.ndarray] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)

    def pick(self, choices: Sequence[Any]) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def values(self, shape: Shape, scale: float = 1.0) -> np.ndarray:
        return (self.rng.standard_normal(shape) * scale).astype(ops.NUMPY[self.dtype])

    def input(self, shape: Shape) -> str:
        name = f"x{len(self.feeds)}"
        self.feeds[name], self.shapes[name] = self.values(shape), shape
        return name

    def weight(self, shape: Shape, scale: float = 1.0) -> str:
        return self.constant(self.values(shape, scale))

    def constant(self, array: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(array, order="C"), name))
        self.shapes[name] = array.shape
        return name

    def ints(self, *numbers: int) -> str:
        return self.constant(np.array(numbers, np.int64))

    def add(self, op: str, inputs: list[str], shape: Shape, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], f"n{len(self.nodes)}", **attributes))
        self.shapes[name] = shape
        return name


def model(seed: int | str, dtype: int | None = None, kind: str | None = None) -> Case:
    """Return the model of a seed; `dtype` and `kind` are drawn where they are not given."""
    rng = np.random.default_rng(int.from_bytes(str(seed).encode(), "little"))
    kind = kind or list(KINDS)[int(rng.integers(len(KINDS)))]
    dtype = dtype or TYPES[int(rng.integers(len(TYPES)))]
    maker = Maker(rng, dtype)
    results = KINDS[kind](maker)
    element = helper.make_tensor_value_info
    graph = helper.make_graph(
        maker.nodes,
        kind,
        [element(n, dtype, x.shape) for n, x in maker.feeds.items()],
        [element(n, dtype, maker.shapes[n]) for n in results],
        maker.weights,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSETS.get(dtype, 20))], ir_version=10)
    onnx.checker.check_model(made, full_check=True)
    return Case(str(seed), kind, dtype, made, maker.feeds)


def _shape(m: Maker, least: int = 1, most: int = 4) -> Shape:
    while True:
        shape = tuple(m.pick(EXTENTS) for _ in range(int(m.rng.integers(least, most + 1))))
        if np.prod(shape) <= ELEMENTS:
            return (0, *shape[1:]) if m.chance(0.03) else shape


UNARY = ("Relu", "Sigmoid", "Tanh", "Gelu", "Neg", "Abs", "HardSwish", "Softplus", "Erf", "Elu", "LeakyRelu", "Mish")
BINARY = ("Add", "Mul", "Sub", "Max", "Min", "Add", "Mul")


def _operand(m: Maker, shape: Shape, x: str) -> str:
    """Return something that is broadcast beside a value of this shape: an input, a weight, a number, the value."""
    if m.chance(0.2):
        return x
    own = tuple(n if m.chance(0.6) else 1 for n in shape)
    own = own[int(m.rng.integers(len(own) + 1)) :] if m.chance(0.4) else own
    return m.input(own) if m.chance(0.4) else m.weight(own)


def _arithmetic(m: Maker, x: str, most: int = 4) -> str:
    for _ in range(int(m.rng.integers(1, most + 1))):
        shape = m.shapes[x]
        if m.chance(0.5):
            x = m.add(m.pick(UNARY), [x], shape)
        else:
            pair = [x, _operand(m, shape, x)]
            x = m.add(m.pick(BINARY), pair if m.chance(0.7) else pair[::-1], shape)
    return x


def _pointwise(m: Maker) -> list[str]:
    x = _arithmetic(m, m.input(_shape(m)), 6)
    second = _arithmetic(m, x, 3)
    return [second, x] if m.chance(0.3) else [second]


def _moved_once(m: Maker, x: str) -> str:
    shape = m.shapes[x]
    axis = int(m.rng.integers(len(shape)))
    n = shape[axis]
    match int(m.rng.integers(8)):
        case 0:
            perm = [int(a) for a in m.rng.permutation(len(shape))]
            return m.add("Transpose", [x], tuple(shape[a] for a in perm), perm=perm)
        case 1 if n % 2 == 0 and n:
            to = (*shape[:axis], 2, n // 2, *shape[axis + 1 :])
            return m.add("Reshape", [x, m.ints(*to)], to) if 0 not in to else x
        case 2 if n > 1:
            start, end = sorted(int(i) for i in m.rng.choice(n + 1, 2, replace=False))
            step = m.pick((1, 1, 2, -1))
            bounds = (start, end) if step > 0 else (end - 1, start - 1 if start else -(2**40))
            count = len(range(*slice(*bounds, step).indices(n)))
            arguments = [x, m.ints(bounds[0]), m.ints(bounds[1]), m.ints(axis), m.ints(step)]
            return m.add("Slice", arguments, (*shape[:axis], count, *shape[axis + 1 :]))
        case 3:
            count = int(m.rng.integers(2, 4))
            parts = [x, *(m.input(shape) if m.chance(0.5) else x for _ in range(count - 1))]
            return m.add("Concat", parts, (*shape[:axis], n * count, *shape[axis + 1 :]), axis=axis)
        case 4:
            pads = [0] * (2 * len(shape))
            pads[axis], pads[axis + len(shape)] = int(m.rng.integers(3)), int(m.rng.integers(3))
            more = pads[axis] + pads[axis + len(shape)]
            return m.add("Pad", [x, m.ints(*pads)], (*shape[:axis], n + more, *shape[axis + 1 :]))
        case 5 if n:
            at = np.array(int(m.rng.integers(-n, n)), np.int64)
            return m.add("Gather", [x, m.constant(at)], (*shape[:axis], *shape[axis + 1 :]), axis=axis)
        case 6 if n:
            numbers = np.sort(m.rng.choice(n, min(n, 3), replace=False)).astype(np.int64)
            to = (*shape[:axis], len(numbers), *shape[axis + 1 :])
            return m.add("Gather", [x, m.constant(numbers)], to, axis=axis)
        case 7:
            to = (*shape[:axis], 1, *shape[axis:])
            return m.add("Unsqueeze", [x, m.ints(axis)], to)
    return x


def _movement(m: Maker) -> list[str]:
    x = m.input(_shape(m, 2))
    for _ in range(int(m.rng.integers(1, 4))):
        if m.shapes[x] and np.prod(m.shapes[x]) <= ELEMENTS and len(m.shapes[x]) <= 6:
            x = _moved_once(m, x)
        x = _arithmetic(m, x, 2)
    return [x]


def _normed(m: Maker, x: str) -> str:
    shape = m.shapes[x]
    match int(m.rng.integers(6)):
        case 0 | 1:
            pair = [x, m.weight(shape[-1:]), *([m.weight(shape[-1:])] if m.chance(0.7) else [])]
            return m.add("LayerNormalization", pair, shape, axis=-1)
        case 2:
            return m.add(m.pick(("Softmax", "LogSoftmax")), [x], shape, axis=int(m.rng.integers(-len(shape), 0)))
        case 3:
            square = m.add("Mul", [x, x], shape)
            mean = m.add("ReduceMean", [square, m.ints(-1)], (*shape[:-1], 1), keepdims=1)
            near = m.add("Add", [mean, m.constant(np.array(1e-3, ops.NUMPY[m.dtype]))], m.shapes[mean])
            return m.add("Div", [x, m.add("Sqrt", [near], m.shapes[near])], shape)
        case _:
            axis, keep = int(m.rng.integers(len(shape))), m.chance(0.5)
            to = (*shape[:axis], *([1] if keep else []), *shape[axis + 1 :])
            kind = m.pick(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"))
            return m.add(kind, [x, m.ints(axis)], to, keepdims=int(keep))


def _row(m: Maker) -> list[str]:
    x = _arithmetic(m, m.input(_shape(m, 2)), 2)
    if 0 in m.shapes[x]:  # of no elements there is no greatest one
        return [m.add("Softmax", [x], m.shapes[x])]
    return [_arithmetic(m, _normed(m, x), 2)]


def _product(m: Maker) -> list[str]:
    x = m.input((*(m.pick((1, 2, 3)) for _ in range(int(m.rng.integers(2)))), m.pick(EXTENTS), m.pick(EXTENTS)))
    for _ in range(int(m.rng.integers(1, 3))):
        k, n = m.shapes[x][-1], m.pick(EXTENTS)
        y = m.add("MatMul", [x, m.weight((k, n), k**-0.5)], (*m.shapes[x][:-1], n))
        y = m.add("Add", [y, m.weight((n,))], m.shapes[y]) if m.chance(0.7) else y
        y = m.add(m.pick(UNARY), [y], m.shapes[y]) if m.chance(0.6) else y
        if m.chance(0.3):
            y = m.add("Add", [y, m.input(m.shapes[y])], m.shapes[y])
        if m.chance(0.2):
            gate = m.add("MatMul", [x, m.weight((k, n), k**-0.5)], m.shapes[y])
            y = m.add("Mul", [m.add("Sigmoid", [gate], m.shapes[y]), y], m.shapes[y])
        x = y
    return [x]


def _window(m: Maker, x: str) -> str:
    """A convolution, pooling or resizing, with what may stand after it."""
    batch, channels, height, width = m.shapes[x]
    kernel, stride = m.pick((1, 3, 3, 5)), m.pick((1, 1, 2))
    pad = kernel // 2
    down, across = ((n + 2 * pad - kernel) // stride + 1 for n in (height, width))
    attributes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
    choice = int(m.rng.integers(6))
    if choice < 4:
        depthwise = choice == 0
        filters, groups = (channels, channels) if depthwise else (m.pick(CHANNELS), 1)
        each = channels // groups
        w = m.weight((filters, each, kernel, kernel), (each * kernel**2) ** -0.5)
        y = m.add("Conv", [x, w, m.weight((filters,))], (batch, filters, down, across), group=groups, **attributes)
        if m.chance(0.7):
            y = m.add(m.pick(UNARY), [y], m.shapes[y])
        if m.chance(0.3):
            y = m.add("Add", [y, m.input(m.shapes[y])], m.shapes[y])
        return y
    if choice == 4:
        return m.add(m.pick(("MaxPool", "AveragePool")), [x], (batch, channels, down, across), **attributes)
    scales = m.constant(np.array([1, 1, 2, 2], np.float32))
    mode = m.pick(({"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
                   {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}))  # fmt: skip
    return m.add("Resize", [x, "", scales], (batch, channels, 2 * height, 2 * width), **mode)


def _convolution(m: Maker) -> list[str]:
    size = (m.pick((5, 7, 8, 14)), m.pick((5, 7, 8, 14)))
    x = m.input((m.pick((1, 2)), m.pick(CHANNELS), *size))
    for _ in range(int(m.rng.integers(1, 4))):
        x = _window(m, x) if np.prod(m.shapes[x]) <= ELEMENTS else x
    if m.chance(0.3):
        batch, channels, height, width = m.shapes[x]
        w = m.weight((channels, channels, 1, 1), channels**-0.5)
        y = m.add("Conv", [x, w, m.weight((channels,))], m.shapes[x])
        x = m.add("Concat", [x, m.add("Relu", [y], m.shapes[y])], (batch, 2 * channels, height, width), axis=1)
    return [x]


def _attention(m: Maker) -> list[str]:
    batch, length, heads, size = m.pick((1, 2)), m.pick((1, 5, 17, 33, 64)), m.pick((1, 2, 3)), m.pick((8, 16, 32, 64))
    width = heads * size
    x = m.input((batch, length, width))
    split, turned = (batch, length, heads, size), (batch, heads, length, size)

    def projected(perm: list[int], to: Shape) -> str:
        y = m.add("MatMul", [x, m.weight((width, width), width**-0.5)], (batch, length, width))
        y = m.add("Add", [y, m.weight((width,))], m.shapes[y])
        y = m.add("Reshape", [y, m.ints(0, 0, heads, size)], split)
        return m.add("Transpose", [y], to, perm=perm)

    q, v = projected([0, 2, 1, 3], turned), projected([0, 2, 1, 3], turned)
    k = projected([0, 2, 3, 1], (batch, heads, size, length))
    scores = m.add("MatMul", [q, k], (batch, heads, length, length))
    scale = m.constant(np.array(size**-0.5, ops.NUMPY[m.dtype]))
    scores = m.add("Mul", [scores, scale], m.shapes[scores])
    if m.chance(0.5):
        mask = m.pick(((batch, 1, 1, length), (1, 1, length, length), (batch, heads, length, length)))
        scores = m.add("Add", [scores, m.input(mask)], m.shapes[scores])
    y = m.add("MatMul", [m.add("Softmax", [scores], m.shapes[scores], axis=-1), v], turned)
    y = m.add("Transpose", [y], split, perm=[0, 2, 1, 3])
    return [m.add("Reshape", [y, m.ints(0, 0, width)], (batch, length, width))]


KINDS = {
    "pointwise": _pointwise, "movement": _movement, "row": _row, "product": _product, "convolution": _convolution,
    "attention": _attention,
}  # fmt: skip
