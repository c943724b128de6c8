"""Write quantized convolutions in the form in which kernels convolve integers of 8 bits.

Text to speech and keyword spotting convolve signals [batch, channels, length]: images of one row. Of floating-point
numbers the layout of a region makes images of them; whether integers are convolved is decided before. TensorFlow writes
padding as SAME, which beside a zero point no kernel computes: how wide it is is known where the image's extents are, or
where windows move by one element.
"""

from collections.abc import Sequence

from onnx import TensorProto

from onnxfuse import ops
from onnxfuse.graph.channels import ROW, over_rows
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter, rewrite_each
from onnxfuse.ops.shapes.windows import Window, windows_of
from onnxfuse.passes.quantization.weights import dequantizing
from onnxfuse.shapes.types import Dim, ValueType

BYTES = frozenset({TensorProto.INT8, TensorProto.UINT8})


@graph_pass
def quantized_signals(graph: Graph) -> bool:
    """Convolves quantized signals as images of one row."""
    return rewrite_each(graph, {ops.ConvInteger: _over_one_row, ops.Conv: _over_one_row})


@graph_pass
def quantized_padding(graph: Graph) -> bool:
    """Writes the padding SAME of quantized convolutions as numbers, where these are known."""
    return rewrite_each(graph, {ops.ConvInteger: _with_pads, ops.Conv: _with_pads})


def _over_one_row(node: Node, to: Rewriter) -> bool:
    graph, (x, w) = to.graph, node.inputs[:2]
    if graph.type(x).rank != 3 or graph.type(w).rank != 3 or not _are_quantized(graph, node):
        return False
    y = node.outputs[0]
    image, kernel = (to.add(ops.Unsqueeze, v, axes=[ROW], hint=f"{v}.row", type_=_row_of(graph, v)) for v in (x, w))
    changes = over_rows(graph.attributes(node), 3)
    row = to.copy(node, {0: image, 1: kernel}, hint=f"{y}.row", type_=_row_of(graph, y), **changes)
    to.add(ops.Squeeze, row, axes=[ROW], output=y)
    return True


def _row_of(graph: Graph, value: str) -> ValueType:
    known = graph.type(value)
    shape = None if known.shape is None else (*known.shape[:ROW], 1, *known.shape[ROW:])
    return ValueType(known.dtype, shape)


def _with_pads(node: Node, to: Rewriter) -> bool:
    graph, (x, w) = to.graph, node.inputs[:2]
    kernel, image = graph.type(w).static_shape, graph.type(x).shape
    if kernel is None or image is None or not _are_quantized(graph, node):
        return False
    windows = windows_of(graph.attributes(node).get, kernel[2:], pools=False)
    if not any(window.same for window in windows):
        return False
    pads = [_padding(window, extent) for window, extent in zip(windows, image[2:], strict=True)]
    known = [pad for pad in pads if pad is not None]
    if len(known) < len(pads):
        return False
    to.copy(node, auto_pad=None, pads=_in_order(known))
    return True


def _padding(window: Window, extent: Dim) -> tuple[int, int] | None:
    """Return the padding of one axis; None if it depends on an extent that is not known."""
    if isinstance(extent, int):
        return window.padding(extent)
    return window.padding(window.span) if window.stride == 1 else None


def _in_order(pads: Sequence[tuple[int, int]]) -> list[int]:
    return [*(before for before, _ in pads), *(after for _, after in pads)]


def _are_quantized(graph: Graph, node: Node) -> bool:
    """Return whether a node convolves integers of 8 bits, or what is dequantized of them, with constant filters."""
    sources = [node.inputs[0], node.inputs[1]]
    if node.op == ops.Conv:
        chains = [dequantizing(graph, v) for v in sources]
        sources = [chain[0].inputs[0] for chain in chains if chain]
    constant = len(sources) == 2 and graph.is_constant(sources[1])
    return constant and all(graph.type(v).dtype in BYTES for v in sources)
