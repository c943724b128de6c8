"""Sliding windows: convolution and pooling attributes, and the offsets that follow from the shapes.

Pairs are (vertical, horizontal). Each spatial attribute of an image is such a pair; of a volume it is a triple (depth,
vertical, horizontal).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from onnxfuse.ops.shapes.windows import Window, scaled_extent
from onnxfuse.symbolic.element_types import UnsupportedError

Pair = tuple[int, int]
Along = tuple[int, ...]


class Counted(Enum):
    """What of a window counts as an element of it: a mean divides by their number."""

    IMAGE = "image"
    """What lies inside the image."""
    PADDING = "padding"
    """That, and the padding, as zeros; not what a last window reads beyond the padding."""
    WINDOW = "window"
    """All of it."""


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
    pools: bool = False
    """Whether it is a pooling's."""

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
        image, dims = images[1:-1], len(images) - 2
        pads = zip(self.pads[:dims], self.pads[dims:], strict=True)
        along = zip(kernel, self.strides, self.dilations, pads, strict=True)
        windows = [Window(*one, self.auto_pad, self.ceil, self.pools) for one in along]
        begin, end = zip(*(w.padding(n) for w, n in zip(windows, image, strict=True)), strict=True)
        out = tuple(w.places(n) for w, n in zip(windows, image, strict=True))
        passed = tuple(w.overhang(n) for w, n in zip(windows, image, strict=True))
        return WindowGeometry(images, kernel, self.strides, self.dilations, begin, end, passed, out)


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
    """Padding at the bottom and right, with what the last windows read beyond it."""
    overhang: Along
    """Of that, what lies beyond the padding."""

    out: Along
    """Output extents of an image."""


CENTRES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
"""Supported coordinate transformations of ONNX's Resize."""


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
