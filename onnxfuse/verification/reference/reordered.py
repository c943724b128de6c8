"""Evaluate a model as float32 arithmetic may: every sum in a random order, every result rounded up or down at random.

ONNX prescribes no order of summation. One run of ONNX Runtime has one order, and its error is one draw. A fused model
has another order, as the mean of an image does when its channels come last: then its terms are added one after another,
which is three times less exact than sixteen sums at once. Drawn errors show how far a correct result can be.

Sums over axes are added one by one, in float32. Products and convolutions keep L = LANES sums side by side, as vector
units and tensor cores do, and add these in pairs. Their error is drawn: every partial sum but the first of a lane is
rounded by up to half a step. Over all orders, the k = n / L terms t of a lane with the sum s have partial sums whose
squares are s^2 (k + 1) / 3 + sum(t^2) ((k + 1) / 6 - 1 / k) together; m random parts of all terms have sums whose
squares are S^2 / m + T (1 - 1 / m) together, where S is the sum of all terms and T of their squares. With m = L for the
lanes and m = L / 2, L / 4, ... 1 for the pairs the error has the variance

    STEP^2 ((S^2 / L + T (1 - 1 / L)) (k + 1) / 3 + T ((k + 1) / 6 - 1 / k) + S^2 (2 - 2 / L) + T (log2(L) - 2 + 2 / L))

and T is what the same operator gives for the squares of its operands. Results are rounded stochastically: to one of the
two adjacent float32 numbers, with a probability that preserves the mean; a float32 number stays.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx.reference.op_run import OpRun

from onnxfuse import ops
from onnxfuse.ops import Operator, Trait, named
from onnxfuse.ops.flops import NodeShapes
from onnxfuse.shapes.value_facts import attribute
from onnxfuse.verification.reference.reference import Float64

Array = npt.NDArray[Any]

STEP = math.sqrt(3 / (8 * math.log(2)) / 12) * 2.0**-23
"""Root mean square of the error of one rounding to float32, relative to the result m: a step is 2^-23 of the power of
two below m, the mean of whose square over all mantissas is 3 / (8 ln 2) m^2, and the error is uniform within a step."""
LANES = 16
"""Sums side by side in a product: the float32 numbers of a 512-bit register."""
PRODUCTS = named(Trait.MATRIX_PRODUCT, Trait.CONVOLUTION)
"""Operators whose errors are drawn. They multiply their first two inputs; a bias is no product."""


class Reordered(Float64):
    """Evaluator with random errors of float32 arithmetic."""

    rng = np.random.default_rng(0)
    """The generator of all evaluators of one model."""

    def written(self, node: OpRun, inputs: list[Any], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the outputs with the error of their sums, rounded to float32."""
        first, *others = outputs
        entry = ops.operator(node.onnx_node.op_type, node.onnx_node.domain)
        if entry is not None and _is_float(first) and first.size and not node.has_linked_attribute:
            if Trait.ADDS in entry.traits and inputs[0].size:
                first = self._added(node.onnx_node, entry, inputs, first)
            elif entry in PRODUCTS and not entry.domain:
                first = first + _deviation(node, entry, inputs, first) * self.rng.standard_normal(first.shape)
        return tuple(self._rounded(x) if _is_float(x) else x for x in (first, *others))

    def _added(self, node: onnx.NodeProto, entry: Operator, inputs: list[Any], y: Array) -> Array:
        """Return the sum or mean `y`, added one by one in a random order."""
        x = inputs[0]
        axes = list(range(2, x.ndim)) if entry.reduction else _axes(node, inputs)
        terms = np.moveaxis(x, axes, range(len(axes))).reshape(-1, y.size).astype(np.float32)
        total = np.add.accumulate(self.rng.permutation(terms), axis=0)[-1].astype(np.float64).reshape(y.shape)
        return np.asarray(total if node.op_type == ops.ReduceSum else total / len(terms))

    def _rounded(self, x: Array) -> Array:
        near = x.astype(np.float32)
        off = x - near
        gap = np.abs(
            np.nextafter(near, np.where(off > 0, np.inf, -np.inf).astype(np.float32)) - near.astype(np.float64)
        )
        other = near + np.copysign(gap, off)
        return np.asarray(np.where(self.rng.random(x.shape) * gap < np.abs(off), other, near.astype(np.float64)))


def _is_float(x: Any) -> bool:
    return isinstance(x, np.ndarray | np.float64) and x.dtype == np.float64


def _axes(node: onnx.NodeProto, inputs: list[Any]) -> list[int]:
    """Return the axes of a reduction."""
    given = inputs[1] if len(inputs) > 1 and inputs[1] is not None else attribute(node, "axes", ())
    if not len(given) and attribute(node, "noop_with_empty_axes", 0):
        return []
    return [int(a) % inputs[0].ndim for a in given] or list(range(inputs[0].ndim))


def _deviation(node: OpRun, entry: Operator, inputs: list[Any], y: Array) -> Array:
    """Return the standard deviation of each element of a sum of products."""
    proto: onnx.NodeProto = node.onnx_node
    shapes = [None if x is None else x.shape for x in inputs]
    known = NodeShapes(y.shape, shapes, [x is not None for x in inputs], partial(attribute, proto))
    operations = entry.flops(known) if entry.flops is not None else None
    run: Callable[..., tuple[Array, ...]] = node.run
    # The operator multiplies by its alpha once, the squares of its results do so twice.
    squares = run(*map(np.square, inputs[:2]))[0] * float(attribute(proto, "alpha", 1.0))
    count = max((operations or 0) // (2 * y.size), 1)
    lanes = min(LANES, count)
    k = count / lanes
    whole = np.square(y)
    chains = (whole / lanes + squares * (1 - 1 / lanes)) * (k + 1) / 3 + squares * ((k + 1) / 6 - 1 / k)
    pairs = whole * (2 - 2 / lanes) + squares * (math.log2(lanes) - 2 + 2 / lanes)
    return np.asarray(STEP * np.sqrt(np.maximum(chains, 0) + pairs))
