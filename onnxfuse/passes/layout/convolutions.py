"""Channels-last forms of convolutions: per-pixel matrix products, or convolutions with a permuted weight layout."""

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from onnxfuse import cuda, ops
from onnxfuse.graph.channels import LAST, over_rows, to_first, to_last, with_row
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model import schema
from onnxfuse.ops import Trait, named
from onnxfuse.passes.layout import conv3d_as_conv2d
from onnxfuse.passes.layout.subpixel import subpixel
from onnxfuse.passes.layout.symmetric_pads import pads_evenly
from onnxfuse.passes.layout.writer import (
    ChannelsLastWriter,
    Form,
    channels_last_type,
    integers,
    spatial,
)
from onnxfuse.shapes.types import Dim

CONVOLUTIONS = named(Trait.CONVOLUTION) | {ops.ConvInteger}
"""Operators that convolve an image with a weight, their second input."""


def convolution(graph: Graph, node: Node) -> Form | None:
    """Return the channels-last form of a convolution, None if it has none."""
    return _conv_transpose(graph, node) if node.op == ops.ConvTranspose else _conv(graph, node)


def _conv(graph: Graph, node: Node) -> Form | None:
    x, w = node.inputs[:2]
    y = node.outputs[0]
    attributes = graph.attributes(node)
    if not spatial(graph, x, y, w) or not graph.is_constant(w):
        return None
    rank = len(graph.type(x).shape or ())

    def write(to: ChannelsLastWriter) -> None:
        weight, product = graph.constant(w), _product_name(to, node)
        assert weight is not None, w
        if _is_product(attributes, weight.shape):
            # Conv<1x1>(x, w[O,C,1,1]) -> MatMul(x[N,H,W,C], w[C,O])
            packed = to.derived(w, "co", lambda: weight.reshape(weight.shape[:2]).T)
            of = ops.MatMulInteger if node.op == ops.ConvInteger else ops.MatMul
            to.add(of, to.last(x), packed, output=product, name=node.proto.name)
        elif conv3d_as_conv2d.has_few_channels(graph, node, attributes):
            conv3d_as_conv2d.write(to, node, weight, product)
        else:
            operands = [to.first(x), _kernel(to, node, weight)]
            convolved = to.copy(node, operands, output=to.inner(y), **over_rows(attributes, rank))
            to.transpose(convolved, to_last(rank), product)
        _add_bias(to, node, product)

    on_cpu = node.op == ops.ConvInteger
    return Form((x,), (y,), write, saves=True, needed=on_cpu)


def _kernel(to: ChannelsLastWriter, node: Node, weight: np.ndarray) -> str:
    """Return the weight of a convolution, stored channels last."""
    w, rank = node.inputs[1], weight.ndim
    depthwise = weight.shape[1] == 1 and to.graph.attributes(node).get("group") == weight.shape[0]
    # Depthwise weights are [kernel, kernel, C, 1]: adjacent threads process adjacent channels. No such
    # kernel exists for larger windows.
    by_pixel = depthwise and rank != 5 and prod(weight.shape[2:]) <= cuda.MOST_TAPS
    order, back = ((2, 3, 0, 1), (2, 3, 0, 1)) if by_pixel else (to_last(rank), to_first(rank))
    oihw = weight.reshape(with_row(weight.shape, 1))
    packed = to.derived(w, "hwc" if by_pixel else "ohwi", lambda: oihw.transpose(order))
    return to.transpose(packed, back, to.inner(w))


def _conv_transpose(graph: Graph, node: Node) -> Form | None:
    x, w = node.inputs[:2]
    y = node.outputs[0]
    rank = graph.type(x).rank
    if not spatial(graph, x, y, w) or not graph.is_constant(w):
        return None
    over_blocks = subpixel(graph, node)
    # For volumes the library's own op supports channels first only: nothing would be saved.
    if over_blocks is not None or rank not in (3, 4) or not pads_evenly(graph, node):
        return over_blocks

    def write(to: ChannelsLastWriter) -> None:
        weight, product = graph.constant(w), _product_name(to, node)
        assert weight is not None, w
        kernel = w if rank == 4 else to.derived(w, "row", lambda: weight.reshape(with_row(weight.shape, 1)))
        changes = over_rows(graph.attributes(node), rank)
        to.transpose(to.copy(node, [to.first(x), kernel], output=to.inner(y), **changes), LAST, product)
        _add_bias(to, node, product)

    return Form((x,), (y,), write, saves=True, same_op=rank == 4 and not any(node.inputs[2:]))


def _product_name(to: ChannelsLastWriter, node: Node) -> str:
    """Return the name of a convolution's result without its bias."""
    y = node.outputs[0]
    return to.value(f"{y}.product", channels_last_type(to.graph.type(y))) if any(node.inputs[2:]) else to.last(y)


def _add_bias(to: ChannelsLastWriter, node: Node, product: str) -> None:
    """Add a convolution's bias, if it has one: [O] to [N,H,W,O]."""
    if any(node.inputs[2:]):
        to.add(ops.Add, product, node.inputs[2], output=to.last(node.outputs[0]))


def _is_product(attributes: Mapping[str, schema.AttributeValue], weight: Sequence[Dim]) -> bool:
    """Return whether a convolution is a per-pixel matrix product over the channels."""
    plain = all(step == 1 for step in integers(attributes, "strides")) and not any(integers(attributes, "pads"))
    return plain and attributes.get("group", 1) == 1 and all(extent == 1 for extent in weight[2:])
