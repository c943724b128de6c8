"""Sliding-window arithmetic: pads, window offsets and output extents, as ONNX Runtime computes them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

POOLS = ("MaxPool", "AveragePool", "LpPool")

COUNTS_AS_RUN = 22
"""From which operator set on ONNX's inference leaves out the window that begins behind the image, as ONNX Runtime has
always done."""


@dataclass(frozen=True)
class Window:
    """A window along one axis of an image."""

    size: int
    stride: int
    dilation: int
    pads: tuple[int, int]
    """Before the image and behind it; 0 where they follow from the image."""
    same: bool
    """Whether the image is padded until there is a place for each stride."""
    ceil: bool
    """Whether a last window may reach beyond the padded image."""

    @property
    def span(self) -> int:
        """Elements from the first that it covers to the last."""
        return (self.size - 1) * self.dilation + 1

    def told_otherwise(self, opset: int) -> bool:
        """Return whether a pool may have other places than ONNX's inference tells of some image."""
        if self.same:
            return self.dilation > 1 or self.size < self.stride
        return self.ceil and opset < COUNTS_AS_RUN and self.stride + self.pads[1] > self.span

    def places(self, extent: int) -> int:
        """Return how many places it has in a pool over that many elements."""
        before, both = self.pads[0], sum(self.pads)
        if self.same:
            needed = max(0, (-(-extent // self.stride) - 1) * self.stride + self.size - extent)
            before, both = needed // 2, needed
        room = extent + both - self.span
        if not self.ceil:
            return int(room / self.stride) + 1  # as C++ divides: of a window that is larger than all there is one place
        last = -(-room // self.stride)
        return last + 1 - (last * self.stride >= extent + before)


def pool_windows(attributes: Mapping[str, Any]) -> Sequence[Window]:
    """Return the windows that a pool's attributes tell, an axis each; none where they do not go together."""
    kernel = attributes.get("kernel_shape") or []
    auto_pad = attributes.get("auto_pad", b"NOTSET")
    same = auto_pad in (b"SAME_UPPER", b"SAME_LOWER")
    pads = (attributes.get("pads") or []) if auto_pad == b"NOTSET" else []
    pads = pads or [0] * 2 * len(kernel)
    strides, dilations = (attributes.get(name) or [1] * len(kernel) for name in ("strides", "dilations"))
    if not len(kernel) == len(strides) == len(dilations) == len(pads) / 2 or 0 in strides:
        return []
    ceil = bool(attributes.get("ceil_mode"))
    both = zip(pads[: len(kernel)], pads[len(kernel) :], strict=True)
    return [Window(*one, same, ceil) for one in zip(kernel, strides, dilations, both, strict=True)]
