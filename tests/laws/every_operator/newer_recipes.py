"""What a graph may go on with of newer operators, and in the rarer forms of old ones."""

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from tests.laws.every_operator.grow import Grower, RefusedError, attributes_of


def windows(g: Grower) -> None:
    """Windows that are padded by rule, dilated, rounded up, that say where their greatest stood."""
    x = g.any(least=3, most=5)
    channels, *sizes = g.shape(x)[1:]
    if not channels:
        raise RefusedError
    kernel = [g.pick((1, 2, 3)) for _ in sizes]
    how: dict[str, Any] = {}
    if g.chance(0.5):
        how["auto_pad"] = g.pick(("SAME_UPPER", "SAME_LOWER", "VALID"))
    else:
        how["pads"] = [g.pick((0, k // 2)) for k in (*kernel, *kernel)]
    strides = [g.pick((1, 2)) for _ in sizes]
    match g.pick(range(4)):
        case 0:
            groups = g.pick([d for d in (1, 2, 4, channels) if channels % d == 0])
            w = g.weight((groups * g.pick((1, 2)), channels // groups, *kernel), 0.2)
            dilations = [g.pick((1, 2)) if "pads" in how else 1 for _ in sizes]
            y = g.add("Conv", [x, w], strides=strides, group=groups, dilations=dilations, **how)
        case 1:
            w = g.weight((channels, 4, *kernel), 0.2)
            y = g.add(
                "ConvTranspose", [x, w, g.weight((4,))], strides=[2] * len(sizes), output_padding=[1] * len(sizes)
            )
        case 2:
            more: dict[str, Any] = (
                {"ceil_mode": 1} if "ceil_mode" in attributes_of("MaxPool", g.opset) and g.chance(0.5) else {}
            )
            y, at = g.add("MaxPool", [x], outputs=2, kernel_shape=kernel, strides=strides, **how, **more)
            g.add("Cast", [at], to=helper.np_dtype_to_tensor_dtype(g.numpy)) if g.chance(0.3) else None
        case _:
            more = {"ceil_mode": 1} if "ceil_mode" in attributes_of("AveragePool", g.opset) and g.chance(0.5) else {}
            y = g.add("AveragePool", [x], kernel_shape=kernel, strides=strides, **how, **more)
    if g.chance(0.6):
        y = g.add(g.pick(("Relu", "Neg", "Sigmoid")), [y])
    if g.chance(0.4):
        g.add("Mul", [y, g.weight((g.shape(y)[1], *[1] * len(sizes)))])


def resized(g: Grower) -> None:
    """Images resized to sizes, along some axes, by cubes, with antialiasing."""
    x = g.any(least=3, most=5)
    rank, sizes = len(g.shape(x)), g.shape(x)[2:]
    if g.opset < 11:
        raise RefusedError
    mode = g.pick(("nearest", "linear", "cubic"))
    how = {"coordinate_transformation_mode": g.pick(("asymmetric", "half_pixel", "pytorch_half_pixel"))}
    if mode == "nearest":
        how["nearest_mode"] = g.pick(("floor", "ceil", "round_prefer_floor"))
    empty = g.constant(np.zeros(0, np.float32))
    if g.opset >= 18 and g.chance(0.5):
        axes = list(range(2, rank))
        if g.chance(0.5):
            inputs = [x, "", g.constant(np.array([g.pick((1, 2, 0.5)) for _ in axes], np.float32))]
        else:
            inputs = [x, "", "", g.ints(*(n * g.pick((1, 2)) for n in sizes))]
        g.add("Resize", inputs, mode=mode, axes=axes, **how)
    elif g.chance(0.5):
        roi = empty if g.opset < 13 else ""
        none = empty if g.opset < 13 else ""
        g.add("Resize", [x, roi, none, g.ints(*g.shape(x)[:2], *(n * g.pick((1, 2)) for n in sizes))], mode=mode, **how)
    else:
        scales = g.constant(np.array([1, 1, *(g.pick((1, 2, 0.5)) for _ in sizes)], np.float32))
        g.add("Resize", [x, empty, scales], mode=mode, **how)


def computed(g: Grower) -> None:
    """Views and parts whose extents are computed from other values' shapes."""
    x = g.any(least=1, most=5)
    shape = g.add("Shape", [x])
    last = g.add("Gather", [shape, g.constant(np.array(len(g.shape(x)) - 1, np.int64))])
    half = g.add("Div", [last, g.constant(np.array(2, np.int64))])
    one = g.along("Unsqueeze", half, [0])
    match g.pick(range(6)):
        case 0 if g.opset >= 10:
            g.add("Slice", [x, g.ints(0), one, g.ints(-1)])
        case 1 if g.opset >= 10:
            g.add("Slice", [x, one, g.ints(2**31 - 1), g.ints(-1)])
        case 2:
            g.add("Reshape", [x, g.add("Concat", [g.ints(-1), g.along("Unsqueeze", last, [0])], axis=0)])
        case 3 if g.opset >= 11:
            y = g.add("Range", [g.constant(np.array(n, np.int64)) if n != 2 else last for n in (0, 2, 1)])
            y = g.add("Cast", [y], to=helper.np_dtype_to_tensor_dtype(g.numpy))
            g.add(g.pick(("Add", "Mul")), [x, y])
        case 4:
            y = g.add("Expand", [g.number(0.5), shape])
            g.add("Concat", [x, y], axis=-1 if g.opset >= 11 else len(g.shape(x)) - 1)
        case _:
            y = g.along("ReduceSum", x, [len(g.shape(x)) - 1], keepdims=1)
            g.add("Div", [y, g.add("Cast", [last], to=helper.np_dtype_to_tensor_dtype(g.numpy))])


def recurrent(g: Grower) -> None:
    """Layers of recurrent nets from either end, with states, lengths, other activations."""
    x = g.any(least=3, most=3)
    length, batch, width = g.shape(x)
    if not length:
        raise RefusedError
    op = g.pick(("LSTM", "GRU", "RNN"))
    gates, cells = {"LSTM": 4, "GRU": 3, "RNN": 1}[op], g.pick((2, 4))
    way = g.pick(("forward", "reverse", "bidirectional"))
    ways = 2 if way == "bidirectional" else 1
    inputs = [x, g.weight((ways, gates * cells, width), 0.1), g.weight((ways, gates * cells, cells), 0.1)]
    if g.chance(0.7):
        inputs.append(g.weight((ways, 2 * gates * cells), 0.1))
        if g.chance(0.5):
            lengths = g.constant(g.rng.integers(1, length + 1, batch).astype(np.int32)) if g.chance(0.5) else ""
            inputs += [lengths, g.weight((ways, batch, cells))]
    more: dict[str, Any] = {"linear_before_reset": 1} if op == "GRU" and g.chance(0.5) else {}
    outputs = g.pick((1, 2)) if op != "LSTM" else g.pick((1, 3))
    y = g.add(op, inputs, outputs=outputs, hidden_size=cells, direction=way, **more)
    y = y if isinstance(y, str) else y[0]
    if ways == 1 and g.chance(0.5):
        g.along("Squeeze", y, [1])
    else:
        g.add("Reshape", [g.add("Transpose", [y], perm=[0, 2, 1, 3]), g.ints(0, 0, -1)])


def attended(g: Grower) -> None:
    """Attention, rotary embeddings and caches as operators."""
    x = g.any(least=3, most=3)
    batch, length, width = g.shape(x)
    heads = g.pick([h for h in (1, 2, 4) if width % h == 0])
    match g.pick(range(4)):
        case 0 if g.opset >= 23:
            q, k, v = (g.add("MatMul", [x, g.weight((width, width), 0.1)]) for _ in range(3))
            more = g.pick(({}, {"is_causal": 1}, {"scale": 0.5}, {"softcap": 2.0}))
            mask = [g.weight((length, length))] if g.chance(0.4) else []
            g.add("Attention", [q, k, v, *mask], q_num_heads=heads, kv_num_heads=heads, **more)
        case 1 if g.opset >= 23 and width // heads % 2 == 0:
            size = width // heads // 2
            tables = [g.weight((length, size)) for _ in range(2)]
            at = g.constant(np.tile(np.arange(length), (batch, 1)).astype(np.int64))
            g.add("RotaryEmbedding", [x, *tables, at], num_heads=heads, interleaved=int(g.chance(0.5)))
        case 2 if g.opset >= 24:
            at = g.constant(np.zeros(batch, np.int64))
            g.add("TensorScatter", [x, g.weight((batch, 1, width)), at], axis=1)
        case _:
            q, k, v = (g.add("MatMul", [x, g.weight((width, width), 0.1)]) for _ in range(3))
            g.add("MultiHeadAttention", [q, k, v], domain="com.microsoft", num_heads=heads)


def sampled(g: Grower) -> None:
    """Points of images, patches put together, what is pooled put back, signals in frequencies."""
    match g.pick(range(8)):
        case 0 if g.opset >= 16:
            x = g.any(least=4, most=4)
            grid = g.constant((g.rng.integers(-15, 16, (g.shape(x)[0], 3, 2, 2)) / 16).astype(g.numpy))
            mode = g.pick(("bilinear" if g.opset < 20 else "linear", "nearest"))
            g.add("GridSample", [x, grid], mode=mode, padding_mode=g.pick(("zeros", "border")))
        case 1 if g.opset >= 18:
            x = g.any(least=1, most=4)
            g.add("CenterCropPad", [x, g.ints(*(g.pick((n, n + 1, max(n - 1, 1))) for n in g.shape(x)))])
        case 2 if g.opset >= 18:
            x = g.any(least=3, most=3)
            g.add("Col2Im", [x, g.ints(2, g.shape(x)[2] // 2), g.ints(1, 1)])
        case 3:
            x = g.any(least=4, most=4)
            y, at = g.add("MaxPool", [x], outputs=2, kernel_shape=[2, 2], strides=[2, 2])
            g.add("MaxUnpool", [y, at], kernel_shape=[2, 2], strides=[2, 2])
        case 4 if g.opset >= 10:
            x = g.any(least=2)
            if not g.shape(x)[0]:
                raise RefusedError
            lengths = g.constant(g.rng.integers(1, g.shape(x)[0] + 1, g.shape(x)[1]).astype(np.int64))
            g.add("ReverseSequence", [x, lengths], time_axis=0, batch_axis=1)
        case 5 if g.opset >= 17:
            x = g.any(least=2, most=2)
            y = g.along("Unsqueeze", x, [2])
            axis: dict[str, Any] = {"axis": 1} if g.opset < 20 else {}
            g.add("DFT", [y], **axis)
        case 6 if g.opset >= 10:
            x = g.any(least=4, most=4)
            boxes = g.constant(np.array([[0, 0, 2, 2], [1, 1, 3, 3]], g.numpy))
            at = g.constant(np.zeros(2, np.int64))
            g.add("RoiAlign", [x, boxes, at], output_height=2, output_width=2, sampling_ratio=2)
        case _:
            x = g.any()
            g.add("CastLike", [g.add("Cast", [x], to=TensorProto.FLOAT), x])


def chosen(g: Grower) -> None:
    """The greatest few, sorted or not; parts of a shape; counts of repeats."""
    x = g.any(least=1)
    axis = int(g.rng.integers(-len(g.shape(x)), len(g.shape(x))))
    n = g.shape(x)[axis]
    match g.pick(range(4)):
        case 0 if n:
            k = int(g.rng.integers(1, n + 1))
            values, at = g.add("TopK", [x, g.ints(k)], outputs=2, axis=axis, largest=int(g.chance(0.5)))
            g.add("GatherElements", [x, at], axis=axis) if g.chance(0.5) else g.add("Relu", [values])
        case 1 if g.opset >= 15:
            shape = g.add("Shape", [x], start=int(g.pick((0, -1))))
            g.add("Cast", [shape], to=helper.np_dtype_to_tensor_dtype(g.numpy))
        case 2 if g.opset >= 11:
            g.add("Unique", [x], outputs=4)
        case _:
            at = g.add("ArgMax", [x], axis=axis, keepdims=1)
            g.add("GatherElements", [x, at], axis=axis)


def blocks(g: Grower) -> None:
    """Channels to places in the other order; a training-time operator as it is served; a product with its first factor
    transposed; two products by letters."""
    match g.pick(range(5)):
        case 0 if g.opset >= 11:
            g.add("DepthToSpace", [g.any(least=4, most=4)], blocksize=2, mode="CRD")
        case 1 if g.opset >= 12:
            ratio = g.constant(np.array(0.5, g.numpy))
            g.add("Dropout", [g.any(), ratio, *([g.constant(np.array(False))] if g.chance(0.5) else [])])
        case 2:
            x = g.any(least=2, most=2)
            g.add("Gemm", [x, g.weight((g.shape(x)[0], 4), 0.2), g.weight((4,))], transA=1, alpha=g.pick((1.0, 0.5)))
        case 3 if g.opset >= 12:
            x = g.any(least=4, most=4)
            q = g.weight(g.shape(x), 0.2)
            g.add("Einsum", [x, q], equation=g.pick(("abcd,abed->abce", "abcd,abce->abde", "abcd,abcd->abc")))
        case _:
            x = g.any(least=3, most=3)
            g.add("MatMul", [x, g.add("Transpose", [x], perm=[0, 2, 1])])


NEWER: tuple[Callable[[Grower], None], ...] = (
    windows, windows, resized, computed, computed, recurrent, attended, sampled, chosen, blocks,
)  # fmt: skip
