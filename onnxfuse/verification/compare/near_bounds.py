"""Inputs near the large constants of a model: a bound or shift beyond the usual range of values only matters there.

Sigmoid(x - 5000) is 0 or 1 in every other case, and Clip up to 2000 is the identity: numbers of all magnitudes hardly
meet the informative ones. So one case has numbers around each scalar constant, near it and some units away.
"""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import onnx

from onnxfuse.model.nested import nodes_of
from onnxfuse.verification.inputs.inputs import Array, Case

LEAST, MOST = 2.0**9, 2.0**40
"""Range of constants that the usual numbers hardly reach; a larger one is a mask constant that stands for infinity."""
SPREADS = (0.5, 4.0, 32.0)
"""Standard deviations around a constant: saturating functions vary within some units of it."""
UNCHANGED_SHARE = 0.25
"""Share of the numbers that are unchanged."""


def large_constants(model: onnx.ModelProto) -> tuple[float, ...]:
    """Return the scalar constants of such a magnitude, including those in bodies, functions and attributes."""
    tensors = [*model.graph.initializer]
    constants = set[float]()
    for node in (n for graph in (model.graph, *model.functions) for n in nodes_of(graph)):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                tensors.append(attribute.t)
            elif attribute.type == onnx.AttributeProto.FLOAT:
                constants.add(float(attribute.f))
    for tensor in tensors:
        kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).kind
        if math.prod(tensor.dims) == 1 and kind in "fV" and tensor.data_location == onnx.TensorProto.DEFAULT:
            constants.add(float(onnx.numpy_helper.to_array(tensor).reshape(-1)[0]))
    return tuple(sorted(c for c in constants if LEAST <= abs(c) <= MOST))


def case_near_constants(base: Case, constants: Sequence[float]) -> Case:
    """Return the case with its floats drawn around the constants, of either sign."""
    return Case("bounds", base.seed, base.shapes, partial(_arrays_near, base, tuple(constants)))


def _arrays_near(base: Case, constants: tuple[float, ...]) -> dict[str, Array]:
    rng = np.random.default_rng([base.seed or 0, len(constants)])
    return {n: _around(rng, x, constants) if x.dtype.kind in "fV" else x for n, x in base.make().items()}


def _around(rng: np.random.Generator, x: Array, constants: tuple[float, ...]) -> Array:
    centres = rng.choice(np.array(constants), x.shape) * rng.choice([1.0, 1.0, -1.0], x.shape)
    shifted = centres + rng.standard_normal(x.shape) * rng.choice(SPREADS, x.shape)
    with np.errstate(over="ignore"):
        return np.asarray(
            np.where(rng.random(x.shape) < UNCHANGED_SHARE, x.astype(np.float64), shifted).astype(x.dtype)
        )
