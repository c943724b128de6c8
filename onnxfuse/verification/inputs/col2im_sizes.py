"""Solve for image and block shapes that are valid for Col2Im.

The number of block positions must equal the number of columns, and the number of taps must divide the number of rows.
Image and block depend on each other and on the column extents, and either may be an input, so they are solved for
together.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from onnxfuse.symbolic.integer import Int, IntLike
from onnxfuse.verification.inputs.counted_extents import InputValues, Site, extent_at

TAPS = (2, 1, 3, 4)
"""Block extents in order of preference: with a single tap nothing is accumulated."""
RANK = 2
"""Assumed number of spatial axes."""


@dataclass(frozen=True)
class Col2ImParameters:
    """The known parameters of one Col2Im."""

    generated: int
    """The input to generate: 1 the image, 2 the block."""
    rows: IntLike
    """Channels times taps."""
    count: IntLike
    """Number of columns."""
    image: tuple[int, ...]
    """Image shape; empty if it is an input, too. The block likewise."""
    block: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]
    strides: tuple[int, ...]

    def __call__(self, sizes: Mapping[str, int], shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the input's value for these dimension sizes: ones if nothing is valid."""
        rank = len(self.image or self.block) or (shape[0] if shape else RANK)
        rows, count = extent_at(self.rows, sizes), extent_at(self.count, sizes)
        for block in self.blocks(rank):
            if rows is not None and rows % math.prod(block):
                continue
            image = self._image(block, 1 if count is None else count)
            if image is not None:
                return (image, block)[self.generated - 1]
        return (1,) * rank

    def blocks(self, rank: int) -> Iterator[tuple[int, ...]]:
        """Yield candidate blocks."""
        yield from [self.block] if self.block else itertools.product(TAPS, repeat=rank)

    def positions(self, image: Sequence[int], block: Sequence[int]) -> list[int]:
        """Return the number of block positions along each axis of an image."""
        return [
            (size + pad - span) // stride + 1
            for size, (pad, span, stride) in zip(image, self._axes(block), strict=True)
        ]

    def _axes(self, block: Sequence[int]) -> list[tuple[int, int, int]]:
        """Return for each axis the total padding, the extent of the dilated block, and the stride."""
        rank = len(block)
        dilations, strides = self.dilations or (1,) * rank, self.strides or (1,) * rank
        pads = self.pads or (0,) * 2 * rank
        return [(pads[n] + pads[n + rank], d * (block[n] - 1) + 1, strides[n]) for n, d in enumerate(dilations)]

    def _image(self, block: Sequence[int], count: int) -> tuple[int, ...] | None:
        """Return an image with that many positions, as square as possible; None if there is none."""
        if self.image:
            positions = self.positions(self.image, block)
            return self.image if min(positions) > 0 and math.prod(positions) == count else None
        candidates = []
        for counts in _factorized(count, len(block)):
            image = tuple(
                max(1, (n - 1) * stride + span - pad)
                for n, (pad, span, stride) in zip(counts, self._axes(block), strict=True)
            )
            if self.positions(image, block) == [*counts]:
                candidates.append(image)
        return min(candidates, key=max, default=None)


def _factorized(product: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield the factorizations of an integer into so many factors."""
    if parts == 1:
        yield (product,)
        return
    for first in range(1, product + 1):
        if product % first == 0:
            for rest in _factorized(product // first, parts - 1):
                yield first, *rest


def _of(site: Site, generated: int) -> Col2ImParameters:
    dilations, pads, strides = (tuple(site.attribute(name, ())) for name in ("dilations", "pads", "strides"))
    image, block = (() if generated == n else site.constant(n) for n in (1, 2))
    return Col2ImParameters(generated, site.extent(0, 1), site.extent(0, 2), image, block, dilations, pads, strides)


def image(site: Site) -> InputValues:
    """Return the valid image of Col2Im."""
    return InputValues("fitted", fitted=_of(site, 1))


def block(site: Site) -> InputValues:
    """Return the valid block of Col2Im."""
    return InputValues("fitted", fitted=_of(site, 2))


def valid_sizes(site: Site) -> Iterator[dict[str, int]]:
    """Yield sizes of the columns' named dimensions for which Col2Im is valid, given its constant inputs."""
    columns = _of(site, 0)
    shape = site.shape(0) or ()
    if len(shape) != 3 or not (columns.image or columns.block):
        return
    for one in columns.blocks(len(columns.image or columns.block)):
        taps = math.prod(one)
        positions = math.prod(columns.positions(columns.image, one)) if columns.image else None
        sizes = {1: shape[1] if isinstance(shape[1], int) else 2 * taps, 2: positions}
        valid = (positions is None or positions > 0) and sizes[1] is not None and sizes[1] % taps == 0
        if valid and not (isinstance(shape[2], int) and positions is not None and shape[2] != positions):
            named = {axis: size for axis, size in sizes.items() if isinstance(shape[axis], Int) and size is not None}
            yield {str(shape[axis]): size for axis, size in named.items()}
