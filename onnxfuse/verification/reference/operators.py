"""Own reference operators where onnx's are wrong, incomplete, round internally, or are Python loops.

Each implements every opset: differences are resolved by the opset of the node. All are compared with ONNX Runtime by
`tests/unit/verification/reference/test_operators.py`.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_quantize_linear import QuantizeLinear_25 as OnnxQuantizeLinear
from onnx.reference.ops.op_roi_align import RoiAlign as OnnxRoiAlign

from onnxfuse.ops.quantize import INTEGER_RANGES
from onnxfuse.verification.reference.promoted import NARROWER_ARRAYS

Array = npt.NDArray[Any]


class ReferenceOperator(OpRun):
    """Base of an operator that knows the opset of its node. Attributes missing in the newest schema arrive as
    keywords."""

    @property
    def opset(self) -> int:
        """Return the opset of the node."""
        return int(self.run_params["opsets"][self.onnx_node.domain])

    def says(self, attribute: str) -> bool:
        """Return whether the node itself has the attribute; defaults are those of the newest schema."""
        return any(a.name == attribute for a in self.onnx_node.attribute)


# ---- elementwise


class Erf(ReferenceOperator):
    """The error function, bit-identical to the C library's."""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.fromiter(map(math.erf, x.ravel().tolist()), np.float64, x.size).reshape(x.shape).astype(x.dtype),)


class Sigmoid(ReferenceOperator):
    """1 / (1 + exp(-x)); onnx's implementation separates the elements by sign, and is several times slower."""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.asarray(1 / (1 + np.exp(-x))).astype(x.dtype),)


class HardSwish(ReferenceOperator):
    """x * clip(x / 6 + 1/2, 0, 1); in onnx's function body 1/6 is a float32 constant."""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.asarray(x * np.clip(x / 6 + 0.5, 0, 1)),)


class Softsign(ReferenceOperator):
    """x / (1 + |x|); onnx's implementation does not accept a scalar."""

    def _run(self, x: Array) -> tuple[Array]:
        return (np.asarray(x / (1 + np.abs(x))),)


class Mean(ReferenceOperator):
    """The mean of broadcast tensors; onnx's implementation accumulates in the shape of the first."""

    def _run(self, *x: Array) -> tuple[Array]:
        return (np.asarray(sum(x[1:], x[0]) / len(x)).astype(x[0].dtype),)


# ---- along axes


class _Rows(ReferenceOperator):
    """An operator along one axis; before opset 13 along all axes from `axis` on, by default 1."""

    def _run(self, x: Array, axis: int | None = None) -> tuple[Array]:
        if self.opset >= 13:
            return (np.asarray(self.along(x, -1 if axis is None else axis)),)
        axis = int(axis) % x.ndim if self.says("axis") and axis is not None else 1
        rows = x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))
        return (np.asarray(self.along(rows, 1)).reshape(x.shape),)

    def along(self, x: Array, axis: int) -> Array:
        """Return the result along one axis."""
        raise NotImplementedError


class Softmax(_Rows):
    """exp(x) over its sum."""

    def along(self, x: Array, axis: int) -> Array:
        e = np.exp(x - _largest(x, axis))
        return np.asarray(e / e.sum(axis=axis, keepdims=True))


class LogSoftmax(_Rows):
    """x minus the logarithm of the sum of exp(x)."""

    def along(self, x: Array, axis: int) -> Array:
        d = x - _largest(x, axis)
        return np.asarray(d - np.log(np.exp(d).sum(axis=axis, keepdims=True)))


class Hardmax(_Rows):
    """1 at the first largest value, 0 elsewhere."""

    def along(self, x: Array, axis: int) -> Array:
        y = np.zeros_like(x)
        np.put_along_axis(y, np.argmax(x, axis=axis, keepdims=True), 1, axis=axis)
        return y


def _largest(x: Array, axis: int) -> Array:
    return np.asarray(x.max(axis=axis, keepdims=True) if x.size else 0)


class LpNormalization(ReferenceOperator):
    """x over the sum of its magnitudes, or over the root of the sum of its squares; 0 if that is 0."""

    def _run(self, x: Array, axis: int = -1, p: int = 2) -> tuple[Array]:
        norm = np.abs(x).sum(axis=axis, keepdims=True) if p == 1 else np.sqrt((x * x).sum(axis=axis, keepdims=True))
        return (np.where(norm == 0, 0, x / np.where(norm == 0, 1, norm)).astype(x.dtype),)


