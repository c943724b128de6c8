"""Rewrite a 3-D convolution of few channels as a 2-D one: depth slices in its window become channels."""

from collections.abc import Mapping
from math import prod

import numpy as np
from onnx import NodeProto
from onnx.helper import make_node

from onnxfuse import ops
from onnxfuse.graph.channels import FIRST, LAST, to_first
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model import schema
from onnxfuse.passes.layout.writer import ChannelsLastWriter, inner, integers, like, transpose
from onnxfuse.shapes.types import Dim, ValueType

FEW, SEEN, TERMS = 4, 15, 640
"""Maximum channels of a volume, channels of all depth slices in a window, and terms of a sum, as the rule `direct`
accepts them.

Three channels fill none of the library's steps of eight: R3D-18's first layer, 8 x 3x16x112x112 to 64, 3x7x7, float16,
H100: 512 us, and 78 to transpose the clip.
"""


def has_few_channels(graph: Graph, node: Node, attributes: Mapping[str, schema.AttributeValue]) -> bool:
    """Return whether a volume convolution has few channels, and static extents except for the batch."""
    x, w, y = (graph.type(v).shape or () for v in (node.inputs[0], node.inputs[1], node.outputs[0]))
    channels, layers, *window = (n for n in w[1:] if isinstance(n, int)) if len(w) == 5 else (0, 0)
    known = all(len(s) == 5 and all(isinstance(n, int) for n in s[1:]) for s in (x, w, y))
    written = all(integers(attributes, name) for name in ("kernel_shape", "strides", "dilations", "pads"))
    whole = attributes.get("group", 1) == 1 and attributes.get("auto_pad") in (None, b"NOTSET")
    fits = 0 < channels <= FEW and channels * layers <= SEEN and channels * layers * prod(window) <= TERMS
    return known and written and whole and fits and graph.opset >= 13


def write(to: ChannelsLastWriter, node: Node, weight: np.ndarray, product: str) -> list[NodeProto]:
    """Return the nodes from channels-last volumes to `product`: [batch, depth, height, width, filters]."""
    (x, w), y, attributes = node.inputs[:2], node.outputs[0], to.graph.attributes(node)
    batch, channels, _, *image = to.graph.type(x).shape or ()
    depth, *places = (to.graph.type(y).shape or ())[2:]
    filters, _, layers, *window = weight.shape
    steps, gaps, pads = (integers(attributes, name) for name in ("strides", "dilations", "pads"))
    assert isinstance(channels, int)
    assert isinstance(depth, int)
    seen = channels * layers

    def made(what: str, *shape: Dim) -> str:
        return to.fresh(f"{y}.{what}", ValueType(to.graph.type(x).dtype, shape))

    def numbers(what: str, *values: Dim) -> str:
        return to.constant(y, what, lambda: np.asarray(values, np.int64))

    first, padded = inner(to, x), made("padded", batch, channels, None, *image)
    ends = numbers("ends", 0, 0, pads[0], 0, 0, 0, 0, pads[3], 0, 0)
    nodes = [transpose(to.last(x), first, to_first(5)), make_node(ops.Pad, [first, ends], [padded])]
    along, step = numbers("along", 2), numbers("step", steps[0])
    parts = [made(f"layer{k}", batch, channels, depth, *image) for k in range(layers)]
    for k, part in enumerate(parts):
        begin = k * gaps[0]
        cut = [numbers(f"from{k}", begin), numbers(f"to{k}", begin + (depth - 1) * steps[0] + 1)]
        nodes.append(make_node(ops.Slice, [padded, *cut, along, step], [part]))
    beside, turned = made("beside", batch, seen, depth, *image), made("turned", batch, depth, seen, *image)
    images, again = made("images", None, seen, *image), made("images.first", None, seen, *image)
    last, convolved = made("images.last", None, *image, seen), made("frames", None, filters, *places)
    kernel = to.fresh(f"{w}.frames.nchw", ValueType(to.graph.type(x).dtype, (filters, seen, *window)))
    result = made("frames.last", None, *places, filters)
    packed = to.constant(w, "frames", lambda: weight.transpose(0, 3, 4, 2, 1).reshape(filters, *window, seen))
    flat = {"kernel_shape": window, "strides": steps[1:], "dilations": gaps[1:], "pads": [*pads[1:3], *pads[4:6]]}
    return [
        *nodes,
        make_node(ops.Concat, parts, [beside], axis=1),
        make_node(ops.Transpose, [beside], [turned], perm=[0, 2, 1, 3, 4]),
        make_node(ops.Reshape, [turned, numbers("images", -1, seen, *image)], [images]),
        # A model input is read in its own layout.
        transpose(images, last, LAST),
        transpose(last, again, FIRST),
        transpose(packed, kernel, FIRST),
        like(node, [again, kernel], [convolved], **flat),
        transpose(convolved, result, LAST),
        make_node(ops.Reshape, [result, numbers("volumes", -1, depth, *places, filters)], [product]),
    ]
