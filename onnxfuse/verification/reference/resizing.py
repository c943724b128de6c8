"""Vectorized Resize, Upsample and GridSample in float64; onnx's implementations process one pixel at a time."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx.reference.ops.op_resize import Resize as OnnxResize

from onnxfuse.verification.reference.operators import ReferenceOperator

Array = npt.NDArray[Any]


class Resize(ReferenceOperator):
    """Nearest, linear and cubic interpolation; `antialias` falls back to onnx's implementation.

    The nearest pixel is determined in float32, as in ONNX Runtime: a coordinate halfway between two has no other
    answer. Linear and cubic weights are exact.
    """

    def _run(
        self,
        x: Array,
        roi: Array | None = None,
        scales: Array | None = None,
        sizes: Array | None = None,
        *,
        mode: str = "nearest",
        coordinate_transformation_mode: str = "half_pixel",
        nearest_mode: str = "round_prefer_floor",
        cubic_coeff_a: float = -0.75,
        exclude_outside: int = 0,
        extrapolation_value: float = 0.0,
        axes: Sequence[int] | None = None,
        keep_aspect_ratio_policy: str = "stretch",
        antialias: int = 0,
    ) -> tuple[Array]:
        if antialias:
            smoothed: tuple[Array] = ONNX_RESIZE(
                self, x, roi, scales, sizes, antialias=antialias, axes=axes, cubic_coeff_a=cubic_coeff_a,
                coordinate_transformation_mode=coordinate_transformation_mode, exclude_outside=exclude_outside,
                extrapolation_value=extrapolation_value, keep_aspect_ratio_policy=keep_aspect_ratio_policy, mode=mode,
                nearest_mode=nearest_mode,
            )  # fmt: skip
            return smoothed
        if self.opset == 10:
            assert roi is not None, "opset 10 has the scales there"
            return (resized(x, list(range(x.ndim)), None, roi.tolist(), mode, "asymmetric", "simple"),)
        chosen = [int(a) % x.ndim for a in axes] if axes else list(range(x.ndim))
        extents: list[int] | None = None
        if scales is None or not scales.size:
            assert sizes is not None, "one of scales and sizes is given"
            extents = [int(n) for n in np.ravel(sizes)]
            shares = [n / x.shape[a] for n, a in zip(extents, chosen, strict=True)]
            if keep_aspect_ratio_policy != "stretch":
                one = min(shares) if keep_aspect_ratio_policy == "not_larger" else max(shares)
                shares = [one] * len(shares)
                extents = [math.floor(one * x.shape[a] + 0.5) for a in chosen]
        else:
            shares = np.ravel(scales).tolist()
        ends = None if roi is None or not roi.size else np.ravel(roi)
        where = coordinate_transformation_mode
        cubic = (cubic_coeff_a, bool(exclude_outside))
        return (resized(x, chosen, extents, shares, mode, where, nearest_mode, ends, extrapolation_value, cubic),)


ONNX_RESIZE: Any = OnnxResize._run
"""onnx's implementation, for antialiasing."""


class Upsample(ReferenceOperator):
    """Resize before opset 10; the scales are an attribute before opset 9."""

    def _run(
        self, x: Array, scales: Array | Sequence[float] | None = None, mode: str = "nearest", **attribute: Any
    ) -> tuple[Array]:
        shares = np.asarray(scales if scales is not None else attribute["scales"]).tolist()
        return (resized(x, list(range(x.ndim)), None, shares, mode, "asymmetric", "simple"),)


class GridSample(ReferenceOperator):
    """The input at points of a grid in [-1, 1], of any rank; onnx's implementation rounds the points to float32.

    A point outside is reflected, or clamped to the border, before its neighbors are looked up, as in ONNX Runtime; not
    clamped in cubic mode.
    """

    def _run(
        self,
        x: Array,
        grid: Array,
        mode: str = "linear",
        padding_mode: str = "zeros",
        align_corners: int = 0,
    ) -> tuple[Array]:
        rank = x.ndim - 2
        points = grid.reshape(grid.shape[0], -1, rank)[..., ::-1]  # points list the last axis of the input first
        taps = []
        for axis, extent in enumerate(x.shape[2:]):
            low, high = (0.0, extent - 1.0) if align_corners else (-0.5, extent - 0.5)
            at = low + (points[..., axis] + 1) / 2 * (high - low)
            at = np.rint(at) if mode == "nearest" else at
            outside = (at < low) | (at > high)
            if padding_mode == "border" and not mode.endswith("cubic"):
                at = np.where(outside, np.clip(at, 0, extent - 1), at)
            elif padding_mode == "reflection":
                at = _reflected(at, low, high)
            base = np.floor(at).astype(np.int64)
            steps = {"nearest": (0,), "cubic": (-1, 0, 1, 2), "bicubic": (-1, 0, 1, 2)}.get(mode, (0, 1))
            along = []
            for position in (base + step for step in steps):
                d = np.abs(at - position)
                weight = np.ones_like(d) if len(steps) == 1 else 1 - d if len(steps) == 2 else _keys(d, -0.75)
                if padding_mode == "zeros":
                    weight = weight * ((position >= 0) & (position < extent))
                elif padding_mode == "reflection":
                    position = np.trunc(_reflected(position.astype(np.float64), low, high)).astype(np.int64)
                along.append((np.clip(position, 0, extent - 1), weight))
            taps.append(along)
        y = np.zeros((x.shape[0], x.shape[1], points.shape[1]), x.dtype)
        images = np.arange(x.shape[0])[:, None]
        for chosen in itertools.product(*taps):
            weight = math.prod((w for _, w in chosen[1:]), start=chosen[0][1])
            gathered = np.moveaxis(x, 1, -1)[(images, *(p for p, _ in chosen))]  # [batch, points, channels]
            y += np.moveaxis(gathered * weight[..., None], -1, 1)
        return (y.reshape(*x.shape[:2], *grid.shape[1:-1]),)