class MeanVarianceNormalization(ReferenceOperator):
    """(x - mean) / (standard deviation + 1e-9); in onnx's function body the constant is float32."""

    def _run(self, x: Array, axes: Sequence[int] = (0, 2, 3)) -> tuple[Array]:
        along = tuple(axes)
        d = x - x.mean(axis=along, keepdims=True)
        return (d / (np.sqrt((d * d).mean(axis=along, keepdims=True)) + 1e-9),)


# ---- norms over channels


class BatchNormalization(ReferenceOperator):
    """Normalized by the given statistics, then scaled and shifted; by batch statistics with `training_mode`, from opset
    14."""

    def _run(
        self,
        x: Array,
        scale: Array,
        bias: Array,
        mean: Array,
        var: Array,
        epsilon: float = 1e-5,
        momentum: float = 0.9,
        training_mode: int = 0,
        spatial: int = 1,
        **_older: Any,
    ) -> tuple[Array, ...]:
        if not training_mode and len(self.onnx_node.output) > 1:
            raise NotImplementedError("BatchNormalization as opsets before 14 train it")
        if self.opset < 9 and not spatial:
            return ((x - mean) / np.sqrt(var + epsilon) * scale + bias,)
        if not training_mode:
            return (_normalized(x, mean, var, epsilon, scale, bias),)
        axes = tuple(a for a in range(x.ndim) if a != 1)
        batch_mean, batch_var = x.mean(axis=axes), x.var(axis=axes)
        running = (mean * momentum + batch_mean * (1 - momentum), var * momentum + batch_var * (1 - momentum))
        return (_normalized(x, batch_mean, batch_var, epsilon, scale, bias), *running)[: len(self.onnx_node.output)]


class GroupNormalization(ReferenceOperator):
    """Normalized over the channels of a group and all positions; onnx's implementation rounds to float32 internally.

    Scale and bias are per group before opset 21, per channel from there on.
    """

    def _run(
        self, x: Array, scale: Array, bias: Array, epsilon: float = 1e-5, num_groups: int = 1, **_unused: Any
    ) -> tuple[Array]:
        groups = x.reshape(x.shape[0], num_groups, -1)
        d = groups - groups.mean(axis=-1, keepdims=True)
        y = d / np.sqrt((d * d).mean(axis=-1, keepdims=True) + epsilon)
        if self.opset < 21:
            return ((y * scale[:, None] + bias[:, None]).reshape(x.shape),)
        return (y.reshape(x.shape) * _by_channel(scale, x.ndim) + _by_channel(bias, x.ndim),)


