"""Shape functions of image operators: the heights and widths after sliding windows, padding, scales and blocks.

Symbolic extents yield symbolic extents, and equal inputs yield equal names. Where ONNX Runtime and ONNX's inference
differ, ONNX Runtime's result is used.
"""

import math
from collections.abc import Sequence

from onnx import NodeProto, helper

from onnxfuse.shapes.extent_arithmetic import Shape, ceiling, exact, floored, shifted, times
from onnxfuse.shapes.image_windows import pool_windows
from onnxfuse.shapes.types import Dim
from onnxfuse.shapes.value_facts import ValueFacts, attribute, integer

WEIGHTS = {"Conv": 1, "ConvInteger": 1, "QLinearConv": 3}
"""Input index of the window's weight, for operators that have one; the others are pools."""


def sliding(known: ValueFacts, node: NodeProto, shapes: Sequence[Shape]) -> list[Shape]:
    """Output extents of a window sliding over images."""
    image, at = shapes[0], WEIGHTS.get(node.op_type)
    weight = None if at is None else shapes[at]
    kernel = attribute(node, "kernel_shape") or (None if weight is None else weight[2:])
    if image is None or kernel is None or len(image) != len(kernel) + 2:
        return []
    if at is None:
        windows = pool_windows({a.name: helper.get_attribute_value(a) for a in node.attribute})
        rare = any(w.ceil or (w.same and (w.dilation > 1 or w.size < w.stride)) for w in windows)
        if len(windows) == len(kernel) and (rare or all(isinstance(d, int) for d in image[2:])):
            counted = (w.places(d) if isinstance(d, int) else None for w, d in zip(windows, image[2:], strict=True))
            return [(*image[:2], *counted)] * len(node.output)  # rare variants are not computed for symbolic extents
    places: list[Dim] = []
    for axis, extent in enumerate(image[2:]):
        window = _Window(node, kernel, axis)
        if window.reach is None:
            places.append(None)
        elif window.same:
            places.append(ceiling(extent, window.stride))
        else:
            places.append(shifted(floored(shifted(extent, window.pads - window.reach - 1), window.stride), 1))
    channels = image[1] if at is None else None if weight is None else weight[0]
    return [(image[0], channels, *places)]


def spreading(known: ValueFacts, node: NodeProto, shapes: Sequence[Shape]) -> list[Shape]:
    """Output extents of a ConvTranspose."""
    image, weight = shapes[:2]
    kernel = attribute(node, "kernel_shape") or (None if weight is None else weight[2:])
    if image is None or weight is None or kernel is None or len(image) != len(kernel) + 2:
        return []
    channels = times(weight[1], integer(node, "group", 1))
    asked = attribute(node, "output_shape")
    if asked:
        return [(image[0], channels, *asked[-len(kernel) :])]
    more = attribute(node, "output_padding") or [0] * len(kernel)
    extents: list[Dim] = []
    for axis, extent in enumerate(image[2:]):
        window = _Window(node, kernel, axis)
        if window.reach is None:
            extents.append(None)
            continue
        beyond = window.reach + 1 + more[axis] - window.stride
        # With auto_pad the result is cropped to a stride for each element, and never padded to that.
        extents.append(shifted(times(extent, window.stride), min(0, beyond) if window.same else beyond - window.pads))
    return [(image[0], channels, *extents)]


class _Window:
    """Geometry of a window along one axis of an image."""

    def __init__(self, node: NodeProto, kernel: Sequence[Dim], axis: int) -> None:
        size, axes = kernel[axis], len(kernel)
        auto_pad = attribute(node, "auto_pad", b"NOTSET")
        pads = (attribute(node, "pads") or [0] * 2 * axes) if auto_pad == b"NOTSET" else [0] * 2 * axes
        self.same = auto_pad in (b"SAME_UPPER", b"SAME_LOWER")
        self.stride: int = (attribute(node, "strides") or [1] * axes)[axis]
        self.pads: int = pads[axis] + pads[axis + axes]
        self.reach = (attribute(node, "dilations") or [1] * axes)[axis] * (size - 1) if isinstance(size, int) else None
        """Distance from the first to the last element that it covers."""


def padded(known: ValueFacts, node: NodeProto, shapes: Sequence[Shape]) -> list[Shape]:
    """Output extents of a Pad: by attributes, by an input, and in later versions for listed axes."""
    shape = shapes[0]
    pads = attribute(node, "pads") or attribute(node, "paddings") or known.vector(node, 1)
    if shape is None or pads is None:
        return []
    some = len(node.input) > 3 and node.input[3]
    axes = known.axes(node, 3, len(shape)) if some else list(range(len(shape)))
    if axes is None:
        return [tuple(None for _ in shape)]
    extents = list(shape)
    for axis, before, after in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        both = isinstance(before, int) and isinstance(after, int)
        extents[axis] = shifted(extents[axis], before + after) if both else None
    return [tuple(extents)]


def resized(known: ValueFacts, node: NodeProto, shapes: Sequence[Shape]) -> list[Shape]:
    """Output extents of a Resize or an Upsample, by scales or sizes."""
    shape = shapes[0]
    if shape is None or attribute(node, "coordinate_transformation_mode") == b"tf_crop_and_resize":
        return []
    axes = [a % len(shape) for a in attribute(node, "axes") or range(len(shape))]
    sizes = known.vector(node, 3)
    if sizes is not None and attribute(node, "keep_aspect_ratio_policy", b"stretch") == b"stretch":
        changed = dict(zip(axes, sizes, strict=True))
        return [tuple(changed.get(axis, extent) for axis, extent in enumerate(shape))]
    at = 2 if node.op_type == "Resize" and known.opset >= 11 else 1
    constant = known.constants.get(node.input[at]) if len(node.input) > at else None
    scales = attribute(node, "scales") or (None if constant is None else constant.reshape(-1).tolist())
    if not scales:
        return []
    scaled = dict(zip(axes, scales, strict=True))
    return [tuple(_scaled(extent, scaled.get(axis, 1.0)) for axis, extent in enumerate(shape))]


def _scaled(extent: Dim, scale: float) -> Dim:
    """Return the extent times a scale, rounded down; None for a symbolic extent with a scale that rounds on its own."""
    if isinstance(extent, int):
        return math.floor(extent * scale)
    if scale == int(scale):
        return times(extent, int(scale))
    parts = 1 / scale
    return floored(extent, int(parts)) if math.frexp(scale)[0] == 0.5 and parts >= 1 else None


def from_blocks(known: ValueFacts, node: NodeProto, shapes: Sequence[Shape]) -> list[Shape]:
    """Output extents of a DepthToSpace."""
    if shapes[0] is None:
        return []
    size = integer(node, "blocksize", 0)
    batch, depth, height, width = shapes[0]
    return [(batch, exact(depth, size * size), times(height, size), times(width, size))]


def to_blocks(known: ValueFacts, node: NodeProto, shapes: Sequence[Shape]) -> list[Shape]:
    """Output extents of a SpaceToDepth."""
    if shapes[0] is None:
        return []
    size = integer(node, "blocksize", 0)
    batch, depth, height, width = shapes[0]
    return [(batch, times(depth, size * size), floored(height, size), floored(width, size))]
