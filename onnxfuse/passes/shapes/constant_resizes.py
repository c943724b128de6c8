"""Replace computed Resize sizes by constants where types determine them, with scales that round alike everywhere.

Decoders with skip connections interpolate to the size of another value: exporters read all of its extents if the batch
is dynamic. If all others are integers, the scales are constants.

An extent times a scale is rounded down: ONNX Runtime multiplies in float32, ONNX's inference in double. 10 pixels by
0.7, a little less in float32, are 7 and 6. There the Resize is given sizes, computed if the batch is dynamic, from
which ONNX Runtime derives the same scale; in types that do not show the difference, the scale is the adjacent float,
for a kernel.
"""

from collections.abc import Sequence

import numpy as np
import onnx

from onnxfuse import ops
from onnxfuse.graph.constant_folding import read_extents
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter
from onnxfuse.ops.shapes.windows import scaled_extent
from onnxfuse.shapes.types import Dim, ValueType

SINCE = 11
"""First operator set in which a Resize may have sizes."""
OPTIONAL_SINCE = 13
"""First operator set in which a Resize to sizes may omit its scales: before, they are an empty tensor."""
CROPPED = b"tf_crop_and_resize"
SMOOTH = (b"linear", b"cubic")
"""Modes in which a scale larger by one float32 ulp gives the same image except for the last bits."""
SHORT = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
"""Types too narrow to show that difference: linear, 160 -> 333 rows of noise, the relative error in float32 is 2.1e-5
with the adjacent float and 8e-6 with the quotient.
"""

Numbers = np.ndarray | list[int | None]
"""Scales or sizes of a Resize; None for an extent of its own input."""


@graph_pass
def constant_resizes(graph: Graph) -> bool:
    """Replaces computed sizes of a Resize by constant scales, or scales that round differently by sizes."""
    changed = False
    for node in [n for n in graph.nodes if n.op == ops.Resize and not n.domain and graph.opset >= SINCE]:
        attributes = graph.attributes(node)
        stretched = attributes.get("keep_aspect_ratio_policy", b"stretch") == b"stretch"
        whole = not attributes.get("axes") and attributes["coordinate_transformation_mode"] != CROPPED
        source, result = (graph.type(v).shape for v in (node.inputs[0], node.outputs[0]))
        if not stretched or not whole or source is None or result is None or len(source) != len(result):
            continue
        smooth = attributes["mode"] in SMOOTH and graph.type(node.inputs[0]).dtype in SHORT
        if len(node.inputs) == 4 and not graph.is_constant(node.inputs[3]):
            numbers = _derived(source, result, smooth=smooth)
        else:
            numbers = _safe(graph, node, source, smooth=smooth)
        if numbers is not None:
            _write(graph, node, numbers)
            changed = True
    return changed


def _derived(source: Sequence[Dim], result: Sequence[Dim], *, smooth: bool) -> Numbers | None:
    """Return the sizes that types determine, or, if some are symbolic, the scales."""
    sizes = [n if isinstance(n, int) else None for n in result]
    if None not in sizes:
        return sizes
    scales = [_scale(own, wanted, smooth=smooth) for own, wanted in zip(source, result, strict=True)]
    constants = [s for s in scales if s is not None]
    return np.asarray(constants, np.float32) if len(constants) == len(scales) else None


def _scale(own: Dim, wanted: Dim, *, smooth: bool) -> np.float32 | None:
    """Return the scale from one extent to another: the quotient that a Resize to sizes uses, or the adjacent float."""
    if own is not None and own == wanted:
        return np.float32(1)
    if not isinstance(own, int) or not isinstance(wanted, int) or not own:
        return None
    scale = _quotient(wanted, own)
    return next(
        (
            s
            for s in (scale, _next(scale))[: 1 + smooth]
            if scaled_extent(own, float(s)) == int(own * float(s)) == wanted
        ),
        None,
    )


def _safe(graph: Graph, node: Node, source: Sequence[Dim], *, smooth: bool) -> Numbers | None:
    """Return a replacement for scales that round ambiguously: adjacent floats, or sizes with the same scales."""
    array = graph.constant(node.inputs[2]) if len(node.inputs) > 2 else None
    if array is None or array.size != len(source):
        return None
    scales = array.reshape(-1)
    unsafe = [
        isinstance(own, int) and scaled_extent(own, float(s)) > int(own * float(s))
        for own, s in zip(source, scales, strict=True)
    ]
    if not any(unsafe):
        return None
    if smooth:
        return np.asarray([_next(s) if so else s for s, so in zip(scales, unsafe, strict=True)], np.float32)
    sizes = list[int | None]()
    for own, scale in zip(source, scales, strict=True):
        size = scaled_extent(own, float(scale)) if isinstance(own, int) and own else None
        if scale != (_quotient(size, own) if size is not None and isinstance(own, int) else 1):
            return None
        sizes.append(size)
    return sizes


def _quotient(size: int, own: int) -> np.float32:
    """Return the scale that ONNX Runtime derives from sizes."""
    return np.float32(size) / np.float32(own)


def _next(scale: np.float32) -> np.float32:
    return np.float32(np.nextafter(scale, np.float32(np.inf)))


def _write(graph: Graph, node: Node, numbers: Numbers) -> None:
    """Set the scales or sizes of a Resize."""
    image, result = node.inputs[0], node.outputs[0]
    to = Rewriter(graph, node)
    if isinstance(numbers, list):
        type_, extents = graph.type(result), zip(graph.type(result).shape or (), numbers, strict=True)
        graph.types[result] = ValueType(type_.dtype, tuple(own if size is None else size for own, size in extents))
        sources = [(image, axis) if size is None else size for axis, size in enumerate(numbers)]
        sizes = read_extents(to, sources, f"{result}.sizes") if None in numbers else numbers
        to.copy(node, [*node.inputs[:2], _no_scales(node, to)], sizes=sizes)
    else:
        to.copy(node, node.inputs[:2], scales=numbers)
    to.finish()


def _no_scales(node: Node, to: Rewriter) -> str:
    """Return the input for omitted scales: "", or a tensor without elements where the operator set requires one."""
    if to.graph.opset >= OPTIONAL_SINCE:
        return ""
    if to.graph.element_count(node.inputs[2]) == 0:
        return node.inputs[2]
    return to.constant(f"{node.outputs[0]}.scales", np.empty(0, np.float32))
