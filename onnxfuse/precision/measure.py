"""Measure each node in the reference run: the range of its values, and the error that lower precision would cause.

The reference calls a witness after every node, also in bodies. This one records the magnitude of each value, and
evaluates the node once more on inputs rounded to the lower type: the difference is the node's own error, irrespective
of later nodes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, TensorProto
from threadpoolctl import ThreadpoolController

from onnxfuse.precision import rounding
from onnxfuse.precision.plan import FloatNode
from onnxfuse.precision.scopes import key
from onnxfuse.support.plurals import plural
from onnxfuse.verification.reference.float64_reference import ONE_THREAD_FLOPS, flops, in_type
from onnxfuse.verification.reference.ort_reference import OrtReference
from onnxfuse.verification.reference.reference import Float64, OutOfTime, float64_evaluator
from onnxfuse.verification.run.tensors import tensors_of
from onnxfuse.verification.tolerance.lower_precision import relative_rms

Array = npt.NDArray[Any]

SENSITIVE = 8.0
"""Error amplification beyond which a node's inputs are examined one by one: a norm or a product amplifies two or three
times, a difference of numbers that agree in three binary digits eight times."""

WIDE = (np.dtype(np.float64), np.dtype(np.float32))
"""Type of the reference computation; values of other types are unchanged."""

FIRST_SHARE = 4.0
"""Multiple of the time limit allowed for the first case: without one nothing is known."""


@dataclass
class ObservedNode:
    """Statistics of one node over all cases."""

    largest: float = 0.0
    """The largest finite number that it produced."""
    infinite: bool = False
    """Whether it produced an infinity or NaN itself."""
    error: dict[int, float] = field(default_factory=dict)
    """By type, the relative RMS error of its outputs for inputs rounded to that type; infinite if it produces no number
    and should."""
    blamed: dict[int, dict[int, float]] = field(default_factory=dict)
    """By type, the same with each input rounded alone, for nodes that amplify rounding."""
    inexact: dict[int, dict[int, float]] = field(default_factory=dict)
    """By type, the inputs not exactly representable in it, and the relative RMS error of their rounding."""


@dataclass
class NodeStatistics:
    """Statistics of a model."""

    observed: dict[str, ObservedNode]
    """By the first output of a node."""
    outputs: list[dict[str, Array]]
    """The reference outputs of each case that was run."""
    note: str = ""
    """Why not all cases were run."""


class Meter(OrtReference):
    """The witness that measures."""

    def __init__(self, float_nodes: Mapping[str, FloatNode], types: Sequence[int]) -> None:
        super().__init__()
        self.places, self.types = float_nodes, types
        self.observed: dict[str, ObservedNode] = {}
        self._weights: dict[tuple[int, int], tuple[Any, Array, bool]] = {}
        """Weights in the lower type by the identity of the original array, and whether they are unchanged by
        rounding."""

    def trusted(self, node: Any, attributes: Mapping[str, Any] | None, inputs: Sequence[Any], ours: Any) -> Any:
        """Record the outputs and return them unchanged."""
        outputs = super().trusted(node, attributes, inputs, ours)
        proto: NodeProto = node.onnx_node
        float_node = self.places.get(key(proto))
        if float_node is not None and float_node.node.op_type == proto.op_type:
            self._look(node, attributes, float_node, inputs, outputs)
        return outputs

    def _look(
        self,
        node: Any,
        attributes: Mapping[str, Any] | None,
        float_node: FloatNode,
        inputs: Sequence[Any],
        outputs: Any,
    ) -> None:
        statistics = self.observed.setdefault(key(float_node.node), ObservedNode())
        for x in outputs:
            if isinstance(x, np.ndarray | np.generic) and np.asarray(x).dtype.kind == "f" and np.size(x):
                statistics.largest = max(statistics.largest, largest(np.asarray(x)))
                statistics.infinite |= not bool(np.isfinite(x).all())
        if any(a.HasField("g") for a in float_node.node.attribute):
            return
        options = {"linked_attributes": attributes} if node.has_linked_attribute and attributes else {}
        for type_ in self.types:
            reads = [n for n, x in enumerate(inputs) if isinstance(x, np.ndarray) and x.dtype in WIDE]
            low, exact = {}, set()
            for n in reads:
                low[n], same = self._low(inputs[n], type_, constant=self._is_constant(float_node, n))
                exact |= {n} if same else set()
            inexact = statistics.inexact.setdefault(type_, {})
            for n in set(reads) - exact:
                inexact[n] = max(inexact.get(n, 0.0), relative_rms(low[n], inputs[n])[0])
            if len(exact) == len(reads):
                statistics.error.setdefault(type_, 0.0)
                continue
            error = _error(node, options, inputs, low, outputs)
            statistics.error[type_] = max(statistics.error.get(type_, 0.0), error)
            if error > SENSITIVE * rounding.facts(type_).eps / 2 and len(reads) > 1:
                blamed = statistics.blamed.setdefault(type_, {})
                for n in set(reads) - exact:
                    blamed[n] = max(
                        blamed.get(n, 0.0), _error(node, options, inputs, {n: low[n].astype(inputs[n].dtype)}, outputs)
                    )

    def _is_constant(self, float_node: FloatNode, position: int) -> bool:
        return float_node.scope.constant(float_node.node.input[position]) is not None

    def _low(self, x: Array, type_: int, *, constant: bool) -> tuple[Array, bool]:
        """Return the array rounded to the lower type, and whether rounding changed nothing.

        In float32, as kernels compute with them: its own rounding is less than a thousandth of the type's.
        """
        if not constant:
            low = rounding.rounded(x, type_)
            return low, bool(np.array_equal(low, x, equal_nan=True))
        if (id(x), type_) not in self._weights:  # Retain the array: its id may be reused after it is freed.
            low = rounding.constant(x, type_)
            self._weights[id(x), type_] = (x, low, bool(np.array_equal(low.astype(x.dtype), x, equal_nan=True)))
        _, low, same = self._weights[id(x), type_]
        return low.astype(np.float32), same


def _error(
    node: Any, options: Mapping[str, Any], inputs: Sequence[Any], low: Mapping[int, Array], reference: Any
) -> float:
    with np.errstate(all="ignore"):
        actual = node.run(*(low.get(n, x) for n, x in enumerate(inputs)), **options)
    return max((difference(a, b) for a, b in zip(actual, reference, strict=True)), default=0.0)


def difference(actual: Any, reference: Any) -> float:
    """Return the error against the reference: relative RMS of floats, else the share of elements that differ."""
    if not isinstance(actual, np.ndarray | np.generic) or not isinstance(reference, np.ndarray | np.generic):
        return 0.0
    a, b = np.asarray(actual), np.asarray(reference)
    if a.shape != b.shape:
        return math.inf
    if not b.size:
        return 0.0
    if b.dtype.kind not in "fV":
        return float(np.mean(a != b))
    return relative_rms(a, b)[0]


def largest(x: Array) -> float:
    """Return the largest finite magnitude."""
    low, high = float(np.min(x)), float(np.max(x))
    if math.isfinite(low) and math.isfinite(high):
        return max(abs(low), abs(high))
    finite = np.abs(x[np.isfinite(x)])
    return float(finite.max(initial=0.0))


def measure(
    model: onnx.ModelProto,
    float_nodes: Mapping[str, FloatNode],
    types: Sequence[int],
    feeds: Sequence[Mapping[str, Array]],
    seconds: float,
    progress: Callable[[str], None],
    reference_type: int = TensorProto.DOUBLE,
) -> NodeStatistics:
    """Measure the nodes of `model` on `feeds`, on the first one at least; `reference_type` is the type of the
    reference.

    Raises the error of onnx's reference for a missing operator, OutOfTime if even the first case takes too long.
    """
    meter, pools = Meter(float_nodes, types), ThreadpoolController()
    evaluator: Float64 = float64_evaluator(model, cross_check=meter, to=reference_type, stand_in=True)
    names = [o.name for o in model.graph.output]
    optional = [o.name for o in model.graph.output if o.type.HasField("optional_type")]
    dtype = np.float64 if reference_type == TensorProto.DOUBLE else np.float32
    start, note = time.perf_counter(), ""
    outputs: list[dict[str, Array]] = []
    type(evaluator).until = start + FIRST_SHARE * seconds
    for n, feed in enumerate(feeds):
        progress(f"measure {n + 1} of {len(feeds)}")
        shapes = {name: x.shape for name, x in feed.items()}
        threads = 1 if flops(model, shapes) <= ONE_THREAD_FLOPS else None
        try:
            with np.errstate(all="ignore"), pools.limit(limits=threads, user_api="blas"):
                values = evaluator.run(names, in_type(feed, dtype))
        except OutOfTime:
            if not outputs:
                raise
            note = f"{len(outputs)} of {plural(feeds, 'case')} in {seconds:g} s"
            break
        outputs.append(tensors_of(dict(zip(names, values, strict=True)), optional))
        type(evaluator).until = start + seconds
    return NodeStatistics(meter.observed, outputs, note)