def _reflected(at: Array, low: float, high: float) -> Array:
    span = high - low
    if span == 0:
        return np.full_like(at, low)
    phase = np.mod(at - low, 2 * span)
    return np.asarray(np.where((at < low) | (at > high), low + np.minimum(phase, 2 * span - phase), at))


OPERATORS = (Resize, Upsample, GridSample)


def resized(
    x: Array,
    axes: Sequence[int],
    extents: Sequence[int] | None,
    scales: Sequence[float],
    mode: str,
    where: str,
    nearest: str,
    roi: Array | None = None,
    outside: float = 0.0,
    cubic: tuple[float, bool] = (-0.75, False),
) -> Array:
    """Resize `x` along `axes` to `extents`, or by the scales.

    `where` and `nearest` are the modes of Resize; "simple" is the behavior before opset 11. `cubic` are its coefficient
    and whether pixels outside are excluded.
    """
    y, beyond = x, None
    for index, (axis, scale) in enumerate(zip(axes, scales, strict=True)):
        extent = x.shape[axis]
        scale = float(np.float32(scale)) if extents is None or mode == "nearest" else float(scale)
        get = int(np.floor(np.float32(extent) * np.float32(scale))) if extents is None else extents[index]
        if get == extent and scale == 1 and where != "tf_crop_and_resize":
            continue
        ends = (0.0, 1.0) if roi is None else (float(roi[index]), float(roi[index + len(axes)]))
        at = coordinates(where, extent, get, scale, ends, np.float32 if mode == "nearest" else np.float64)
        if where == "tf_crop_and_resize":
            edge = ((at < 0) | (at > extent - 1)).reshape([-1 if a == axis else 1 for a in range(x.ndim)])
            beyond = edge if beyond is None else beyond | edge
        positions, weights = TAPS[mode](at, extent, nearest, scale, cubic)
        parts = [
            w.reshape([-1 if a == axis else 1 for a in range(x.ndim)]) * y.take(p, axis=axis)
            for p, w in zip(positions, weights, strict=True)
        ]
        y = sum(parts[1:], parts[0]) if mode != "nearest" else y.take(positions[0], axis=axis)
    y = y if beyond is None else np.where(beyond, outside, y)
    return y.astype(x.dtype)


def coordinates(
    where: str, extent: int, target: int, scale: float, ends: tuple[float, float], dtype: type[np.floating[Any]]
) -> Array:
    """Return the input coordinate of each of `target` outputs, computed in `dtype`; `ends` are the region's, as
    fractions."""
    x, scale_, half = np.arange(target).astype(dtype), dtype(scale), dtype(0.5)
    if where == "align_corners":
        return np.asarray(x * dtype(extent - 1) / dtype(target - 1) if target > 1 else x * 0)
    if where == "asymmetric":
        return np.asarray(x / scale_)
    if where == "tf_half_pixel_for_nn":
        return np.asarray((x + half) / scale_)
    if where == "tf_crop_and_resize":
        start, end, last = dtype(ends[0]), dtype(ends[1]), dtype(extent - 1)
        if target > 1:
            return np.asarray(start * last + x * (end - start) * last / dtype(target - 1))
        return np.asarray(x + half * (start + end) * last)
    if where == "pytorch_half_pixel" and target == 1:
        return np.asarray(x * 0)
    centred = (x + half) / scale_ - half
    if where == "half_pixel_symmetric":
        centred = centred + dtype(extent) / 2 * (1 - dtype(target) / (scale_ * dtype(extent)))
    return np.asarray(centred)


Taps = tuple[list[Array], list[Array]]


def _nearest(at: Array, extent: int, rounding: str, scale: float, _cubic: Any) -> Taps:
    rounded = {
        "round_prefer_floor": lambda: np.ceil(at - np.float32(0.5)),
        "round_prefer_ceil": lambda: np.floor(at + np.float32(0.5)),
        "floor": lambda: np.floor(at),
        "ceil": lambda: np.ceil(at),
        "simple": lambda: np.ceil(at) if scale < 1 else np.trunc(at),
    }[rounding]()
    return [np.clip(rounded, 0, extent - 1).astype(np.int64)], [np.ones(at.size)]


def _linear(at: Array, extent: int, _rounding: str, _scale: float, _cubic: Any) -> Taps:
    at = np.clip(at, 0, extent - 1)
    low = np.floor(at).astype(np.int64)
    return [low, np.minimum(low + 1, extent - 1)], [1 - (at - low), at - low]


def _cubic_taps(at: Array, extent: int, _rounding: str, _scale: float, cubic: tuple[float, bool]) -> Taps:
    a, inside_alone = cubic
    low = np.floor(at).astype(np.int64)
    positions, weights = [low + n for n in (-1, 0, 1, 2)], []
    for position in positions:
        d = np.abs(at - position)
        inside = (position >= 0) & (position < extent)
        weights.append(_keys(d, a) * (inside if inside_alone else 1))
    total = sum(weights) if inside_alone else 1.0
    return [np.clip(p, 0, extent - 1) for p in positions], [w / total for w in weights]


def _keys(d: Array, a: float) -> Array:
    """Return the weight of a pixel at distance `d` in cubic interpolation (Keys 1981)."""
    inner, outer = ((a + 2) * d - (a + 3)) * d * d + 1, ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, inner, outer)


TAPS: dict[str, Callable[[Array, int, str, float, Any], Taps]] = {
    "nearest": _nearest, "linear": _linear, "bilinear": _linear, "cubic": _cubic_taps,
}  # fmt: skip
"""By mode, the input's pixels that contribute to an output and their weights."""
