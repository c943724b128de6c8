"""A model evaluated in float64 by onnx's reference operators, freeing each value after its last reader.

Some of onnx's operators (1.23) are wrong, lack forms or round on the way: `operators` has ours. Its pools,
ConvTranspose, Resize and NonMaxSuppression are loops in Python, its Conv copies the input once per kernel position:
those with a window are written here, plainly, in NumPy, and `resizing` has the others.
"""

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from onnxfuse.model.graph import captured
from onnxfuse.verification import operators, recurrent, resizing
from onnxfuse.verification.precision import widen_tensor, widened
from onnxfuse.verification.witness import Witness

Array = npt.NDArray[Any]


class OutOfTime(RuntimeError):  # noqa: N818 - it names what was found, no mistake in this program
    """A run that was to end before it was done; the text says how far it came."""


class Float64(ReferenceEvaluator):
    """The evaluator, with the operators below in place of onnx's own, in function bodies and subgraphs too."""

    witness: Witness | None = None
    """Who is asked whether an operator is right; None to believe them all."""
    until: float = math.inf
    """When a run ends at the latest, by `time.perf_counter`; like the witness, of all evaluators of one model."""

    def __init__(self, proto: Any, **options: Any) -> None:
        options["new_ops"] = [*OPERATORS, *(options.get("new_ops") or [])]
        super().__init__(proto, **options)
        self.limit = math.inf
        """Seconds of this thread's work that a run may take, bodies of If and Loop with it."""
        self._last_readers = _last_readers(list(self.nodes_), self.output_names)

    def run(  # type: ignore[override]  # Its other options serve debugging, and are passed as their defaults.
        self,
        output_names: Sequence[str] | None,
        feed_inputs: Mapping[str, Any],
        attributes: Mapping[str, Any] | None = None,
        **_unused: Any,
    ) -> list[Any]:
        """Return the outputs in order, holding no value longer than its last reader needs it.

        Raises RuntimeError where that takes longer than `limit`, OutOfTime where it is later than `until`.
        """
        began = time.thread_time()
        results: dict[str, Any] = {"": None, **self.rt_inits_, **feed_inputs}
        for node, finished in zip(self.rt_nodes_, self._last_readers, strict=True):
            options: dict[str, Any] = {}
            if node.has_linked_attribute and attributes:
                options["linked_attributes"] = attributes
            if node.need_context():
                options["context"] = results
            inputs = self.read(node.op_type, [results[name] for name in node.input])
            outputs = node.run(*inputs, **options)
            if self.witness is not None:
                outputs = self.witness.believed(node, attributes, inputs, outputs)
            results.update(zip(node.output, outputs, strict=False))
            for name in finished:
                results.pop(name, None)
            if time.thread_time() - began > self.limit:
                raise RuntimeError(f"a case takes more than {self.limit:g} s, as far as {node.op_type}")
            if time.perf_counter() > self.until:
                raise OutOfTime(f"the time for it is used up at {node.op_type} (--time)")
        return [results[name] for name in (output_names or self.output_names)]

    def read(self, operator: str, inputs: list[Any]) -> list[Any]:
        """Return what a node reads for its inputs."""
        return inputs


class Tf32(Float64):
    """The evaluator of what a GPU may compute that rounds the factors of products to TF32, and nothing else."""

    def read(self, operator: str, inputs: list[Any]) -> list[Any]:
        """Return the inputs, the first two of a product rounded."""
        return [*map(to_tf32, inputs[:2]), *inputs[2:]] if operator in PRODUCTS else inputs


PRODUCTS = frozenset({"MatMul", "Gemm", "Conv"})
"""Operators that ONNX Runtime's CUDA provider computes from TF32 factors unless its option `use_tf32` is 0."""


def to_tf32(x: Array) -> Array:
    """Return float64 numbers rounded to the eleven significant bits of TF32."""
    fraction, exponent = np.frexp(x)
    return np.asarray(np.ldexp(np.rint(fraction * 2048) / 2048, exponent))


def float64_evaluator(model: onnx.ModelProto, kind: type[Float64] = Float64, witness: Witness | None = None) -> Float64:
    """Return an evaluator of `model` in float64. Raises what onnx raises where an operator is not implemented.

    `witness` is asked whether its operators are right, those in function bodies and subgraphs too.
    """
    # Function bodies and subgraphs make evaluators of the same class by themselves: the witness goes with the class.
    witnessed = type(kind.__name__, (kind,), {"witness": witness})
    evaluator: Float64 = witnessed(widened(model, TensorProto.DOUBLE, weights=False))
    for tensor in model.graph.initializer:
        evaluator.rt_inits_[tensor.name] = numpy_helper.to_array(widen_tensor(tensor, TensorProto.DOUBLE))
    return evaluator


