"""Vectorized NumPy operators with a sliding window: convolutions and poolings of any rank."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from onnx.reference.op_run import OpRun

Array = npt.NDArray[Any]


class Conv(OpRun):
    """Convolution of any rank: tap by tap if depthwise, else as matrix products over blocks of channels."""

    def _run(
        self, x: Array, w: Array, b: Array | None = None, group: int | None = None, **sliding: Any
    ) -> tuple[Array]:
        group = group or 1
        window = _window(x.shape[2:], **{**sliding, "kernel_shape": w.shape[2:]})
        padded = window.pad(x, 0.0)
        padded = padded.reshape(x.shape[0], group, x.shape[1] // group, *padded.shape[2:])
        weight = w.reshape(group, w.shape[0] // group, x.shape[1] // group, -1)
        y = (_depthwise if weight.shape[2] == 1 else _products)(padded, weight, window)
        y = y.reshape(x.shape[0], w.shape[0], *window.output)
        return (y if b is None else y + b.reshape(-1, *[1] * len(window.output)),)


def _depthwise(padded: Array, weight: Array, window: "_SlidingWindow") -> Array:
    """Return [batch, group, maps, positions] of `padded` [batch, group, 1, ...] and `weight` [group, maps, 1, taps]."""
    y: Array | None = None
    for tap, position in enumerate(window.positions()):
        columns = window.at(padded, position).reshape(*padded.shape[:3], -1)
        term = weight[..., tap] * columns
        y = term if y is None else np.add(y, term, out=y)
    assert y is not None, "a kernel has at least one tap"
    return y


def _products(padded: Array, weight: Array, window: "_SlidingWindow") -> Array:
    """Return [batch, maps of all groups, positions] of `padded` [batch, group, channels, ...].

    `weight` is [group, maps, channels, taps]. Its rows are read in place, while the input is gathered (im2col) into
    contiguous blocks, because BLAS requires unit stride.
    """
    group, maps, channels, taps = weight.shape
    batch, positions = len(padded), math.prod(window.output)
    rows = weight.reshape(group, maps, channels * taps)
    at_once = max(1, COLUMNS // max(1, group * taps * batch * positions))
    y = np.zeros((group, maps, batch * positions), padded.dtype)
    for first in range(0, channels, at_once):
        some = padded[:, :, first : first + at_once]
        columns = np.empty((group, some.shape[2], taps, batch, *window.output), padded.dtype)
        for tap, position in enumerate(window.positions()):
            columns[:, :, tap] = np.moveaxis(window.at(some, position), 0, 2)
        y += rows[..., first * taps : (first + at_once) * taps] @ columns.reshape(group, -1, batch * positions)
    return np.moveaxis(y.reshape(group * maps, batch, positions), 1, 0)


COLUMNS = 1 << 22
"""Elements gathered per im2col block: 32 MB in float64."""


class MaxPool(OpRun):
    """The maximum of the window; as a second output, its index in the flattened input."""

    def _run(self, x: Array, storage_order: int | None = None, **sliding: Any) -> tuple[Array, ...]:
        window = _window(x.shape[2:], **sliding)
        lowest = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
        padded = window.pad(x, lowest)
        y = np.full((*x.shape[:2], *window.output), lowest, x.dtype)
        if len(self.onnx_node.output) == 1:
            for position in window.positions():
                np.maximum(y, window.at(padded, position), out=y)
            return (y,)
        order: Literal["F", "C"] = "F" if storage_order else "C"
        flat = np.arange(math.prod(x.shape[2:])).reshape(x.shape[2:], order=order)
        flat = flat + np.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *[1] * flat.ndim) * flat.size
        flat_indices, indices = window.pad(flat, -1), np.full(y.shape, -1)
        for position in window.positions():
            value, position_index = window.at(padded, position), window.at(flat_indices, position)
            better = (position_index >= 0) & ((indices < 0) | (value > y))
            y, indices = np.where(better, value, y), np.where(better, position_index, indices)
        return y, indices


class AveragePool(OpRun):
    """The mean of the window; padding counts only with `count_include_pad`."""

    def _run(self, x: Array, count_include_pad: int | None = None, **sliding: Any) -> tuple[Array]:
        window = _window(x.shape[2:], **sliding)
        # Only `pads` may count; what the window overhangs never does.
        inside = np.ones((1, 1, *x.shape[2:]))
        if count_include_pad:
            inside = _padded(inside, window.pads, 1.0)
            counted = window.overhang(inside)
        else:
            counted = window.pad(inside, 0.0)
        padded = window.pad(x, 0.0)
        total = np.zeros((*x.shape[:2], *window.output), x.dtype)
        count = np.zeros((1, 1, *window.output))
        for position in window.positions():
            total += window.at(padded, position)
            count += window.at(counted, position)
        return ((total / count).astype(x.dtype),)


class LpPool(OpRun):
    """The p-norm of the window."""

    def _run(self, x: Array, p: int = 2, **sliding: Any) -> tuple[Array]:
        window = _window(x.shape[2:], **sliding)
        powers = window.pad(np.abs(x) ** p, 0.0)
        total = sum(window.at(powers, position) for position in window.positions())
        return (np.asarray(total ** (1 / p)).astype(x.dtype),)


class ConvTranspose(OpRun):
    """The gradient of a convolution: each input is scattered over its window, and padding is cropped."""

    def _run(
        self,
        x: Array,
        w: Array,
        b: Array | None = None,
        auto_pad: str | None = None,
        dilations: Sequence[int] | None = None,
        group: int | None = None,
        kernel_shape: Sequence[int] | None = None,
        output_padding: Sequence[int] | None = None,
        output_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Array]:
        group, rank, positions = group or 1, x.ndim - 2, math.prod(x.shape[2:])
        strides, dilations, output_pads = strides or [1] * rank, dilations or [1] * rank, output_padding or [0] * rank
        sizes = list(zip(x.shape[2:], w.shape[2:], strides, dilations, strict=True))
        spans = [(n - 1) * stride + (k - 1) * dilation + 1 for n, k, stride, dilation in sizes]
        full = [span + extra for span, extra in zip(spans, output_pads, strict=True)]
        y = np.zeros((x.shape[0], group, w.shape[1], *full), x.dtype)
        rows = x.reshape(x.shape[0], group, -1, positions)
        taps = np.ascontiguousarray(w.reshape(group, -1, w.shape[1], math.prod(w.shape[2:])).transpose(3, 0, 2, 1))
        first = [slice(None)] * 3
        for tap, position in enumerate(itertools.product(*map(range, w.shape[2:]))):
            starts = [p * dilation for p, (_, _, _, dilation) in zip(position, sizes, strict=True)]
            covered = [
                slice(start, start + (n - 1) * stride + 1, stride)
                for start, (n, _, stride, _) in zip(starts, sizes, strict=True)
            ]
            y[(*first, *covered)] += (taps[tap] @ rows).reshape(*y.shape[:3], *x.shape[2:])
        if output_shape or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            target = output_shape or [n * stride for n, _, stride, _ in sizes]
            trimmed = [n - size for n, size in zip(full, target, strict=True)]
            trimmed = trimmed if output_shape else [max(0, n) for n in trimmed]
            before = [n // 2 if auto_pad == "SAME_UPPER" else n - n // 2 for n in trimmed]
            pads = [*before, *(n - b for n, b in zip(trimmed, before, strict=True))]
        pads = pads if pads and auto_pad != "VALID" else [0] * 2 * rank
        # An output may be larger than the area reached; the remainder is zero.
        y = _padded(y.reshape(x.shape[0], -1, *full), [(max(0, -a), max(0, -b)) for a, b in _ends(pads)], 0.0)
        visible = [slice(max(0, a), n - max(0, b)) for n, (a, b) in zip(y.shape[2:], _ends(pads), strict=True)]
        y = y[(*first[:2], *visible)]
        return (y if b is None else y + b.reshape(-1, *[1] * rank),)


@dataclass(frozen=True)
class _SlidingWindow:
    """A sliding window over the last axes: its position for each output, and the values at one tap."""

    kernel: Sequence[int]
    pads: list[tuple[int, int]]
    strides: Sequence[int]
    dilations: Sequence[int]
    output: tuple[int, ...]
    beyond: list[int]
    """What the window overhangs at the end of each axis, due to ceil_mode or since it is larger than the image."""

    def positions(self) -> Iterator[tuple[int, ...]]:
        """Return the input offsets, tap by tap."""
        return itertools.product(*map(range, self.kernel))

    def pad(self, x: Array, value: float) -> Array:
        """Return `x` padded with everything around it that the window can touch."""
        return self.overhang(_padded(x, self.pads, value), value)

    def overhang(self, x: Array, value: float = 0.0) -> Array:
        """Return the padded `x` extended by the overhang."""
        return _padded(x, [(0, n) for n in self.beyond], value)

    def at(self, padded: Array, position: Sequence[int]) -> Array:
        """Return the values at one tap of the window, one for each output."""
        slices = (
            slice(p * d, p * d + (n - 1) * s + 1, s)
            for p, d, n, s in zip(position, self.dilations, self.output, self.strides, strict=True)
        )
        before = [slice(None)] * (padded.ndim - len(self.strides))
        return padded[(*before, *slices)]


def _ends(pads: Sequence[int]) -> list[tuple[int, int]]:
    """Return the begin and end of each axis in an attribute `pads`."""
    return list(zip(pads[: len(pads) // 2], pads[len(pads) // 2 :], strict=True))


def _padded(x: Array, widths: Sequence[tuple[int, int]], value: float) -> Array:
    """Pad the last axes of `x` with `value`; return `x` itself if all widths are zero."""
    if not any(itertools.chain(*widths)):
        return x
    return np.pad(x, [(0, 0), (0, 0), *widths], constant_values=value)


def _window(
    extents: Sequence[int],
    kernel_shape: Sequence[int],
    auto_pad: str | None = None,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    ceil_mode: int | None = None,
) -> _SlidingWindow:
    """Return the window described by an operator's attributes, over images of these extents."""
    rank = len(extents)
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    spans = [(k - 1) * d + 1 for k, d in zip(kernel_shape, dilations, strict=True)]
    ends = _padding(extents, spans, strides, auto_pad, pads)
    output, overhang = [], []
    for extent, span, stride, (before, after) in zip(extents, spans, strides, ends, strict=True):
        available = extent + before + after - span
        # ONNX Runtime's division truncates: a window larger than the image by less than a stride is one.
        count = (math.ceil(available / stride) if ceil_mode or available < 0 else available // stride) + 1
        if ceil_mode and (count - 1) * stride >= extent + before:
            count -= 1  # A window that starts in the end padding is dropped.
        output.append(count)
        overhang.append(max(0, (count - 1) * stride - available))
    return _SlidingWindow(kernel_shape, ends, strides, dilations, tuple(output), overhang)


def _padding(
    extents: Sequence[int],
    spans: Sequence[int],
    strides: Sequence[int],
    auto_pad: str | None,
    pads: Sequence[int] | None,
) -> list[tuple[int, int]]:
    rank = len(extents)
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        pads = pads if pads is not None and auto_pad != "VALID" else [0] * 2 * rank
        return _ends(pads)
    ends = []
    for extent, span, stride in zip(extents, spans, strides, strict=True):
        total = max(0, (math.ceil(extent / stride) - 1) * stride + span - extent)
        small, large = total // 2, total - total // 2
        ends.append((small, large) if auto_pad == "SAME_UPPER" else (large, small))
    return ends


OPERATORS = (Conv, ConvTranspose, MaxPool, AveragePool, LpPool)
