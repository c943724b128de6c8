"""A body around a convolution, pooling or resizing taken apart: its window and layout, and the pointwise rest."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx import FunctionProto, NodeProto, TensorProto

from onnxfuse.kernels.ir import pointwise_ops, types
from onnxfuse.kernels.ir import program as ir
from onnxfuse.kernels.ir.program import Program
from onnxfuse.kernels.ir.strides import Shape
from onnxfuse.kernels.ir.types import UnsupportedError
from onnxfuse.kernels.templates.conv.window import Pair, Places, Sliding
from onnxfuse.model.fused import FusedOp

TYPES = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT)
"""Element types that are convolved here."""
MOST_TAPS = 81
"""Elements of a window: each stands in the program as many times as a thread has outputs."""


@dataclass(frozen=True)
class Pooling:
    """What a window without weights makes of what it sees."""

    mean: bool
    """The mean; else the greatest element."""
    kernel: Pair
    padded: bool
    """Whether a mean counts padding as zeros; else it is over what lies inside the image."""


CENTRES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
"""Where the pixels of a resized image lie in the image that it was made from (ONNX's Resize) that are known here."""


@dataclass(frozen=True)
class Resizing:
    """Rows and columns between those that are there, interpolated linearly."""

    centre: str
    """One of CENTRES."""
    scales: tuple[float, float] | None
    sizes: Pair | None
    """Rows and columns, where no scales are told."""

    def over(self, image: Pair) -> Pair:
        """Return rows and columns of the resized image."""
        if self.sizes is not None:
            return self.sizes
        assert self.scales is not None
        return math.floor(image[0] * self.scales[0]), math.floor(image[1] * self.scales[1])

    def line(self, axis: int, size: int, out: int) -> tuple[float, float]:
        """Return (step, start): pixel i along an axis lies at i * step + start of the image."""
        scale = out / size if self.scales is None else self.scales[axis]
        match self.centre:
            case "align_corners":
                return ((size - 1) / (out - 1) if out > 1 else 0.0), 0.0
            case "asymmetric":
                return 1 / scale, 0.0
            case "pytorch_half_pixel" if out == 1:
                return 0.0, 0.0
            case _:
                return 1 / scale, 0.5 / scale - 0.5


@dataclass(frozen=True)
class Mean:
    """The mean of an output over the places of each image, as an output of its own."""

    position: int
    """Among the op's outputs."""
    of: int
    """Of which output of the rest."""
    keepdims: bool
    """Whether it is [batch, 1, 1, channels]; else [batch, channels]."""


@dataclass(frozen=True)
class Convolution:
    """A body taken apart."""

    x: int
    """Position of the image among the op's inputs."""
    w: int
    """Position of the weights; of a pooling -1."""
    images_last: bool
    """Whether images lie [N, ..., C]; else [N, C, ...]."""
    channels_last: bool
    """Whether results do."""
    packing: tuple[int, ...]
    """How the weights are turned to [F, C, ...] as ONNX has them, a permutation; empty where they lie so."""
    rank: int
    """Dimensions of the images, 3 or 4; 0 where the body does not tell."""
    groups: int
    sliding: Sliding
    """An image of one dimension is one row."""
    operands: tuple[int, ...]
    """Positions of the rest's other inputs among the op's inputs."""
    program: Program
    """The pointwise rest; its first input is what the convolution gives."""
    pooling: Pooling | None = None
    resizing: Resizing | None = None
    mean: Mean | None = None

    @property
    def packed(self) -> bool:
        """Whether weights lie [..., C, 1], as the depthwise template likes them."""
        return self.packing in [by_pixel for _, by_pixel, _ in LAST.values()]


@dataclass(frozen=True)
class Problem:
    """The size of a convolution."""

    places: Places
    full: Shape
    """Shape of the outputs."""


def take_apart(op: FusedOp) -> Convolution:
    """Return the body of `op` taken apart; raises `UnsupportedError` with the reason where no kernel fits it."""
    return _take_apart(op.inputs, op.outputs, op.body.SerializeToString(deterministic=True))


@lru_cache(maxsize=1024)
def _take_apart(inputs: tuple[int, ...], outputs: tuple[int, ...], text: bytes) -> Convolution:
    function = FunctionProto.FromString(text)
    node = _only_window(function)
    anchor = _anchor(function, node)
    names = list(function.input)
    if inputs[anchor.x] not in TYPES or (anchor.w >= 0 and inputs[anchor.x] != inputs[anchor.w]):
        by = f" by {types.name(inputs[anchor.w])}" if anchor.w >= 0 else ""
        raise UnsupportedError(f"a {_KIND[node.op_type]} of {types.name(inputs[anchor.x])}{by}")
    averaging = _averaging(function, anchor)
    results = [o for o in function.output if averaging is None or o not in averaging.output]
    rest = FunctionProto(domain=function.domain, name=function.name)
    kept = [n for n in function.node if not set(n.output) & anchor.values and n is not averaging]
    axes = set() if averaging is None else set(averaging.input[1:]) - {i for n in kept for i in n.input}
    rest.node.extend(n for n in kept if not set(n.output) & axes)
    read = {i for n in rest.node for i in n.input}
    inner = (read | set(results)) & (anchor.values - {anchor.result})
    if inner:
        raise UnsupportedError(f"'{min(inner)}', inside the convolution, is read elsewhere")
    operands = tuple(i for i, name in enumerate(names) if name in read)
    rest.input.extend([anchor.result, *(names[i] for i in operands)])
    rest.output.extend(results)
    rest.opset_import.extend(function.opset_import)
    mean = None if averaging is None else _mean(function, averaging, results)
    stored = tuple(t for n, t in enumerate(outputs) if mean is None or n != mean.position)
    made = FusedOp("rest", "", "pointwise", (inputs[anchor.x], *(inputs[i] for i in operands)), stored, rest)
    program = ir.program(made, pointwise_ops.HANDLERS)
    if program.reductions():
        raise UnsupportedError("a reduction after a convolution")
    if any(0 not in _inputs_of(program, o.value) for o in program.outputs):
        raise UnsupportedError("an output that does not read the convolution")
    facts = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    rank = anchor.rank or _rank(facts)
    return Convolution(
        anchor.x, anchor.w, anchor.images_last, anchor.channels_last, anchor.packing, rank, facts.get("group", 1),
        _sliding(facts), operands, program, _pooling(node.op_type, facts) if node.op_type.endswith("Pool") else None,
        _resizing(function, node, facts) if node.op_type == "Resize" else None, mean,
    )  # fmt: skip


@dataclass(frozen=True)
class _Anchor:
    x: int
    w: int
    images_last: bool
    channels_last: bool
    packing: tuple[int, ...]
    rank: int
    values: set[str]
    """What its nodes compute."""
    result: str


def _averaging(function: FunctionProto, anchor: _Anchor) -> NodeProto | None:
    """Return the node that takes the mean of an output over all its places, None where there is none."""
    if not anchor.channels_last or anchor.rank != 4:
        return None
    nodes: list[NodeProto] = list(function.node)
    for node in nodes:
        if node.op_type == "ReduceMean" and node.domain == "" and node.input[0] in function.output:
            facts = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            known = {n.output[0]: _facts_of(n) for n in nodes if n.op_type == "Constant"}
            axes = facts.get("axes") or known.get(node.input[1] if len(node.input) > 1 else "", [])
            last = all(node.output[0] not in n.input for n in nodes)
            if sorted(int(axis) % 4 for axis in axes) == [1, 2] and last:
                return node
    return None


def _mean(function: FunctionProto, node: NodeProto, results: Sequence[str]) -> Mean:
    keepdims = next((a.i for a in node.attribute if a.name == "keepdims"), 1)
    return Mean(list(function.output).index(node.output[0]), results.index(node.input[0]), keepdims == 1)


_KIND = {"Conv": "convolution", "MaxPool": "pooling", "AveragePool": "pooling", "Resize": "resizing"}


def _only_window(function: FunctionProto) -> NodeProto:
    found: list[NodeProto] = [n for n in function.node if n.op_type in _KIND and n.domain == ""]
    if len(found) != 1:
        raise UnsupportedError(f"{len(found)} convolutions in the body, expected one")
    if found[0].op_type == "Conv" and len([i for i in found[0].input if i]) != 2:
        raise UnsupportedError("a Conv with a bias of its own")
    if len([o for o in found[0].output if o]) != 1:
        raise UnsupportedError("a pooling that tells where its elements were")
    return found[0]


LAST: dict[int, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    4: ((0, 3, 1, 2), (2, 3, 0, 1), (0, 2, 3, 1)), 3: ((0, 2, 1), (1, 2, 0), (0, 2, 1)),
}  # fmt: skip
"""How images with their channels last, and weights packed by pixel, are transposed, and the result back; by rank."""


def _anchor(function: FunctionProto, conv: NodeProto) -> _Anchor:
    """Return the convolution with the transposes around it, if there are any: channels first inside, last outside.

    Images may be turned twice: channels first in memory, where the result alone has its channels last.
    """
    names = list(function.input)
    data = conv.input[: 2 if conv.op_type == "Conv" else 1]
    producers = {o: n for n in function.node for o in n.output}
    chains = [_turns(producers, i) for i in data]
    read = [n[0].input[0] if n else i for n, i in zip(chains, data, strict=True)]
    if any(i not in names for i in read):
        raise UnsupportedError("a convolution of values that the body computes")
    x, w = (*(names.index(i) for i in read), -1)[:2]
    images, filters = (*chains, [])[:2]
    if not images and not filters:
        rank = 0 if conv.op_type == "Conv" else 4
        return _Anchor(
            x, w, False, False, (), rank, {conv.output[0], *filter(None, conv.input[len(data) :])}, conv.output[0]
        )
    after = [n for n in function.node if conv.output[0] in n.input]
    turns, packings, backs = ([_perm(n) for n in nodes] for nodes in (images, filters, after))
    for rank, (first, by_pixel, last) in LAST.items():
        if turns in ([first], [last, first]) and packings in ([], [by_pixel], [first]) and backs == [last]:
            values = {o for n in (*images, *filters, conv, *after) for o in n.output}
            values |= {i for i in conv.input[len(data) :] if i}
            packing = packings[0] if packings else ()
            return _Anchor(x, w, len(turns) == 1, True, packing, rank, values, after[0].output[0])
    raise UnsupportedError(f"a convolution between transposes by {[*turns, *packings]} and {backs}")


def _turns(producers: Mapping[str, NodeProto], name: str) -> list[NodeProto]:
    """Return the Transposes that a value comes through, the last of them at the end."""
    found: list[NodeProto] = []
    while name in producers and producers[name].op_type == "Transpose":
        found.insert(0, producers[name])
        name = producers[name].input[0]
    return found


def _perm(node: NodeProto) -> tuple[int, ...]:
    return tuple(int(axis) for a in node.attribute if a.name == "perm" for axis in a.ints)


def _inputs_of(program: Program, index: int) -> set[int]:
    """Return the positions of the inputs that a value is computed from."""
    seen, waiting, found = set[int](), [index], set[int]()
    while waiting:
        value = program.values[waiting.pop()]
        if isinstance(value, ir.Input):
            found.add(value.index)
        fresh = set(ir.arguments(value)) - seen
        seen |= fresh
        waiting.extend(fresh)
    return found


def _rank(facts: Mapping[str, Sequence[int]]) -> int:
    """Return the rank of the images as the attributes tell it, 0 where they do not."""
    sizes = {len(facts[k]) // (2 if k == "pads" else 1) for k in _LISTS if k in facts}
    if len(sizes) > 1 or not sizes <= {1, 2}:
        raise UnsupportedError(f"a convolution over {', '.join(map(str, sorted(sizes)))} dimensions, expected 1 or 2")
    return sizes.pop() + 2 if sizes else 0


def _pooling(kind: str, facts: Mapping[str, Any]) -> Pooling:
    padded = bool(facts.get("count_include_pad", 0))
    if facts.get("auto_pad", b"NOTSET") != b"NOTSET" and any(d != 1 for d in facts.get("dilations", ())):
        # ONNX Runtime 1.31 pads as if the window had no gaps, onnx's shape inference as it is.
        raise UnsupportedError("a pooling with dilations and pads that follow from the size")
    if kind == "AveragePool" and padded and facts.get("ceil_mode", 0):
        raise UnsupportedError("a mean over padding in windows that pass it")
    kernel = _pair(facts["kernel_shape"], 1)
    if math.prod(kernel) > MOST_TAPS:
        raise UnsupportedError(f"a window of {math.prod(kernel)} elements, expected at most {MOST_TAPS}")
    return Pooling(kind == "AveragePool", kernel, padded)


def _resizing(function: FunctionProto, node: NodeProto, facts: Mapping[str, Any]) -> Resizing:
    centre = facts.get("coordinate_transformation_mode", b"half_pixel").decode()
    plain = facts.get("mode", b"nearest") == b"linear" and centre in CENTRES
    if not plain or facts.get("axes") or facts.get("antialias") or facts.get("exclude_outside"):
        raise UnsupportedError(f"a resizing of mode {facts.get('mode', b'nearest').decode()}, {centre}")
    if facts.get("keep_aspect_ratio_policy", b"stretch") != b"stretch":
        raise UnsupportedError("a resizing that keeps the aspect ratio")
    known = {n.output[0]: _facts_of(n) for n in function.node if n.op_type == "Constant"}
    scales, sizes = ([float(v) for v in known.get(node.input[i], ())] if len(node.input) > i else [] for i in (2, 3))
    if sorted((len(scales), len(sizes))) != [0, 4] or (scales and scales[:2] != [1, 1]):
        raise UnsupportedError("a resizing by scales that are not known, or of batch and channels")
    if scales:
        return Resizing(centre, (scales[2], scales[3]), None)
    return Resizing(centre, None, (int(sizes[2]), int(sizes[3])))


def _facts_of(constant: NodeProto) -> list[float]:
    """Return the elements of a Constant node."""
    value = onnx.helper.get_attribute_value(constant.attribute[0])
    array = onnx.numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value
    return [float(v) for v in np.asarray(array).reshape(-1)]


_LISTS = ("kernel_shape", "strides", "dilations", "pads")


def _sliding(facts: Mapping[str, Any]) -> Sliding:
    pads = list(facts.get("pads", ()))
    half = len(pads) // 2
    auto = facts.get("auto_pad", b"NOTSET")
    return Sliding(
        strides=_pair(facts.get("strides", ()), 1),
        dilations=_pair(facts.get("dilations", ()), 1),
        pads=(*_pair(pads[:half], 0), *_pair(pads[half:], 0)),
        auto_pad=auto.decode() if isinstance(auto, bytes) else str(auto),
        ceil=bool(facts.get("ceil_mode", 0)),
    )


def _pair(values: Sequence[int], default: int) -> Pair:
    """Return a value for rows and one for columns; one alone is for the columns of images of one row."""
    full = [default] * (2 - len(values)) + [int(v) for v in values]
    return full[0], full[1]


# ---- shapes


def elements(op: FusedOp, size: Problem) -> int:
    """Return the elements of an output, or of the larger one that it is a part of."""
    count = math.prod(size.full)
    return count if op.slot is None or not count else count // size.full[-1] * op.slot.total


def problem(parts: Convolution, input_shapes: tuple[Shape, ...]) -> Problem:
    """Return the size of the convolution for these shapes of the op's inputs."""
    x = input_shapes[parts.x]
    if parts.pooling is not None:
        return _pooled(parts, parts.pooling, x)
    if parts.resizing is not None:
        return _resized(parts, parts.resizing, x)
    w = input_shapes[parts.w]
    if len(x) != len(w) or len(x) not in (3, 4) or parts.rank not in (0, len(x)):
        raise UnsupportedError(f"images of shape {list(x)} and weights of shape {list(w)}, expected rank 3 or 4")
    space, channels = (x[1:-1], x[-1]) if parts.images_last else (x[2:], x[1])
    outputs, each, *taps = (w[axis] for axis in parts.packing) if parts.packing else w
    if each * parts.groups != channels or outputs % max(parts.groups, 1):
        raise UnsupportedError(f"{parts.groups} groups, {channels} channels to {outputs}, {each} of them to a filter")
    places = parts.sliding.over((x[0], *_pair(space, 1), channels), _pair(taps, 1))
    extents = places.out[2 - len(space) :]
    full = (x[0], *extents, outputs) if parts.channels_last else (x[0], outputs, *extents)
    return Problem(places, full)


def _pooled(parts: Convolution, pooling: Pooling, x: Shape) -> Problem:
    batch, height, width, channels = _images(parts, x)
    places = parts.sliding.over((batch, height, width, channels), pooling.kernel)
    return Problem(places, (batch, *places.out, channels) if parts.channels_last else (batch, channels, *places.out))


def _images(parts: Convolution, x: Shape) -> tuple[int, int, int, int]:
    """Return batch, height, width and channels."""
    if len(x) != 4:
        raise UnsupportedError(f"images of shape {list(x)}, expected rank 4")
    batch, height, width, channels = x if parts.images_last else (x[0], x[2], x[3], x[1])
    return batch, height, width, channels


def _resized(parts: Convolution, resizing: Resizing, x: Shape) -> Problem:
    batch, height, width, channels = _images(parts, x)
    rows, columns = resizing.over((height, width))
    # As many windows of one pixel as there are pixels to make.
    end = rows - height, columns - width
    return Problem(
        Places((batch, height, width, channels), (1, 1), (1, 1), (1, 1), (0, 0), end),
        (batch, rows, columns, channels) if parts.channels_last else (batch, channels, rows, columns),
    )


def output_shapes(op: FusedOp, input_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Return the shape of each output of `op` for these shapes of its inputs."""
    parts = take_apart(op)
    full = problem(parts, input_shapes).full
    shapes = parts.program.shapes((full, *(input_shapes[i] for i in parts.operands)))
    if any(shapes[o.value] != full for o in parts.program.outputs):
        raise UnsupportedError("an output of another shape than the convolution")
    made = [full for _ in op.outputs]
    if parts.mean is not None:
        if 0 in full[1:3]:
            raise UnsupportedError("a mean over no places")
        made[parts.mean.position] = (full[0], 1, 1, full[3]) if parts.mean.keepdims else (full[0], full[3])
    return tuple(made)