class LRN(ReferenceOperator):
    """x over a power of the sum of squares of neighboring channels."""

    def _run(self, x: Array, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int = 1) -> tuple[Array]:
        squares = np.zeros_like(x)
        for shift in range(-((size - 1) // 2), size - (size - 1) // 2):
            first, end = max(0, -shift), min(x.shape[1], x.shape[1] - shift)
            squares[:, first:end] += x[:, first + shift : end + shift] ** 2
        return (x / (bias + alpha / size * squares) ** beta,)


def _normalized(x: Array, mean: Array, var: Array, epsilon: float, scale: Array, bias: Array) -> Array:
    m, v, s, t = (_by_channel(a, x.ndim) for a in (mean, var, scale, bias))
    return np.asarray((x - m) / np.sqrt(v + epsilon) * s + t)


def _by_channel(a: Array, rank: int) -> Array:
    return a.reshape(-1, *[1] * (rank - 2))


# ---- means and maxima over whole images


class GlobalMaxPool(ReferenceOperator):
    """The largest value of each channel; onnx's implementation supports two spatial axes only."""

    def _run(self, x: Array) -> tuple[Array]:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class GlobalLpPool(ReferenceOperator):
    """The p-norm of each channel."""

    def _run(self, x: Array, p: int = 2) -> tuple[Array]:
        return ((np.abs(x) ** p).sum(axis=tuple(range(2, x.ndim)), keepdims=True) ** (1 / p),)


# ---- movement


class Pad(ReferenceOperator):
    """Pads, or crops for negative widths; widths are an attribute before opset 11, for selected axes from 18 on."""

    def _run(
        self,
        x: Array,
        widths: Array | None = None,
        value: Array | float | None = None,
        axes: Array | None = None,
        mode: str | None = None,
        pads: Sequence[int] | None = None,
        **_older: Any,
    ) -> tuple[Array]:
        ends = np.asarray(pads if widths is None else widths, np.int64)
        chosen = list(range(x.ndim)) if axes is None else [int(a) % x.ndim for a in np.ravel(axes)]
        if widths is None and value is None:
            value = _older.get("value")
        before, after = np.zeros(x.ndim, np.int64), np.zeros(x.ndim, np.int64)
        before[chosen], after[chosen] = ends[: len(chosen)], ends[len(chosen) :]
        inside = tuple(slice(max(0, -b), n - max(0, -a)) for b, a, n in zip(before, after, x.shape, strict=True))
        grown = [(max(0, int(b)), max(0, int(a))) for b, a in zip(before, after, strict=True)]
        numpy_mode: Any = mode or "constant"
        if numpy_mode == "constant":
            fill = 0 if value is None else np.asarray(value).item()
            return (np.pad(x[inside], grown, constant_values=fill),)
        return (np.pad(x[inside], grown, mode=numpy_mode),)


class GatherElements(ReferenceOperator):
    """The elements at `indices` along an axis; `indices` may be shorter along the other axes."""

    def _run(self, x: Array, indices: Array, axis: int = 0) -> tuple[Array]:
        return (x[_index_arrays(x, indices, axis)],)


class OneHot(ReferenceOperator):
    """The second of `values` at each index of a new axis, the first elsewhere; onnx's implementation rejects a depth of
    rank 1."""

    def _run(self, indices: Array, depth: Array, values: Array, axis: int = -1) -> tuple[Array]:
        count = int(np.asarray(depth).item())
        positions = np.expand_dims(np.where(indices < 0, indices + count, indices), axis)
        columns = np.arange(count).reshape([-1 if a == axis % positions.ndim else 1 for a in range(positions.ndim)])
        return (np.where(columns == positions, values[1], values[0]).astype(values.dtype),)


class Scatter(ReferenceOperator):
    """`x` with `updates` at `indices` along an axis: the name of ScatterElements in opsets 9 and 10."""

    def _run(self, x: Array, indices: Array, updates: Array, axis: int = 0) -> tuple[Array]:
        y = x.copy()
        y[_index_arrays(x, indices, axis)] = updates
        return (y,)


def _index_arrays(x: Array, indices: Array, axis: int) -> tuple[Array, ...]:
    indices_by_axis: list[Array] = list(np.indices(indices.shape, sparse=True))
    indices_by_axis[axis] = np.where(indices < 0, indices + x.shape[axis], indices)
    return tuple(indices_by_axis)


# ---- eight bits


class DequantizeLinear(ReferenceOperator):
    """(x - zero) * scale: per tensor, per channel of an axis, from opset 21 on block-wise along one."""

    def _run(
        self, x: Array, scale: Array, zero: Array | None = None, axis: int = 1, block_size: int = 0, **_unused: Any
    ) -> tuple[Array]:
        wide = x.astype(np.int64) if x.dtype.kind in "iu" else x.astype(np.float64)
        if zero is not None:
            wide = wide - _along(zero, x, axis, block_size).astype(wide.dtype)
        return ((wide * _along(scale, x, axis, block_size)).astype(scale.dtype),)


class QuantizeLinear(OnnxQuantizeLinear):
    """saturate(round_half_even(x / scale) + zero); onnx's implementation rounds to int32 first, and so turns what is
    beyond its range into the smallest integer."""

    def _run(self, *inputs: Any, **attributes: Any) -> tuple[Array]:
        x, scale, zero = (*inputs, None)[:3]
        written = TensorProto.UINT8 if zero is None else helper.np_dtype_to_tensor_dtype(zero.dtype)
        to = int(attributes.get("output_dtype") or written)
        if to not in INTEGER_RANGES:
            result: tuple[Array] = ONNX_QUANTIZE(self, *inputs, **attributes)
            return result
        axis, block_size = attributes.get("axis", 1), attributes.get("block_size") or 0
        steps = np.rint(x / _along(scale, x, axis, block_size))
        if zero is not None:
            steps = steps + _along(zero, x, axis, block_size).astype(steps.dtype)
        return (np.clip(steps, *INTEGER_RANGES[to]).astype(helper.tensor_dtype_to_np_dtype(to)),)


ONNX_QUANTIZE: Any = OnnxQuantizeLinear._run
"""onnx's implementation, which is right for float8 and float4."""


def _along(parameter: Array, x: Array, axis: int, block_size: int) -> Array:
    if parameter.ndim == 0 or parameter.size == 1:
        return parameter.reshape(())
    if parameter.ndim == 1:
        return parameter.reshape([-1 if a == axis % x.ndim else 1 for a in range(x.ndim)])
    return np.repeat(parameter, block_size, axis=axis).take(range(x.shape[axis]), axis=axis)


class NonMaxSuppression(OpRun):
    """The best boxes of each class of each image, without those that overlap a better one: [count, 3]."""

    def _run(
        self,
        boxes: Array,
        scores: Array,
        most: Array | None = None,
        overlap: Array | None = None,
        least: Array | None = None,
        center_point_box: int | None = None,
    ) -> tuple[Array]:
        count, limit = (0 if most is None else int(most.item())), 0.0 if overlap is None else float(overlap.item())
        selected = []
        for image, (corners, by_class) in enumerate(zip(_corners(boxes, center_point_box), scores, strict=True)):
            for class_index, one in enumerate(by_class):
                order = np.argsort(-one, kind="stable")
                order = order if least is None else order[one[order] > least.item()]
                for _ in range(min(count, order.size)):
                    if not order.size:
                        break
                    best, order = order[0], order[1:]
                    selected.append((image, class_index, best))
                    order = order[_overlaps(corners[best], corners[order]) <= limit]
        return (np.array(selected, np.int64).reshape(-1, 3),)


def _corners(boxes: Array, center_point_box: int | None) -> Array:
    """Return boxes as minimum and maximum corners: [..., 2, 2]."""
    if center_point_box:
        middle, half = boxes[..., :2], boxes[..., 2:] / 2
        return np.stack([middle - half, middle + half], axis=-2)
    pairs = boxes.reshape(*boxes.shape[:-1], 2, 2)
    return np.stack([pairs.min(axis=-2), pairs.max(axis=-2)], axis=-2)


def _overlaps(box: Array, others: Array) -> Array:
    """Return intersection over union of a box and others; 0 if one of them is empty."""
    common = np.maximum(np.minimum(box[1], others[:, 1]) - np.maximum(box[0], others[:, 0]), 0).prod(axis=-1)
    area, areas = (box[1] - box[0]).prod(), (others[:, 1] - others[:, 0]).prod(axis=-1)
    real = (common > 0) & (area > 0) & (areas > 0)
    return np.asarray(np.where(real, common / np.where(real, area + areas - common, 1), 0))


# ---- bits


class BitCast(ReferenceOperator):
    """Reinterprets the bits as another type, through float32 where the reference uses float64."""

    def _run(self, x: Array, to: int = 0) -> tuple[Array]:
        target = helper.tensor_dtype_to_np_dtype(to)
        if x.dtype == np.float64 and target.itemsize == 4:
            x = x.astype(np.float32)
        if x.dtype.itemsize != target.itemsize:
            raise NotImplementedError("BitCast of a type of 16 bits")  # float16 or bfloat16: here both are float64
        y = np.ascontiguousarray(x).reshape(x.shape).view(target)
        return (y.astype(np.float64) if target in NARROWER_ARRAYS[np.dtype(np.float64)] else y,)


# ---- optionals


class Optional(OpRun):
    """A value, or none; onnx's implementation makes a list of it, which no operator unwraps."""

    def _run(self, x: Any = None, type: Any = None) -> tuple[Any]:
        return (x,)


# ---- onnx's implementation with defaults and names of older opsets


class RoiAlign(OnnxRoiAlign):
    """Means or maxima over boxes; before opset 16 corners are not shifted by half a pixel."""

    def _run(self, *inputs: Any, **attributes: Any) -> tuple[Array]:
        if self.run_params["opsets"][self.onnx_node.domain] < 16:
            attributes["coordinate_transformation_mode"] = "output_half_pixel"
        result: tuple[Array] = ONNX_ROI_ALIGN(self, *inputs, **attributes)
        return result


ONNX_ROI_ALIGN: Any = OnnxRoiAlign._run
"""onnx's implementation, which is right from opset 16 on."""


OPERATORS: tuple[type[OpRun], ...] = (
    Erf, Sigmoid, HardSwish, Softsign, Mean, Softmax, LogSoftmax, Hardmax, LpNormalization, MeanVarianceNormalization,
    BatchNormalization, GroupNormalization, LRN, GlobalMaxPool, GlobalLpPool, Pad, GatherElements, OneHot,
    Scatter, DequantizeLinear, QuantizeLinear, RoiAlign, NonMaxSuppression, BitCast, Optional,
)  # fmt: skip
