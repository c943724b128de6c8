"""Windows that slide over images, and sampling of images: pads, places and extents as ONNX Runtime computes them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnxfuse.ops.shapes.extents import UnknownError, axis_of, is_symbolic, unknown
from onnxfuse.ops.shapes.node import Dims, ShapeFunction, ShapeNode
from onnxfuse.symbolic.branching import want

COUNTS_AS_RUN = 22
"""First operator set in which ONNX's inference excludes the window that begins after the image, as ONNX Runtime always
did.
"""


@dataclass(frozen=True)
class Window:
    """A window along one axis of an image."""

    size: int
    stride: int
    dilation: int
    pads: tuple[int, int]
    """Padding before and after the image, unless it is derived from the image."""
    auto_pad: str
    """NOTSET, VALID, SAME_UPPER or SAME_LOWER; SAME is one output per stride."""
    ceil: bool = False
    """Whether a last window may reach beyond the padded image."""
    pools: bool = False
    """Whether it is a pool's: SAME pads for the undilated window."""

    @property
    def span(self) -> int:
        """Distance from the first to the last element that it covers."""
        return (self.size - 1) * self.dilation + 1

    @property
    def same(self) -> bool:
        """Whether the image is padded to one output per stride."""
        return self.auto_pad.startswith("SAME")

    def told_otherwise(self, opset: int) -> bool:
        """Return whether ONNX's inference may report another number of outputs for this pool."""
        if self.same:
            return self.dilation > 1 or self.size < self.stride
        return self.ceil and opset < COUNTS_AS_RUN and self.stride + self.pads[1] > self.span

    def padding(self, extent: int) -> tuple[int, int]:
        """Return the padding before and after the image, with what a last window reads that reaches beyond it."""
        before, after = self._stated_padding(extent)
        return before, after + self.overhang(extent)

    def overhang(self, extent: int) -> int:
        """Return how many elements a last window reads beyond the padded image."""
        before, after = self._stated_padding(extent)
        room = extent + before + after - self.span
        # C++ division truncates: a pool's window that is larger than the image by less than its stride is one, too.
        if not self.ceil and not (self.pools and room < 0):
            return 0
        last = -(-room // self.stride) * self.stride
        # A window that starts in the padding behind the image is none.
        return last - room if last < extent + before else 0

    def _stated_padding(self, extent: int) -> tuple[int, int]:
        if not self.same:
            return self.pads if self.auto_pad == "NOTSET" else (0, 0)
        reach = self.size if self.pools else self.span
        whole = max((-(-extent // self.stride) - 1) * self.stride + reach - extent, 0)
        less, more = whole // 2, whole - whole // 2
        return (less, more) if self.auto_pad == "SAME_UPPER" else (more, less)

    def places(self, extent: int) -> int:
        """Return the number of windows over that many elements; rare pools have an unknown one of symbolic ones.

        None where a window is larger than the padded image: ONNX Runtime refuses such a convolution when it runs.
        """
        if is_symbolic(extent, self.size):
            return self._symbolic_places(extent)
        return max((extent + sum(self.padding(extent)) - self.span) // self.stride + 1, 0)

    def _symbolic_places(self, extent: int) -> int:
        rare = self.ceil or (self.same and self.pools and (self.dilation > 1 or self.size < self.stride))
        if rare or is_symbolic(self.size):
            return unknown()
        if self.same:
            return -(-extent // self.stride)
        return (extent + sum(self._stated_padding(0)) - self.span) // self.stride + 1

    def spread(self, more: int, extent: int) -> int:
        """Return the number of elements that so many windows cover, `more` of them added as output padding."""
        if is_symbolic(self.size):
            return unknown()
        beyond = self.span + more - self.stride
        # With auto_pad the result is cropped to a stride for each element, and never padded to that.
        return extent * self.stride + (min(0, beyond) if self.same else beyond - sum(self._stated_padding(0)))


def windows_of(attribute: Callable[[str, Any], Any], kernel: Sequence[int], *, pools: bool) -> Sequence[Window]:
    """Return the windows of a node's attributes, one per axis; empty if they are inconsistent."""
    axes = len(kernel)
    stated = attribute("auto_pad", None)
    auto_pad = stated.decode() if isinstance(stated, bytes) else "NOTSET"
    pads = (attribute("pads", None) if auto_pad == "NOTSET" else None) or [0] * 2 * axes
    strides, dilations = (attribute(name, None) or [1] * axes for name in ("strides", "dilations"))
    if not axes == len(strides) == len(dilations) == len(pads) / 2 or 0 in strides:
        return []
    ceil = bool(attribute("ceil_mode", 0))
    both = zip(pads[:axes], pads[axes:], strict=True)
    return [Window(*one, auto_pad, ceil, pools) for one in zip(kernel, strides, dilations, both, strict=True)]


def pool_windows(attributes: Mapping[str, Any]) -> Sequence[Window]:
    """Return the windows of a pool, one per axis; empty if its attributes are inconsistent."""
    return windows_of(attributes.get, attributes.get("kernel_shape") or [], pools=True)


def pooled(node: ShapeNode) -> list[Dims]:
    """Return the shapes of a pool, and of the indices of what it found."""
    return [_seen(node, node.attribute("kernel_shape", ()), pools=True)] * node.outputs


def pooled_whole(node: ShapeNode) -> list[Dims]:
    """Return the shape of a pool over whole images."""
    of = node.shape(0)
    return [(*of[:2], *(1 for _ in of[2:]))]


def convolved(weight: int) -> ShapeFunction:
    """Return the shape function of a convolution with filters at an input."""

    def shape(node: ShapeNode) -> list[Dims]:
        filters = node.shape(weight)
        batch, _, *places = _seen(node, node.attribute("kernel_shape") or filters[2:], pools=False)
        return [(batch, filters[0], *places)]

    return shape


def _seen(node: ShapeNode, kernel: Sequence[int], *, pools: bool) -> Dims:
    """Return the batch, the channels and the places of a window."""
    image, windows = node.shape(0), windows_of(node.attribute, kernel, pools=pools)
    want(len(image) == len(windows) + 2, lambda: f"images of shape {image}")
    return (*image[:2], *(w.places(n) for w, n in zip(windows, image[2:], strict=True)))


def transposed_convolution(node: ShapeNode) -> list[Dims]:
    """Return the shape of a ConvTranspose."""
    image, filters = node.shape(0), node.shape(1)
    kernel: Sequence[int] = node.attribute("kernel_shape") or filters[2:]
    windows = windows_of(node.attribute, kernel, pools=False)
    want(len(image) == len(windows) + 2, lambda: f"images of shape {image}")
    channels = filters[1] * node.attribute("group", 1)
    asked = node.attribute("output_shape")
    if asked:
        return [(image[0], channels, *asked[-len(kernel) :])]
    more = node.attribute("output_padding") or [0] * len(kernel)
    extents = (w.spread(m, n) for w, m, n in zip(windows, more, image[2:], strict=True))
    return [(image[0], channels, *extents)]


# ---- sampling


def scaled_extent(extent: int, scale: float) -> int:
    """Return an extent times a float32 scale, rounded to float32 like ONNX Runtime, and then down.

    By Veltkamp's splitting, of a product that is exact in double: 10 by 0.7, which is a little less, gives 7.
    """
    product = extent * scale
    far = product * (2.0**29 + 1)
    return math.floor(far - (far - product))


def _scaled(extent: int, scale: float) -> int:
    """Return the extent times a scale; of a symbolic one an unknown one for a scale that rounds on its own."""
    if not is_symbolic(extent):
        return scaled_extent(extent, scale)
    if scale == int(scale):
        return extent * int(scale)
    parts = 1 / scale
    return extent // int(parts) if math.frexp(scale)[0] == 0.5 and parts >= 1 else unknown()


def upsampled(node: ShapeNode) -> list[Dims]:
    """Return the shape of an Upsample."""
    return [tuple(_scaled(n, s) for n, s in zip(node.shape(0), node.reals("scales"), strict=True))]


def resized(node: ShapeNode) -> list[Dims]:
    """Return the shape of a Resize, by scales or sizes."""
    of = node.shape(0)
    by_sizes = node.has("sizes")
    by_region = node.attribute("coordinate_transformation_mode") == b"tf_crop_and_resize"
    if by_region or (by_sizes and node.attribute("keep_aspect_ratio_policy", b"stretch") != b"stretch"):
        raise UnknownError("a size that depends on more than scales or sizes")
    axes = [axis_of(a, len(of)) for a in node.attribute("axes") or range(len(of))]
    if by_sizes:
        sizes = dict(zip(axes, node.integers("sizes"), strict=True))
        return [tuple(sizes.get(d, n) for d, n in enumerate(of))]
    # Operator set 10 has no region before the scales.
    scales = dict(zip(axes, node.reals("scales" if node.opset > 10 else "roi"), strict=True))
    return [tuple(_scaled(n, scales[d]) if d in scales else n for d, n in enumerate(of))]
