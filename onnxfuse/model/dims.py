"""Extents that ONNX's own inference gives up: names are carried through the arithmetic that exporters write on shapes.

Exporters spell the target of a Reshape as `Concat(Gather(Shape(x), 0), ..., -1)`. Here each extent is a number times
names, so a -1 is a quotient in which names cancel, and an extent of which nothing is known still is the same one
wherever it comes back.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, numpy_helper

from onnxfuse.model.extents import Shape, broadcast, equal, exact, quotient, reduced, smaller, steps, times, where
from onnxfuse.model.inference import infer_node
from onnxfuse.model.types import INVENTED, Dim, ValueType, is_unknown, type_of, value_info, value_types, whole

Numbers = tuple[Dim, ...] | None
"""The elements of an integer vector or scalar; None where one is not known, and for a vector of which nothing is."""

LIMIT = 64
"""Extents of a shape, and elements of an integer vector that is followed: a few shapes behind one another."""

LONGEST_NAME = 1000
"""Letters of an extent that is put together here: a name times itself is twice as long at each node."""

KEEPS = frozenset({
    "Cast", "Identity", "Softmax", "LogSoftmax", "LayerNormalization", "Relu", "Erf", "Sqrt", "Tanh", "Neg", "Not",
    "IsNaN", "Gelu", "Sigmoid", "Reciprocal", "Dropout", "Clip", "Exp", "Abs", "Trilu", "RMSNormalization", "Sin",
    "Cos",
})  # fmt: skip
"""Operators whose first output has the shape of the first input."""

BROADCASTS = frozenset({
    "Add", "Sub", "Mul", "Div", "Pow", "Min", "Max", "Where", "Equal", "Less", "Greater", "LessOrEqual",
    "GreaterOrEqual", "And", "Or",
})  # fmt: skip


@dataclass
class _State:
    opset: int
    shapes: dict[str, Shape]
    numbers: dict[str, Numbers] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)

    def ints(self, name: str) -> list[int] | None:
        """Return the constant behind a name as a flat list."""
        array = self.constants.get(name)
        return None if array is None else [int(v) for v in array.reshape(-1)]


def rename(graph: onnx.GraphProto) -> None:
    """Call the extents that `graph` declares by what is left of their expressions: one extent has one name."""
    for value in (*graph.value_info, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            left = reduced(dim.dim_param) if "//" in dim.dim_param else ""
            number = whole(left)
            if number is not None:
                dim.dim_value = number
            elif left:
                dim.dim_param = left


def refine(model: onnx.ModelProto) -> None:
    """Fill in, for the main graph of `model`, extents that `onnx.shape_inference` left open in `value_info`."""
    graph = model.graph
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    types = value_types(graph)
    state = _State(int(opset), {name: t.shape for name, t in types.items()})
    for tensor in graph.initializer:
        _remember(state, tensor.name, tensor)
    found: dict[str, ValueType] = {}
    more: set[str] = set()

    def learn(names: Sequence[str], told: Sequence[Shape]) -> None:
        for name, shape in zip(names, told, strict=False):
            if not name:
                continue
            known = state.shapes.get(name)
            if not _open(known):
                continue
            merged = _merged(name, known, shape)
            if merged is not None and merged != known and name in types:
                found[name] = ValueType(types[name].dtype, merged)
            if _open(known) > _open(merged):
                more.add(name)
            state.shapes[name] = merged

    for node in graph.node:
        learn(node.output, _told(state, node))
        if not more.isdisjoint(node.input) and any(_open(state.shapes.get(v)) for v in node.output):
            learn(node.output, _asked(state, node, types))
    _write(graph, found)


def _open(shape: Shape) -> float:
    """Return how many extents are not known."""
    return math.inf if shape is None else sum(map(is_unknown, shape))


def _asked(state: _State, node: NodeProto, types: Mapping[str, ValueType]) -> Sequence[Shape]:
    """Return what ONNX says of a node's outputs by itself, now that more is known of what the node reads.

    Its inference over the whole graph went on with nothing where an extent was found here alone.
    """
    if node.domain not in ("", "ai.onnx"):
        return []
    given = {v: value_info(v, ValueType(types[v].dtype, state.shapes[v])).type
             for v in node.input if v in types and v in state.shapes}  # fmt: skip
    numbers = {v: numpy_helper.from_array(state.constants[v]) for v in node.input if v in state.constants}
    told = infer_node(node, given, numbers, state.opset)
    return [type_of(told[v]).shape if v in told else None for v in node.output]


def _told(state: _State, node: NodeProto) -> Sequence[Shape]:
    """Return the shapes of the outputs, and keep the integers; nothing is said of a node that its inputs do not fit.

    ONNX's inference is silent there, too. Such a node does not run; in a branch that is never taken it need not.
    """
    try:
        shapes = [_bounded(shape) for shape in _outputs(state, node)]
        if len(node.output) == 1 and node.output[0]:
            state.numbers[node.output[0]] = _bounded(_numbers(state, node))
    except (IndexError, ValueError, TypeError, ZeroDivisionError, StopIteration):
        return []
    return shapes


def _bounded(dims: Shape) -> Shape:
    """Return what may be a shape or a part of one: each node puts together what the nodes before it did."""
    if dims is None or len(dims) > LIMIT:
        return None
    return tuple(
        d if (len(d) <= LONGEST_NAME if isinstance(d, str) else d is not None and abs(d) < 2**63) else None
        for d in dims
    )


def _remember(state: _State, name: str, tensor: onnx.TensorProto) -> None:
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        pass  # its numbers were left in their file
    elif tensor.data_type in (onnx.TensorProto.INT64, onnx.TensorProto.INT32) and int(np.prod(tensor.dims)) <= LIMIT:
        array = numpy_helper.to_array(tensor)
        state.constants[name] = array
        state.numbers[name] = tuple(int(v) for v in array.reshape(-1))
    state.shapes[name] = tuple(tensor.dims)


def _write(graph: onnx.GraphProto, found: dict[str, ValueType]) -> None:
    for info in (*graph.value_info, *graph.output):
        if info.name in found:
            shape = found[info.name].shape
            assert shape is not None
            info.CopyFrom(onnx.helper.make_tensor_value_info(info.name, found[info.name].dtype, shape))


def _merged(name: str, known: Shape, own: Shape) -> Shape:
    if known is None:
        known = None if own is None else tuple(None for _ in own)
    if known is None:
        return None
    if own is None or len(own) != len(known):
        own = tuple(None for _ in known)
    return tuple(
        a if a is not None and not is_unknown(a) else b if b is not None else a or f"{INVENTED}{name}.{axis}"
        for axis, (a, b) in enumerate(zip(known, own, strict=True))
    )


# ---- shapes


def _outputs(state: _State, node: NodeProto) -> Sequence[Shape]:
    shapes = [state.shapes.get(v) for v in node.input]
    if node.domain not in ("", "ai.onnx"):
        return []
    if node.op_type == "Constant":
        for attribute in node.attribute:
            if attribute.name == "value":
                _remember(state, node.output[0], attribute.t)
            elif attribute.name in ("value_int", "value_ints"):
                array = np.asarray(onnx.helper.get_attribute_value(attribute), np.int64)
                _remember(state, node.output[0], numpy_helper.from_array(array))
        return []
    if node.op_type in KEEPS:
        return shapes[:1]
    if node.op_type in BROADCASTS:
        return [broadcast(shapes)]
    shape_of = _SHAPES.get(node.op_type)
    return [] if shape_of is None else shape_of(state, node, shapes)


def _attribute(node: NodeProto, name: str, default: object = None) -> object:
    return next((onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


def _axes(state: _State, node: NodeProto, rank: int) -> list[int] | None:
    found = _attribute(node, "axes")
    axes = list(found) if isinstance(found, list) else state.ints(node.input[1]) if len(node.input) > 1 else None
    return None if axes is None else [a % rank for a in axes]


def _transpose(state: _State, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    shape, perm = shapes[0], _attribute(node, "perm")
    if shape is None:
        return []
    return [tuple(shape[i] for i in perm) if isinstance(perm, list) else shape[::-1]]


def _matmul(state: _State, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    a, b = shapes
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        return []
    batch = broadcast([a[:-2], b[:-2]])
    return [] if batch is None else [(*batch, a[-2], b[-1])]


def _gemm(state: _State, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    a, b = shapes[:2]
    if a is None or b is None:
        return []
    return [(a[1 if _attribute(node, "transA", 0) else 0], b[0 if _attribute(node, "transB", 0) else 1])]


def _reshape(state: _State, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    source, target = shapes[0], state.numbers.get(node.input[1]) if len(node.input) > 1 else None
    if target is None:
        return []
    copies = not _attribute(node, "allowzero", 0)
    whole: list[Dim] = []
    for axis, extent in enumerate(target):
        copied = copies and extent == 0
        whole.append((source[axis] if source is not None and axis < len(source) else None) if copied else extent)
    if -1 in whole:
        rest = [d for d in whole if d != -1]
        whole[whole.index(-1)] = quotient(source, rest)
    return [tuple(whole)]


def _flatten(state: _State, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    if shapes[0] is None:
        return []
    axis = int(str(_attribute(node, "axis", 1)))
    return [(quotient(shapes[0][:axis], ()), quotient(shapes[0][axis:], ()))]


def _unsqueeze(state: _State, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    if shapes[0] is None:
        return []
    found = _attribute(node, "axes")
    axes = found if isinstance(found, list) else state.ints(node.input[1])
    if axes is None:
        return []
    rank = len(shapes[0]) + len(axes)
    at = {a % rank for a in axes}
    rest = iter(shapes[0])
    return [tuple(1 if i in at else next(rest) for i in range(rank))]


def _squeeze(state: _State, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    axes = None if shapes[0] is None else _axes(state, node, len(shapes[0]))
    if shapes[0] is None or axes is None:
        return []
    return [tuple(d for i, d in enumerate(shapes[0]) if i not in axes)]


def _split(state: _State, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    if shapes[0] is None:
        return []
    axis = int(str(_attribute(node, "axis", 0))) % len(shapes[0])
    written = _attribute(node, "split")
    sizes = written if isinstance(written, list) else state.ints(node.input[1]) if len(node.input) > 1 else None
    parts = sizes if sizes is not None and len(sizes) == len(node.output) else [None] * len(node.output)
    return [tuple(part if i == axis else d for i, d in enumerate(shapes[0])) for part in parts]


def _slice(state: _State, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    axes = state.ints(node.input[3]) if len(node.input) > 3 and shapes[0] is not None else None
    if shapes[0] is None or axes is None:
        return []
    cut = {a % len(shapes[0]) for a in axes}
    first = _first(state, node)
    return [tuple(smaller(d, first) if i in cut else d for i, d in enumerate(shapes[0]))]


def _first(state: _State, node: NodeProto) -> Dim:
    """Return the number of elements that a Slice of one axis takes where there are so many, from the first on."""
    start, end = (state.numbers.get(v) for v in node.input[1:3])
    step = state.numbers.get(node.input[4]) if len(node.input) > 4 else (1,)
    return end[0] if end is not None and len(end) == 1 and start == (0,) and step == (1,) else None


def _concat(state: _State, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    known = [s for s in shapes if s is not None]
    if not known:
        return []
    axis = int(str(_attribute(node, "axis", 0))) % len(known[0])
    return [tuple(None if i == axis else d for i, d in enumerate(known[0]))]


def _reduce(state: _State, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    axes = None if shapes[0] is None else _axes(state, node, len(shapes[0]))
    if shapes[0] is None or axes is None:
        return []
    keep = _attribute(node, "keepdims", 1) == 1  # as ONNX Runtime has it, and ONNX's inference
    return [tuple(1 if i in axes else d for i, d in enumerate(shapes[0]) if keep or i not in axes)]


def _range(state: _State, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    start, limit, delta = (state.numbers.get(v) for v in node.input)
    return [limit] if start == (0,) and delta == (1,) and limit is not None and limit[0] != -1 else []


def _gather(state: _State, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    data, indices = shapes
    if data is None or indices is None:
        return []
    axis = int(str(_attribute(node, "axis", 0))) % max(len(data), 1)
    return [(*data[:axis], *indices, *data[axis + 1 :])]


def _filled(state: _State, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    return [state.numbers.get(node.input[0])]


def _expand(state: _State, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    return [broadcast([shapes[0], state.numbers.get(node.input[1])])]


def _tile(state: _State, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    shape, repeats = shapes[0], state.numbers.get(node.input[1])
    if shape is None or repeats is None:
        return []
    return [tuple(times(*both) for both in zip(shape, repeats, strict=True))]


def _slide(state: _State, node: NodeProto, shapes: list[Shape]) -> list[Shape]:
    """The places of a window that slides over images: named extents give named ones, the same from the same."""
    image, weight = shapes[0], shapes[1] if node.op_type == "Conv" else None
    kernel: Any = _attribute(node, "kernel_shape") or (None if weight is None else weight[2:])
    if image is None or kernel is None or len(image) != len(kernel) + 2 or _attribute(node, "ceil_mode"):
        return [None]
    axes = len(kernel)
    strides: Any = _attribute(node, "strides", [1] * axes)
    dilations: Any = _attribute(node, "dilations", [1] * axes)
    pads: Any = _attribute(node, "pads", [0] * 2 * axes)
    auto_pad = _attribute(node, "auto_pad", b"NOTSET")
    places: list[Dim] = []
    for axis, (extent, size) in enumerate(zip(image[2:], kernel, strict=True)):
        if not isinstance(size, int) or not isinstance(extent, str) or is_unknown(extent):
            places.append(None)
        elif auto_pad in (b"SAME_UPPER", b"SAME_LOWER"):
            places.append(extent if strides[axis] == 1 else f"ceil({extent}/{strides[axis]})")
        else:
            padding = pads[axis] + pads[axis + axes] if auto_pad == b"NOTSET" else 0
            places.append(steps(extent, padding - dilations[axis] * (size - 1) - 1, strides[axis]))
    channels = image[1] if node.op_type != "Conv" else None if weight is None else weight[0]
    return [(image[0], channels, *places)]


_SHAPES: dict[str, Callable[[_State, NodeProto, list[Shape]], list[Shape]]] = {
    "Transpose": _transpose, "MatMul": _matmul, "Gemm": _gemm, "Reshape": _reshape, "Flatten": _flatten,
    "Unsqueeze": _unsqueeze, "Squeeze": _squeeze, "Split": _split, "Slice": _slice, "Concat": _concat,
    "Gather": _gather, "ConstantOfShape": _filled, "Expand": _expand, "Tile": _tile,
    "ReduceMean": _reduce, "ReduceSum": _reduce, "ReduceMax": _reduce, "Range": _range,
    "Conv": _slide, "MaxPool": _slide, "AveragePool": _slide,
}  # fmt: skip


# ---- integers computed from shapes


def _numbers(state: _State, node: NodeProto) -> Numbers:
    if node.op_type == "Constant":
        return state.numbers.get(node.output[0])
    if node.op_type == "Shape":
        shape, end = state.shapes.get(node.input[0]), _attribute(node, "end")
        part = slice(int(str(_attribute(node, "start", 0))), None if end is None else int(str(end)))
        return None if shape is None else shape[part]
    given = [state.numbers.get(v) for v in node.input if v]
    if not given or given[0] is None:
        return None
    first = given[0]
    if node.op_type in ("Identity", "Cast", "Unsqueeze", "Squeeze", "Reshape"):
        return first
    if node.op_type == "Concat":
        return None if any(g is None for g in given) else tuple(d for g in given for d in g or ())
    if node.op_type == "Gather":
        indices = state.ints(node.input[1])
        inside = indices is not None and all(-len(first) <= i < len(first) for i in indices)
        return tuple(first[i] for i in indices or ()) if inside else None
    if node.op_type == "Slice" and state.opset >= 10:
        parts = [state.ints(v) for v in node.input[1:] if v]
        if any(p is None or len(p) != 1 for p in parts):
            return None
        start, end, step = (parts[i] if len(parts) > i else None for i in (0, 1, 3))
        return first[slice((start or [0])[0], (end or [LIMIT])[0], (step or [1])[0])]
    if node.op_type == "ConstantOfShape" and isinstance(first[0] if first else None, int) and len(first) == 1:
        value = _attribute(node, "value")
        fill = int(numpy_helper.to_array(value).reshape(-1)[0]) if isinstance(value, onnx.TensorProto) else 0
        return (fill,) * int(first[0] or 0) if int(first[0] or 0) <= LIMIT else None
    if node.op_type in _ELEMENTS:
        return _elementwise(node.op_type, given)
    return None


def _elementwise(op: str, given: list[Numbers]) -> Numbers:
    lists = [g for g in given if g is not None]
    width = max(len(g) for g in lists)
    if len(lists) != len(given) or any(len(g) not in (1, width) for g in lists):
        return None
    rows = zip(*(g if len(g) == width else g * width for g in lists), strict=True)
    return tuple(_ELEMENTS[op](*row) for row in rows)


_ELEMENTS: dict[str, Callable[..., Dim]] = {"Mul": times, "Div": exact, "Equal": equal, "Where": where}
