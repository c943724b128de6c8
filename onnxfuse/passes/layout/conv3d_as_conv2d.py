"""Rewrite a 3-D convolution of few channels as a 2-D one: depth slices in its window become channels."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from onnxfuse import ops
from onnxfuse.graph.channels import FIRST, LAST
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model import schema
from onnxfuse.passes.layout.writer import ChannelsLastWriter, integers
from onnxfuse.shapes.types import Dim, ValueType

FEW, SEEN, TERMS = 4, 15, 640
"""Maximum channels of a volume, channels of all depth slices in a window, and terms of a sum, as the rule `direct`
accepts them.

Three channels fill none of the library's steps of eight: R3D-18's first layer, 8 x 3x16x112x112 to 64, 3x7x7, float16,
H100: 512 us, and 78 to transpose the clip.
"""


def has_few_channels(graph: Graph, node: Node, attributes: Mapping[str, schema.AttributeValue]) -> bool:
    """Return whether a volume convolution has few channels, and static, positive extents except for the batch."""
    x, w, y = (graph.type(v).shape or () for v in (node.inputs[0], node.inputs[1], node.outputs[0]))
    channels, layers, *window = (n for n in w[1:] if isinstance(n, int)) if len(w) == 5 else (0, 0)
    static = all(len(s) == 5 and all(isinstance(n, int) and n > 0 for n in s[1:]) for s in (x, w, y))
    written = all(integers(attributes, name) for name in ("kernel_shape", "strides", "dilations", "pads"))
    whole = attributes.get("group", 1) == 1 and attributes.get("auto_pad") in (None, b"NOTSET")
    fits = 0 < channels <= FEW and channels * layers <= SEEN and channels * layers * prod(window) <= TERMS
    return static and written and whole and fits and graph.opset >= 13


def write(to: ChannelsLastWriter, node: Node, weight: np.ndarray, product: str) -> None:
    """Add the nodes from channels-last volumes to `product`: [batch, depth, height, width, filters]."""
    (x, w), y, attributes = node.inputs[:2], node.outputs[0], to.graph.attributes(node)
    batch, channels, _, *image = to.graph.type(x).shape or ()
    depth, *spatial = (to.graph.type(y).shape or ())[2:]
    filters, _, layers, *window = weight.shape
    steps, gaps, pads = (integers(attributes, name) for name in ("strides", "dilations", "pads"))
    assert isinstance(channels, int)
    assert isinstance(depth, int)
    seen = channels * layers

    def add(what: str, extents: Sequence[Dim], op: str, *inputs: str, **operands: Any) -> str:
        type_ = ValueType(to.graph.type(x).dtype, tuple(extents))
        return to.add(op, *inputs, hint=f"{y}.{what}", type_=type_, **operands)

    ends = [0, 0, pads[0], 0, 0, 0, 0, pads[3], 0, 0]
    padded = add("padded", (batch, channels, None, *image), ops.Pad, to.first(x), pads=ends)
    parts = list[str]()
    for k in range(layers):
        begin = k * gaps[0]
        range_ = {"starts": [begin], "ends": [begin + (depth - 1) * steps[0] + 1], "axes": [2], "steps": [steps[0]]}
        parts.append(add(f"layer{k}", (batch, channels, depth, *image), ops.Slice, padded, **range_))
    concatenated = add("layers", (batch, seen, depth, *image), ops.Concat, *parts, axis=1)
    frames = add("turned", (batch, depth, seen, *image), ops.Transpose, concatenated, perm=[0, 2, 1, 3, 4])
    images = add("images", (None, seen, *image), ops.Reshape, frames, shape=[-1, seen, *image])
    # A model input is read in its own layout.
    last = add("images.last", (None, *image, seen), ops.Transpose, images, perm=LAST)
    again = add("images.first", (None, seen, *image), ops.Transpose, last, perm=FIRST)
    packed = to.derived(w, "frames", lambda: weight.transpose(0, 3, 4, 2, 1).reshape(filters, *window, seen))
    kernel_type = ValueType(to.graph.type(x).dtype, (filters, seen, *window))
    kernel = to.add(ops.Transpose, packed, perm=FIRST, hint=f"{w}.frames.nchw", type_=kernel_type)
    flat: dict[str, Any] = {
        "kernel_shape": window,
        "strides": steps[1:],
        "dilations": gaps[1:],
        "pads": [*pads[1:3], *pads[4:6]],
    }
    convolved_type = ValueType(to.graph.type(x).dtype, (None, filters, *spatial))
    convolved = to.copy(node, [again, kernel], hint=f"{y}.frames", type_=convolved_type, **flat)
    result = add("frames.last", (None, *spatial, filters), ops.Transpose, convolved, perm=LAST)
    to.add(ops.Reshape, result, shape=[-1, depth, *spatial, filters], output=product)
