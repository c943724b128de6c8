"""Sizes that a model's dynamic dimensions are likely to have, for which idle cores compile before a run asks."""

from collections.abc import Iterable, Mapping
from itertools import product
from math import gcd, isqrt

import onnx

BATCH, SIDE, LENGTH = 1, 640, 128
"""Likely sizes of the first axis, of an image's sides and of other axes. A wrong one costs idle cores' time: of the
kernels of a text detector at other sides 56 to 64% are those at 640, of BERT's at other lengths and batches 20 to 100%
those at 1 x 128."""

IMAGE_RANK, MOST_CHANNELS = 4, 4
STEP = 4
"""Factor beyond the sizes met in which others are guessed."""
MOST_GRID = 2
"""Dimensions that are combined with each other; more vary together."""


def likely_sizes(inputs: Iterable[onnx.ValueInfoProto]) -> dict[str, int]:
    """Return a size for each dynamic dimension by name, INPUT[AXIS] for an unnamed one."""
    sizes: dict[str, int] = {}
    for value in inputs:
        dims = value.type.tensor_type.shape.dim
        channels = {d.dim_value for d in dims[1:] if d.HasField("dim_value")}
        image = len(dims) == IMAGE_RANK and any(1 <= n <= MOST_CHANNELS for n in channels)
        for axis, dim in enumerate(dims):
            if not dim.HasField("dim_value"):
                likely = BATCH if axis == 0 else SIDE if image else LENGTH
                sizes.setdefault(dim.dim_param or f"{value.name}[{axis}]", likely)
    return sizes


def around(first: Mapping[str, int], second: Mapping[str, int]) -> list[dict[str, int]]:
    """Return sizes below, between and above those of two runs, for the dimensions that changed.

    They have the power of two in common that the sizes met have: a network that halves an image five times takes
    multiples of 32.
    """
    varied = {name: sorted((first[name], second[name])) for name in first if first[name] != second[name]}
    grids = [_grid(*pair) for pair in varied.values()]
    combined = product(*grids) if len(grids) <= MOST_GRID else zip(*grids, strict=True)
    return [{**second, **dict(zip(varied, sizes, strict=True))} for sizes in combined]


def _grid(low: int, high: int) -> tuple[int, ...]:
    common = gcd(low, high)
    step = common & -common
    return tuple(max(step, n // step * step) for n in (low // STEP, isqrt(low * high), high * 2))
