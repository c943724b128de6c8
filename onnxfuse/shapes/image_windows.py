"""Sliding-window arithmetic: pads, window offsets and output extents, as ONNX Runtime computes them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnxfuse import ops

POOLS = (ops.MaxPool, ops.AveragePool, ops.LpPool)

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
    """Padding before and after the image; 0 if it is derived from the image."""
    same: bool
    """Whether the image is padded to one output per stride (SAME)."""
    ceil: bool
    """Whether a last window may reach beyond the padded image."""

    @property
    def span(self) -> int:
        """Distance from the first to the last element that it covers."""
        return (self.size - 1) * self.dilation + 1

    def told_otherwise(self, opset: int) -> bool:
        """Return whether ONNX's inference may report another number of outputs for this pool."""
        if self.same:
            return self.dilation > 1 or self.size < self.stride
        return self.ceil and opset < COUNTS_AS_RUN and self.stride + self.pads[1] > self.span

    def places(self, extent: int) -> int:
        """Return the number of outputs of a pool over that many elements."""
        before, both = self.pads[0], sum(self.pads)
        if self.same:
            needed = max(0, (-(-extent // self.stride) - 1) * self.stride + self.size - extent)
            before, both = needed // 2, needed
        room = extent + both - self.span
        if not self.ceil:
            return int(room / self.stride) + 1  # C++ division truncates: a window larger than the image has one output
        last = -(-room // self.stride)
        return last + 1 - (last * self.stride >= extent + before)


def pool_windows(attributes: Mapping[str, Any]) -> Sequence[Window]:
    """Return the windows of a pool's attributes, one per axis; empty if they are inconsistent."""
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
