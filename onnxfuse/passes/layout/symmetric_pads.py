"""Rewrite a ConvTranspose with asymmetric pads as one with symmetric pads and a Slice.

cuDNN pads both ends equally. ONNX Runtime has no CUDA kernel for any other ConvTranspose: it runs on the CPU, and its
channels-last op does not run at all. Keras's "same" padding with an odd kernel and a stride of 2 is such a case: one
pixel is removed, at the end.
"""

from operator import add

from onnxfuse import ops
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter
from onnxfuse.passes.layout.subpixel import END, ends, subpixel
from onnxfuse.passes.layout.writer import channels_last_type, integers
from onnxfuse.shapes.extents import computed
from onnxfuse.shapes.types import ValueType

SINCE = 10
"""First operator set in which Slice reads its starts and ends as inputs."""


@graph_pass
def symmetric_pads(graph: Graph) -> bool:
    """Rewrites a ConvTranspose with asymmetric pads, which has no CUDA kernel, as a symmetric one and a Slice."""
    changed = False
    for node in [n for n in graph.nodes if n.op == ops.ConvTranspose and not n.domain and graph.opset >= SINCE]:
        attributes = graph.attributes(node)
        pads = integers(attributes, "pads")
        explicit = attributes.get("auto_pad", b"NOTSET") == b"NOTSET" and not integers(attributes, "output_shape")
        first, last = pads[: len(pads) // 2], pads[len(pads) // 2 :]
        if explicit and first != last and subpixel(graph, node) is None:
            _write(graph, node, first, last)
            changed = True
    return changed


def pads_evenly(graph: Graph, node: Node) -> bool:
    """Return whether a ConvTranspose with a constant weight is known to have symmetric pads."""
    attributes, weight = graph.attributes(node), graph.constant(node.inputs[1])
    rows = channels_last_type(graph.type(node.inputs[0])).shape
    if weight is None or rows is None:
        return False
    count = weight.ndim - 2
    dilations, strides = (integers(attributes, name) or [1] * count for name in ("dilations", "strides"))
    more = integers(attributes, "output_padding") or [0] * count
    for at, extent in enumerate(rows[-1 - count : -1]):
        beyond = dilations[at] * (weight.shape[2 + at] - 1) + 1 - strides[at] + more[at]
        pads = ends(attributes, at, count, extent, beyond)
        if pads is None or pads[0] != pads[1]:
            return False
    return True


def _write(graph: Graph, node: Node, first: list[int], last: list[int]) -> None:
    image, type_of = node.outputs[0], graph.type(node.outputs[0])
    both = [min(pair) for pair in zip(first, last, strict=True)]
    crops = [(a - p, b - p) for a, b, p in zip(first, last, both, strict=True)]
    type_ = None
    if type_of.shape is not None:
        spatial = (computed(add, n, a + b) for n, (a, b) in zip(type_of.shape[2:], crops, strict=True))
        type_ = ValueType(type_of.dtype, (*type_of.shape[:2], *spatial))
    to = Rewriter(graph, node)
    whole = to.copy(node, hint=f"{image}.whole", type_=type_, pads=[*both, *both])
    starts, ends = [a for a, _ in crops], [-b or END for _, b in crops]
    to.add(ops.Slice, whole, starts=starts, ends=ends, axes=list(range(2, 2 + len(crops))), output=image)
    to.finish()
