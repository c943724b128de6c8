"""Generate values for inputs that are counts, indices or sizes, according to their role."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from onnxfuse.verification.inputs.input_roles import InputRole

Array = npt.NDArray[Any]
Generator = np.random.Generator


def counted_values(
    rng: Generator, role: InputRole, shape: tuple[int, ...], sizes: Mapping[str, int], *, edge: bool = False
) -> Array:
    """Return values of a role for these dimension sizes; with `edge` half of them are the first and the last valid
    value."""
    if role.kind == "axes":
        return _different(rng, role.choices, shape)
    if role.kind == "parts":
        return _parts(rng, role.spans[0].at(sizes)[1], shape)
    if role.fitted is not None:
        return np.array(role.fitted(sizes, shape), np.int64).reshape(shape)
    if role.kind == "target":
        return _target(rng, shape)
    if role.kind == "each":
        return _each(rng, [s.at(sizes) for s in role.spans], shape, real=role.real)
    low, high = role.ends(sizes) or (0, 0)
    if role.real:
        return rng.uniform(low, high, shape)
    x = rng.integers(low, high, shape, endpoint=True)
    return np.where(rng.random(shape) < 0.5, rng.choice([low, high], shape), x) if edge else x


def _each(rng: Generator, ends: list[tuple[int, int]], shape: tuple[int, ...], *, real: bool) -> Array:
    """Return values from one range per element of the last axis, aligned at the end.

    Leading elements without a range are 1.
    """
    wide = shape or (1,)
    count = wide[-1]
    every = [(1, 1)] * max(0, count - len(ends)) + ends[max(0, len(ends) - count) :]
    low, high = (np.array([e[n] for e in every], np.int64) for n in (0, 1))
    values = rng.uniform(low, high, wide) if real else rng.integers(low, high, wide, endpoint=True)
    return np.asarray(values).reshape(shape)


def _different(rng: Generator, choices: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """Return distinct values; repeated if more are needed than there are choices."""
    count = math.prod(shape)
    order = rng.permutation(np.array(choices, np.int64))
    return np.resize(order, count).reshape(shape)


def _parts(rng: Generator, total: int, shape: tuple[int, ...]) -> Array:
    """Return positive parts that sum to an integer, as far as it is large enough."""
    count = math.prod(shape)
    if not count:
        return np.zeros(shape, np.int64)
    smallest = int(total >= count)
    cuts = np.sort(rng.integers(0, total - smallest * count, count - 1, endpoint=True))
    return (np.diff(np.concatenate([[0], cuts, [total - smallest * count]])) + smallest).reshape(shape)


def _target(rng: Generator, shape: tuple[int, ...]) -> Array:
    """Return a Reshape target that is valid for any number of elements: one axis takes them all."""
    target = np.ones(shape, np.int64)
    if target.size:
        target.reshape(-1)[rng.integers(0, target.size)] = -1
    return target