def _last_readers(nodes: list[onnx.NodeProto], outputs: Sequence[str]) -> list[list[str]]:
    """Return, per node, the values that nobody reads after it."""
    kept = {"", *outputs}
    finished: list[list[str]] = []
    for node in reversed(nodes):
        names = dict.fromkeys((*node.input, *node.output, *captured(node)))
        finished.append([name for name in names if name not in kept])
        kept.update(names)
    return finished[::-1]


class Conv(OpRun):
    """Convolution of any rank, depthwise tap by tap, else as products of matrices over some channels at a time."""

    def _run(
        self,
        x: Array,
        w: Array,
        b: Array | None = None,
        auto_pad: str | None = None,
        dilations: Sequence[int] | None = None,
        group: int | None = None,
        kernel_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Array]:
        group = group or 1
        window = _window(x.shape[2:], w.shape[2:], auto_pad, dilations, pads, strides)
        padded = window.pad(x, 0.0)
        padded = padded.reshape(x.shape[0], group, x.shape[1] // group, *padded.shape[2:])
        weight = w.reshape(group, w.shape[0] // group, x.shape[1] // group, -1)
        y = (_depthwise if weight.shape[2] == 1 else _products)(padded, weight, window, w.shape[2:])
        y = y.reshape(x.shape[0], w.shape[0], *window.output)
        return (y if b is None else y + b.reshape(-1, *[1] * len(window.output)),)


def _depthwise(padded: Array, weight: Array, window: "_Window", kernel: Sequence[int]) -> Array:
    """Return [batch, group, maps, places] of `padded` [batch, group, 1, ...] and `weight` [group, maps, 1, taps]."""
    y: Array | None = None
    for tap, position in enumerate(itertools.product(*map(range, kernel))):
        seen = window.at(padded, position).reshape(*padded.shape[:3], -1)
        term = weight[..., tap] * seen
        y = term if y is None else np.add(y, term, out=y)
    assert y is not None, "a kernel has at least one tap"
    return y


def _products(padded: Array, weight: Array, window: "_Window", kernel: Sequence[int]) -> Array:
    """Return [batch, maps of all groups, places] of `padded` [batch, group, channels, ...].

    `weight` is [group, maps, channels, taps]. Its rows are read as they lie, what they meet is copied together: BLAS
    takes no matrix whose numbers lie apart.
    """
    group, maps, channels, taps = weight.shape
    batch, places = len(padded), math.prod(window.output)
    rows = weight.reshape(group, maps, channels * taps)
    at_once = max(1, COLUMNS // max(1, group * taps * batch * places))
    y = np.zeros((group, maps, batch * places), padded.dtype)
    for first in range(0, channels, at_once):
        some = padded[:, :, first : first + at_once]
        columns = np.empty((group, some.shape[2], taps, batch, *window.output), padded.dtype)
        for tap, position in enumerate(itertools.product(*map(range, kernel))):
            columns[:, :, tap] = np.moveaxis(window.at(some, position), 0, 2)
        y += rows[..., first * taps : (first + at_once) * taps] @ columns.reshape(group, -1, batch * places)
    return np.moveaxis(y.reshape(group * maps, batch, places), 1, 0)


COLUMNS = 1 << 22
"""Numbers that a convolution copies together at a time: 32 MB in float64."""


class MaxPool(OpRun):
    """The largest value under the window; as a second output, where in the flat input it lies."""

    def _run(
        self,
        x: Array,
        auto_pad: str | None = None,
        ceil_mode: int | None = None,
        dilations: Sequence[int] | None = None,
        kernel_shape: Sequence[int] = (),
        pads: Sequence[int] | None = None,
        storage_order: int | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Array, ...]:
        window = _window(x.shape[2:], kernel_shape, auto_pad, dilations, pads, strides, bool(ceil_mode))
        lowest = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
        padded = window.pad(x, lowest)
        y = np.full((*x.shape[:2], *window.output), lowest, x.dtype)
        if len(self.onnx_node.output) == 1:
            for position in itertools.product(*map(range, kernel_shape)):
                np.maximum(y, window.at(padded, position), out=y)
            return (y,)
        order: Literal["F", "C"] = "F" if storage_order else "C"
        flat = np.arange(math.prod(x.shape[2:])).reshape(x.shape[2:], order=order)
        flat = flat + np.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *[1] * flat.ndim) * flat.size
        places, indices = window.pad(flat, -1), np.full(y.shape, -1)
        for position in itertools.product(*map(range, kernel_shape)):
            value, place = window.at(padded, position), window.at(places, position)
            better = (place >= 0) & ((indices < 0) | (value > y))
            y, indices = np.where(better, value, y), np.where(better, place, indices)
        return y, indices


class AveragePool(OpRun):
    """The mean under the window; padding counts only with `count_include_pad`."""

    def _run(
        self,
        x: Array,
        auto_pad: str | None = None,
        ceil_mode: int | None = None,
        count_include_pad: int | None = None,
        dilations: Sequence[int] | None = None,
        kernel_shape: Sequence[int] = (),
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Array]:
        window = _window(x.shape[2:], kernel_shape, auto_pad, dilations, pads, strides, bool(ceil_mode))
        # Only what `pads` adds may count; what ceil_mode lets the window overhang never does.
        inside = np.ones((1, 1, *x.shape[2:]))
        if count_include_pad:
            declared = [(a, b) for a, b in window.pads]
            inside = _padded(inside, declared, 1.0)
            counted = window.overhang(inside)
        else:
            counted = window.pad(inside, 0.0)
        padded = window.pad(x, 0.0)
        total = np.zeros((*x.shape[:2], *window.output), x.dtype)
        count = np.zeros((1, 1, *window.output))
        for position in itertools.product(*map(range, kernel_shape)):
            total += window.at(padded, position)
            count += window.at(counted, position)
        return ((total / count).astype(x.dtype),)


class LpPool(OpRun):
    """The p-norm under the window."""

    def _run(
        self,
        x: Array,
        auto_pad: str | None = None,
        ceil_mode: int | None = None,
        dilations: Sequence[int] | None = None,
        kernel_shape: Sequence[int] = (),
        p: int = 2,
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Array]:
        window = _window(x.shape[2:], kernel_shape, auto_pad, dilations, pads, strides, bool(ceil_mode))
        powers = window.pad(np.abs(x) ** p, 0.0)
        total = sum(window.at(powers, position) for position in itertools.product(*map(range, kernel_shape)))
        return (np.asarray(total ** (1 / p)).astype(x.dtype),)


class ConvTranspose(OpRun):
    """The gradient of a convolution: each input is spread over its window, and what is padding is cut away."""

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
        group, rank, places = group or 1, x.ndim - 2, math.prod(x.shape[2:])
        strides, dilations, more = strides or [1] * rank, dilations or [1] * rank, output_padding or [0] * rank
        sizes = list(zip(x.shape[2:], w.shape[2:], strides, dilations, strict=True))
        spans = [(n - 1) * stride + (k - 1) * dilation + 1 for n, k, stride, dilation in sizes]
        whole = [span + extra for span, extra in zip(spans, more, strict=True)]
        y = np.zeros((x.shape[0], group, w.shape[1], *whole), x.dtype)
        rows = x.reshape(x.shape[0], group, -1, places)
        taps = np.ascontiguousarray(w.reshape(group, -1, w.shape[1], math.prod(w.shape[2:])).transpose(3, 0, 2, 1))
        first = [slice(None)] * 3
        for tap, position in enumerate(itertools.product(*map(range, w.shape[2:]))):
            starts = [p * dilation for p, (_, _, _, dilation) in zip(position, sizes, strict=True)]
            reached = [
                slice(start, start + (n - 1) * stride + 1, stride)
                for start, (n, _, stride, _) in zip(starts, sizes, strict=True)
            ]
            y[(*first, *reached)] += (taps[tap] @ rows).reshape(*y.shape[:3], *x.shape[2:])
        if output_shape or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            wanted = output_shape or [n * stride for n, _, stride, _ in sizes]
            cut = [n - size for n, size in zip(whole, wanted, strict=True)]
            cut = cut if output_shape else [max(0, n) for n in cut]
            before = [n // 2 if auto_pad == "SAME_UPPER" else n - n // 2 for n in cut]
            pads = [*before, *(n - b for n, b in zip(cut, before, strict=True))]
        pads = pads if pads and auto_pad != "VALID" else [0] * 2 * rank
        # An output may be larger than what is reached: nothing lies there.
        y = _padded(y.reshape(x.shape[0], -1, *whole), [(max(0, -a), max(0, -b)) for a, b in _ends(pads)], 0.0)
        kept = [slice(max(0, a), n - max(0, b)) for n, (a, b) in zip(y.shape[2:], _ends(pads), strict=True)]
        y = y[(*first[:2], *kept)]
        return (y if b is None else y + b.reshape(-1, *[1] * rank),)


class NonMaxSuppression(OpRun):
    """The best boxes of each class of each image, without those that overlap a better one: [how many, 3]."""

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
        found = []
        for image, (corners, by_class) in enumerate(zip(_corners(boxes, center_point_box), scores, strict=True)):
            for number, one in enumerate(by_class):
                order = np.argsort(-one, kind="stable")
                order = order if least is None else order[one[order] > least.item()]
                for _ in range(min(count, order.size)):
                    if not order.size:
                        break
                    best, order = order[0], order[1:]
                    found.append((image, number, best))
                    order = order[_overlaps(corners[best], corners[order]) <= limit]
        return (np.array(found, np.int64).reshape(-1, 3),)


def _corners(boxes: Array, center_point_box: int | None) -> Array:
    """Return boxes as least and greatest corner: [..., 2, 2]."""
    if center_point_box:
        middle, half = boxes[..., :2], boxes[..., 2:] / 2
        return np.stack([middle - half, middle + half], axis=-2)
    pairs = boxes.reshape(*boxes.shape[:-1], 2, 2)
    return np.stack([pairs.min(axis=-2), pairs.max(axis=-2)], axis=-2)


def _overlaps(box: Array, others: Array) -> Array:
    """Return intersection over union of a box and others; 0 where one of them is empty."""
    common = np.maximum(np.minimum(box[1], others[:, 1]) - np.maximum(box[0], others[:, 0]), 0).prod(axis=-1)
    own, theirs = (box[1] - box[0]).prod(), (others[:, 1] - others[:, 0]).prod(axis=-1)
    real = (common > 0) & (own > 0) & (theirs > 0)
    return np.asarray(np.where(real, common / np.where(real, own + theirs - common, 1), 0))


OPERATORS: tuple[type[OpRun], ...] = (
    *operators.OPERATORS, *resizing.OPERATORS, *recurrent.OPERATORS,
    Conv, ConvTranspose, MaxPool, AveragePool, LpPool, NonMaxSuppression,
)  # fmt: skip
for _operator in OPERATORS:
    _operator.op_domain = ""


class _Window:
    """A sliding window over the last axes: where it stands for each output, what lies under one of its positions."""

    def __init__(
        self,
        pads: list[tuple[int, int]],
        strides: Sequence[int],
        dilations: Sequence[int],
        output: tuple[int, ...],
        overhang: list[int],
    ) -> None:
        self.pads = pads
        self.strides = strides
        self.dilations = dilations
        self.output = output
        self._overhang = overhang

    def pad(self, x: Array, value: float) -> Array:
        """Return `x` with everything around it that the window can touch."""
        return self.overhang(_padded(x, self.pads, value), value)

    def overhang(self, x: Array, value: float = 0.0) -> Array:
        """Return the padded `x` with what ceil_mode lets the window overhang at the end."""
        return _padded(x, [(0, o) for o in self._overhang], value)

    def at(self, padded: Array, position: Sequence[int]) -> Array:
        """Return the values under one position of the window, one for each output."""
        slices = (
            slice(p * d, p * d + (n - 1) * s + 1, s)
            for p, d, n, s in zip(position, self.dilations, self.output, self.strides, strict=True)
        )
        before = [slice(None)] * (padded.ndim - len(self.strides))
        return padded[(*before, *slices)]


def _ends(pads: Sequence[int]) -> list[tuple[int, int]]:
    """Return pairs of what is before and after, by axis, of an attribute `pads`."""
    return list(zip(pads[: len(pads) // 2], pads[len(pads) // 2 :], strict=True))


def _padded(x: Array, widths: Sequence[tuple[int, int]], value: float) -> Array:
    """Return `x` with so much of `value` before and after it along its last axes; `x` itself where that is nothing."""
    if not any(itertools.chain(*widths)):
        return x
    return np.pad(x, [(0, 0), (0, 0), *widths], constant_values=value)


def _window(
    extents: Sequence[int],
    kernel: Sequence[int],
    auto_pad: str | None,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    strides: Sequence[int] | None,
    ceil_mode: bool = False,
) -> _Window:
    rank = len(extents)
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    ends = _padding(extents, spans, strides, auto_pad, pads)
    output, overhang = [], []
    for extent, span, stride, (before, after) in zip(extents, spans, strides, ends, strict=True):
        room = extent + before + after - span
        count = (math.ceil(room / stride) if ceil_mode else room // stride) + 1
        if ceil_mode and (count - 1) * stride >= extent + before:
            count -= 1  # A window that starts in the padding behind the data is left out.
        output.append(count)
        overhang.append(max(0, (count - 1) * stride - room))
    return _Window(ends, strides, dilations, tuple(output), overhang)


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
