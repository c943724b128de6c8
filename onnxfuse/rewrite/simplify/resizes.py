"""What a Resize comes to is a constant where the types tell it, and one number whoever computes it.

Decoders with skips interpolate to the size of another value: exporters ask for all extents of it where the batch is
open. Where all others are numbers, so are the scales.

An extent times a scale is rounded down: ONNX Runtime multiplies in float32, ONNX's inference in double. 10 pixels by
0.7, a little less in float32, are 7 and 6. There the next number is the scale.
"""

from collections.abc import Sequence

import numpy as np
import onnx

from onnxfuse.kernels import scaled_extent
from onnxfuse.model.graph import Graph, Node
from onnxfuse.model.types import Dim

SINCE = 11
"""The operator set from which a Resize may be told sizes."""
CROPPED = b"tf_crop_and_resize"
SMOOTH = (b"linear", b"cubic")
"""Modes in which a scale that is one step of float32 larger gives the same image, but for the last bits."""
SHORT = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)
"""Types that do not show these: linear, 160 -> 333 rows of noise, the relative error in float32 is 2.1e-5 by the next
number and 8e-6 by the quotient."""


def fix_resizes(graph: Graph) -> bool:
    """Give every Resize constant sizes or scales where the types tell them, and safe scales; return whether any was."""
    changed = False
    for node in [n for n in graph.nodes if n.op == "Resize" and not n.domain and graph.opset >= SINCE]:
        attributes = graph.attributes(node)
        stretched = attributes.get("keep_aspect_ratio_policy", b"stretch") == b"stretch"
        whole = not attributes.get("axes") and attributes["coordinate_transformation_mode"] != CROPPED
        source, result = (graph.type(v).shape for v in (node.inputs[0], node.outputs[0]))
        if not stretched or not whole or source is None or result is None or len(source) != len(result):
            continue
        smooth = attributes["mode"] in SMOOTH
        if len(node.inputs) == 4 and not graph.is_constant(node.inputs[3]):
            numbers = _told(source, result, smooth=smooth and graph.type(node.inputs[0]).dtype in SHORT)
        else:
            numbers = _safe(graph, node, source) if smooth else None
        if numbers is not None:
            _write(graph, node, numbers)
            changed = True
    return changed


def _told(source: Sequence[Dim], result: Sequence[Dim], *, smooth: bool) -> np.ndarray | None:
    """Return the sizes that types tell, or, where some have names, the scales."""
    if all(isinstance(n, int) for n in result):
        return np.asarray(result, np.int64)
    scales = [_scale(own, wanted, smooth=smooth) for own, wanted in zip(source, result, strict=True)]
    known = [s for s in scales if s is not None]
    return np.asarray(known, np.float32) if len(known) == len(scales) else None


def _scale(own: Dim, wanted: Dim, *, smooth: bool) -> np.float32 | None:
    """Return by what an extent is scaled to another: the quotient that a Resize to sizes takes, or the next number."""
    if own is not None and own == wanted:
        return np.float32(1)
    if not isinstance(own, int) or not isinstance(wanted, int) or not own:
        return None
    scale = np.float32(wanted) / np.float32(own)
    return next(
        (
            s
            for s in (scale, _next(scale))[: 1 + smooth]
            if scaled_extent(own, float(s)) == int(own * float(s)) == wanted
        ),
        None,
    )


def _safe(graph: Graph, node: Node, source: Sequence[Dim]) -> np.ndarray | None:
    """Return the scales of a Resize where one of them is not safe, by which all come to what ONNX Runtime makes."""
    scales = graph.constant(node.inputs[2]) if len(node.inputs) > 2 else None
    if scales is None or scales.size != len(source):
        return None
    safe = [
        _next(s) if isinstance(own, int) and scaled_extent(own, float(s)) > int(own * float(s)) else s
        for own, s in zip(source, scales.reshape(-1), strict=True)
    ]
    return np.asarray(safe, np.float32) if safe != scales.reshape(-1).tolist() else None


def _next(scale: np.float32) -> np.float32:
    return np.float32(np.nextafter(scale, np.float32(np.inf)))


def _write(graph: Graph, node: Node, numbers: np.ndarray) -> None:
    """Let a Resize read these: sizes, which are whole, or scales."""
    sizes = numbers.dtype == np.int64
    name = graph.fresh(f"{node.outputs[0]}.{'sizes' if sizes else 'scales'}")
    graph.add_constant(name, numbers)
    new = onnx.NodeProto()
    new.CopyFrom(node.proto)
    del new.input[2:]
    new.input.extend(["", name] if sizes else [name])
    graph.replace([node], [Node(new)])
