"""Sliding windows: convolution and pooling attributes, and the offsets that follow from the shapes.

Pairs are (vertical, horizontal). Each spatial attribute of an image is such a pair; of a volume it is a triple (depth,
vertical, horizontal).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from onnxfuse.symbolic.element_types import UnsupportedError

Pair = tuple[int, int]
Along = tuple[int, ...]

_AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


@dataclass(frozen=True)
class Sliding:
    """A convolution's sliding-window attributes."""

    strides: Along
    dilations: Along
    pads: Along
    """Top, left, bottom, right; for volumes front, top, left, then back, bottom, right."""
    auto_pad: str
    ceil: bool = False
    """Whether a pooling's last windows may extend past the padding, as long as they start inside it."""

    def __post_init__(self) -> None:
        """Raise `UnsupportedError` for an invalid window: kernels divide by strides, and read no pixel before the
        first.
        """
        if min(*self.strides, *self.dilations) < 1:
            raise UnsupportedError(f"a window with strides {list(self.strides)} and dilations {list(self.dilations)}")
        if min(self.pads, default=0) < 0:
            raise UnsupportedError(f"negative pads {list(self.pads)}")
        if self.auto_pad not in _AUTO_PADS:
            raise UnsupportedError(f"auto_pad {self.auto_pad!r}, expected one of {', '.join(_AUTO_PADS)}")

    def over(self, images: Along, kernel: Along) -> WindowGeometry:
        """Return its geometry for images of this shape and a window of this size."""
        if min(kernel) < 1:
            raise UnsupportedError(f"a window of {'x'.join(map(str, kernel))} elements")
        begin, end = _pads(self, images[1:-1], kernel)
        places = WindowGeometry(images, kernel, self.strides, self.dilations, begin, end)
        return _further(places) if self.ceil else places


@dataclass(frozen=True)
class WindowGeometry:
    """Geometry of a window that slides over images."""

    shape: Along
    """Image shape [batch, height, width, channels]; volumes have their depth before the height."""
    kernel: Along
    strides: Along
    dilations: Along
    begin: Along
    """Padding at the top and left."""
    end: Along
    """Padding at the bottom and right."""

    @cached_property
    def out(self) -> Along:
        """Output extents of an image."""
        return tuple(
            max(
                (size + self.begin[i] + self.end[i] - (self.kernel[i] - 1) * self.dilations[i] - 1) // self.strides[i]
                + 1,
                0,
            )
            for i, size in enumerate(self.shape[1:-1])
        )


def _further(places: WindowGeometry) -> WindowGeometry:
    """Return the geometry with the extra padding that windows need which start before the end of the padding."""

    def more(size: int, i: int) -> int:
        rest = size + places.begin[i] + places.end[i] - (places.kernel[i] - 1) * places.dilations[i] - 1
        last = -(-rest // places.strides[i]) * places.strides[i]
        return last - rest if last < size + places.begin[i] else 0

    return replace(places, end=tuple(places.end[i] + more(size, i) for i, size in enumerate(places.shape[1:-1])))


def _pads(sliding: Sliding, image: Along, kernel: Along) -> tuple[Along, Along]:
    """Return the padding before and after each dimension of the image (ONNX's Conv, attribute auto_pad)."""
    none = (0,) * len(image)
    if sliding.auto_pad == "NOTSET":
        return sliding.pads[: len(image)], sliding.pads[len(image) :]
    if sliding.auto_pad == "VALID":
        return none, none
    whole = [
        max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
        for size, k, s, d in zip(image, kernel, sliding.strides, sliding.dilations, strict=True)
    ]
    less, more = tuple(n // 2 for n in whole), tuple(n - n // 2 for n in whole)
    return (less, more) if sliding.auto_pad == "SAME_UPPER" else (more, less)


CENTRES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
"""Supported coordinate transformations of ONNX's Resize."""


def scaled_extent(extent: int, scale: float) -> int:
    """Return an extent times a float32 scale, rounded to float32 like ONNX Runtime, and then down.

    By Veltkamp's splitting, of a product that is exact in double: 10 by 0.7, which is a little less, gives 7.
    """
    product = extent * scale
    far = product * (2.0**29 + 1)
    return math.floor(far - (far - product))


@dataclass(frozen=True)
class Resizing:
    """Linear interpolation of rows and columns."""

    centre: str
    """One of CENTRES."""
    scales: tuple[float, float] | None
    sizes: Pair | None
    """Rows and columns, if no scales are given."""

    def over(self, image: Pair) -> Pair:
        """Return rows and columns of the resized image."""
        if self.sizes is not None:
            return self.sizes
        assert self.scales is not None
        return scaled_extent(image[0], self.scales[0]), scaled_extent(image[1], self.scales[1])

    def line(self, axis: int, size: int, out: int) -> tuple[float, float]:
        """Return (step, start): pixel i along an axis samples the image at i * step + start."""
        scale = out / size if self.scales is None else self.scales[axis]
        match self.centre:
            case "align_corners":
                return ((size - 1) / (out - 1) if out > 1 else 0.0), 0.0
            case "asymmetric":
                return 1 / scale, 0.0
            case "pytorch_half_pixel" if out == 1:
                return 0.0, 0.0
            case _:
                return 1 / scale, 0.5 / scale - 0.5
