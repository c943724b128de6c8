"""Sizes of a model's dynamic dimensions: those that the input shapes of an op tell, and others around them."""

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from math import gcd, isqrt

from onnxfuse.shapes.extent_values import at_sizes
from onnxfuse.shapes.types import Dim
from onnxfuse.symbolic.integer import Int

LARGEST = 1 << 20
"""Sizes up to here are looked for."""
STEP = 4
"""Factor below the least size met at which others are guessed; twice the largest is, too."""
MOST_GRID = 2
"""Dimensions whose sizes are combined with each other; more vary together."""

Shapes = tuple[tuple[int, ...], ...]


def bound(dims: tuple[tuple[Dim, ...] | None, ...], shapes: Shapes, names: frozenset[str]) -> dict[str, int] | None:
    """Return the sizes of dimensions at which an op's inputs have these shapes; None if they have them at none.

    An extent that a network rounds, such as `(height-1)//2+1`, has several sizes: of those that all extents allow the
    one is taken that the largest power of two divides. Names in products with others are not found.
    """
    pairs = list[tuple[Dim, int]]()
    for extents, shape in zip(dims, shapes, strict=True):
        if not extents:  # of unknown rank, or a scalar: that of the CPU comes as a shape, of its value
            continue
        if len(extents) != len(shape):  # an op stands in several places, whose inputs may differ in rank
            return None
        pairs += zip(extents, shape, strict=True)
    allowed: dict[str, range] = {}
    for dim, n in pairs:
        if isinstance(dim, Int) and len(dim.names) == 1 and (name := next(iter(dim.names))) in names:
            mine = _sizes(dim, name, n)
            before = allowed.get(name, mine)
            allowed[name] = range(max(mine.start, before.start), min(mine.stop, before.stop))
    if not all(allowed.values()):
        return None
    sizes = {name: _roundest(numbers) for name, numbers in allowed.items()}
    fits = all(at_sizes(dim, sizes) == n for dim, n in pairs if dim is not None and _is_known(dim, sizes))
    return sizes if fits else None


def _is_known(dim: int | Int, sizes: Mapping[str, int]) -> bool:
    return not isinstance(dim, Int) or sizes.keys() >= set(dim.names)


def _sizes(dim: Int, name: str, extent: int) -> range:
    """Return the sizes at which an extent that grows with them has this value."""
    if dim.is_name:
        return range(extent, extent + 1)

    def value(size: int) -> int:
        found = at_sizes(dim, {name: size})
        return found if isinstance(found, int) else -1

    return range(_first(lambda size: value(size) >= extent), _first(lambda size: value(size) > extent))


def _first(holds: Callable[[int], bool]) -> int:
    """Return the least size from 1 to LARGEST from which on a condition holds, by bisection."""
    low, high = 1, LARGEST
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low


def _roundest(numbers: range) -> int:
    """Return the number that the largest power of two divides: 0, if it is among them, by all."""
    if 0 in numbers:
        return 0
    step = 1
    while -(-numbers.start // (2 * step)) * 2 * step < numbers.stop:
        step *= 2
    return -(-numbers.start // step) * step


def around(first: Mapping[str, int], second: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield sizes below, between and above those of two runs, for the dimensions that changed.

    They have the power of two in common that the sizes met have: a network that halves an image five times takes
    multiples of 32.
    """
    varied = {name: sorted((first[name], second[name])) for name in first if first[name] != second[name]}
    grids = [_grid(*pair) for pair in varied.values()]
    combined = product(*grids) if len(grids) <= MOST_GRID else zip(*grids, strict=True)
    for sizes in combined:
        yield {**second, **dict(zip(varied, sizes, strict=True))}


def _grid(low: int, high: int) -> tuple[int, ...]:
    common = gcd(low, high)
    step = common & -common
    return tuple(max(step, n // step * step) for n in (low // STEP, isqrt(low * high), high * 2))
