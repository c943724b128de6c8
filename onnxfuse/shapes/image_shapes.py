"""Shape functions of image operators: the heights and widths after sliding windows, padding, scales and blocks.

Symbolic extents yield symbolic extents. Where ONNX Runtime and ONNX's inference
differ, ONNX Runtime's result is used.
"""

import math
from collections.abc import Sequence
from functools import partial

from onnx import NodeProto, helper

from onnxfuse import ops
from onnxfuse.shapes.extents import computed
from onnxfuse.shapes.image_windows import pool_windows
from onnxfuse.shapes.types import Dim, Shape
from onnxfuse.shapes.value_facts import ValueFacts, attribute, integer
from onnxfuse.symbolic.integer import IntLike, ceiling, exact_quotient

WEIGHTS: dict[str, int] = {ops.Conv: 1, ops.ConvInteger: 1, ops.QLinearConv: 3}
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
        places.append(computed(_Window(node, kernel, axis).places, extent))
    channels = image[1] if at is None else None if weight is None else weight[0]
    return [(image[0], channels, *places)]


def spreading(known: ValueFacts, node: NodeProto, shapes: Sequence[Shape]) -> list[Shape]:
    """Output extents of a ConvTranspose."""
    image, weight = shapes[:2]
    kernel = attribute(node, "kernel_shape") or (None if weight is None else weight[2:])
    if image is None or weight is None or kernel is None or len(image) != len(kernel) + 2:
        return []
    groups = integer(node, "group", 1)
    channels = computed(lambda filters: filters * groups, weight[1])
    asked = attribute(node, "output_shape")
    if asked:
        return [(image[0], channels, *asked[-len(kernel) :])]
    more = attribute(node, "output_padding") or [0] * len(kernel)
    extents: list[Dim] = []
    for axis, extent in enumerate(image[2:]):
        window = _Window(node, kernel, axis)
        extents.append(computed(partial(window.spread, more[axis]), extent))
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
        self.reach: int | None = (
            (attribute(node, "dilations") or [1] * axes)[axis] * (size - 1) if isinstance(size, int) else None
        )
        """Distance from the first to the last element that it covers."""

    def places(self, extent: IntLike) -> Dim:
        """Return the number of windows over so many elements."""
        if self.reach is None:
            return None
        if self.same:
            return ceiling(extent, self.stride)
        return (extent + self.pads - self.reach - 1) // self.stride + 1

    def spread(self, more: int, extent: IntLike) -> Dim:
        """Return the number of elements that so many windows cover, `more` of them added as output padding."""
        if self.reach is None:
            return None
        beyond = self.reach + 1 + more - self.stride
        # With auto_pad the result is cropped to a stride for each element, and never padded to that.
        return extent * self.stride + (min(0, beyond) if self.same else beyond - self.pads)


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
        extents[axis] = computed(lambda extent, *pads: extent + sum(pads), extents[axis], before, after)
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
    at = 2 if node.op_type == ops.Resize and known.opset >= 11 else 1
    constant = known.constants.get(node.input[at]) if len(node.input) > at else None
    scales = attribute(node, "scales") or (None if constant is None else constant.reshape(-1).tolist())
    if not scales:
        return []
    scaled = dict(zip(axes, scales, strict=True))
    return [tuple(computed(_scaled, extent, scaled.get(axis, 1.0)) for axis, extent in enumerate(shape))]


def _scaled(extent: IntLike, scale: float) -> Dim:
    """Return the extent times a scale, rounded down; None for a symbolic extent with a scale that rounds on its own."""
    if isinstance(extent, int):
        return math.floor(extent * scale)
    if scale == int(scale):
        return extent * int(scale)
    parts = 1 / scale
    return extent // int(parts) if math.frexp(scale)[0] == 0.5 and parts >= 1 else None


def from_blocks(known: ValueFacts, node: NodeProto, shapes: Sequence[Shape]) -> list[Shape]:
    """Output extents of a DepthToSpace."""
    if shapes[0] is None:
        return []
    size = integer(node, "blocksize", 0)
    batch, depth, height, width = shapes[0]
    rows, columns = (computed(lambda extent: extent * size, e) for e in (height, width))
    return [(batch, computed(exact_quotient, depth, size * size), rows, columns)]


def to_blocks(known: ValueFacts, node: NodeProto, shapes: Sequence[Shape]) -> list[Shape]:
    """Output extents of a SpaceToDepth."""
    if shapes[0] is None:
        return []
    size = integer(node, "blocksize", 0)
    batch, depth, height, width = shapes[0]
    rows, columns = (computed(lambda extent: extent // size, e) for e in (height, width))
    return [(batch, computed(lambda extent: extent * size * size, depth), rows, columns)]
