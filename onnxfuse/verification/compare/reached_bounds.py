"""Inputs for which a computed value comes near the large constant that it is combined with.

Behind a layer with weights no input is near such a constant: Sigmoid(MatMul(x, w) - 5000) is 0 for all usual numbers.
So the inputs are scaled: along the ray from zero through the usual ones a value of one element of each row is followed,
by the secant method, until it is near the constant, and some units away from it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from onnxfuse import ops
from onnxfuse.files.external import is_external
from onnxfuse.model.nested import constants_of
from onnxfuse.ops import Trait
from onnxfuse.verification.compare.near_bounds import LEAST, MOST
from onnxfuse.verification.inputs.inputs import Array, Case

SMALL_CONSTANT = 4096
"""Largest element count of a constant that is looked at."""
SITES = 4
"""Largest number of values for which inputs are sought."""
OFFSETS = (1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 6.0, -6.0)
"""Distances to the constant, by row: saturating functions vary within some units of it. At the constant itself rounding
decides what a comparison gives."""
STEPS = 6
"""Steps of the secant method."""
CLOSE = 0.25
"""Largest distance from where a row should be, in the units of OFFSETS, that counts as reached."""
LARGEST = 2.0**24
"""Largest factor to the inputs."""


@dataclass(frozen=True)
class BoundSite:
    """A computed value that is combined with a large constant."""

    value: str
    target: Array
    """Where the value is near the constant; broadcasts to its shape."""


def bound_sites(model: onnx.ModelProto) -> list[BoundSite]:
    """Return the values of the main graph that nodes combine with large constants, each once: at most SITES."""
    constants = _constants(model)
    computed = {o for n in model.graph.node if n.op_type != ops.Constant for o in n.output}
    sites: dict[tuple[str, bytes], BoundSite] = {}
    for node in model.graph.node:
        for value, target in _targets(node, constants) if not node.domain else ():
            magnitudes = np.abs(target)
            if value in computed and ((magnitudes >= LEAST) & (magnitudes <= MOST)).any():
                sites.setdefault((value, target.tobytes()), BoundSite(value, target))
    return list(sites.values())[:SITES]


def _constants(model: onnx.ModelProto) -> dict[str, Array]:
    floats = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
    few = {
        n: t
        for n, t in constants_of(model.graph).items()
        if t.data_type in floats and np.prod(t.dims) <= SMALL_CONSTANT and not is_external(t)
    }
    return {n: numpy_helper.to_array(t).astype(np.float64) for n, t in few.items()}


def _targets(node: onnx.NodeProto, constants: dict[str, Array]) -> Iterator[tuple[str, Array]]:
    """Yield the values that a node combines with constants, and where they are near them."""
    if node.op_type == ops.Clip:
        for attribute in node.attribute:
            yield node.input[0], np.array(attribute.f, np.float64)
        yield from ((node.input[0], constants[bound]) for bound in node.input[1:] if bound in constants)
    elif _meets(node.op_type) and len(node.input) == 2:
        for value, other in (node.input, node.input[::-1]):
            if other in constants and value not in constants:
                yield value, -constants[other] if node.op_type == ops.Add else constants[other]


def _meets(op: str) -> bool:
    """Return whether an operator compares two values, returns one of them, adds or subtracts: where they meet, what it
    gives is decided by rounding, or is nearly 0.
    """
    entry = ops.operator(op)
    if entry is None or Trait.BROADCASTS not in entry.traits:
        return False
    return not entry.traits.isdisjoint({Trait.COMPARISON, Trait.CARRIES}) or entry.neutral == 0


def case_reaching(
    base: Case, site: BoundSite, values: Callable[[dict[str, Array]], Array], rotation: int = 0
) -> Case | None:
    """Return the case with its floats scaled such that the value of `site` is near its constant; None if that fails.

    `values` returns the value for inputs; `rotation` is the position in OFFSETS of the first row. Raises its errors.
    """
    inputs = base.make()
    rows = _rows(inputs, values(inputs))
    at_zero, at_one = (values(scaled(inputs, np.full(rows, t))).astype(np.float64) for t in (0.0, 1.0))
    target = np.broadcast_to(site.target, at_one.shape).reshape(rows, -1)
    goals = target + np.resize(np.roll(OFFSETS, -rotation), rows)[:, None]
    first, last = at_zero.reshape(rows, -1), at_one.reshape(rows, -1)
    with np.errstate(all="ignore"):
        factors = (goals - first) / (last - first)
    usable = np.isfinite(factors) & (factors > 0) & (factors < LARGEST)
    usable &= (np.abs(target) >= LEAST) & (np.abs(target) <= MOST)
    if not usable.any():
        return None
    # The smallest factor: the least rounding of the other elements.
    chosen, followed = np.where(usable, factors, np.inf).argmin(axis=1), usable.any(axis=1)
    every = np.arange(rows)
    goal, before, ends = goals[every, chosen], np.ones(rows), last[every, chosen]
    now = np.where(followed, factors[every, chosen], 1.0)
    best, smallest = now, np.full(rows, np.inf)
    for _ in range(STEPS):
        current = values(scaled(inputs, now)).astype(np.float64).reshape(rows, -1)[every, chosen]
        distance = np.abs(current - goal)
        best, smallest = np.where(distance < smallest, now, best), np.fmin(smallest, distance)
        if (smallest[followed] <= CLOSE).all():
            break
        with np.errstate(all="ignore"):
            step = (goal - current) * (now - before) / (current - ends)
        before, ends, now = now, current, np.where(np.isfinite(step), np.clip(now + step, 0, LARGEST), now)
    if not (smallest[followed] <= CLOSE).any():
        return None
    return Case("bounds", base.seed, base.shapes, partial(_scaled_arrays, base, tuple(best)))


def _rows(inputs: dict[str, Array], value: Array) -> int:
    """Return how many rows are scaled by themselves: those of the batch if all floats and the value have it, else 1."""
    first = {x.shape[0] if x.ndim else 0 for x in (*inputs.values(), value) if x.dtype.kind in "fV"}
    return first.pop() if len(first) == 1 and 0 not in first else 1


def scaled(inputs: dict[str, Array], factors: Array | Sequence[float]) -> dict[str, Array]:
    """Return the inputs with their floats scaled, each row by its own factor, or all by a single one."""
    by_row = np.asarray(factors, np.float64)

    def one(x: Array) -> Array:
        shape = (len(by_row), *[1] * (x.ndim - 1)) if len(by_row) > 1 else ()
        with np.errstate(over="ignore"):
            return np.asarray(x.astype(np.float64) * by_row.reshape(shape)).astype(x.dtype)

    return {n: one(x) if x.dtype.kind in "fV" else x for n, x in inputs.items()}


def _scaled_arrays(base: Case, factors: Sequence[float]) -> dict[str, Array]:
    return scaled(base.make(), factors)
