"""What the values of an operator's inputs mean: data, indices, lengths, counts, shapes, conditions.

An entry gives each input a role: `{"data": DATA, "indices": Indices("data", ("axis", 0))}`. Roles name other inputs as
the entry does.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Axis = int | tuple[str, int]
"""An axis, or the attribute that holds it, and its default."""


@dataclass(frozen=True)
class Role:
    """What the values of an input mean."""


class Data(Role):
    """Numbers to compute with: any value is valid."""


class HostData(Data):
    """Numbers to compute with that ONNX Runtime's CUDA kernels read in host memory."""


# ---- truth values


class TruthValues(Role):
    """Truth values, element by element."""


class Branch(TruthValues):
    """A truth value that decides which nodes run."""


class Mask(Role):
    """Zeros and ones."""


# ---- counts, offsets, parameters


@dataclass(frozen=True)
class Count(Role):
    """How many there shall be of something."""

    least: int = 1
    most: int = 4
    """Where a small, meaningful result ends; larger counts are valid, too."""


@dataclass(frozen=True)
class Offset(Role):
    """A position, a distance or a step, valid in any tensor from `least` to `most`."""

    least: int
    most: int


class RangeBound(Offset):
    """Where the numbers that a result counts begin or end, or their step."""


class Padding(Role):
    """Padding widths on both sides of axes."""


@dataclass(frozen=True)
class Fraction(Role):
    """A real number, meaningful from `least` to `most`."""

    least: int = 0
    most: int = 1


class ZeroPoint(Role):
    """Zero points of quantized values, in their type."""


# ---- shapes


class Extents(Role):
    """Extents of the result, at will."""


@dataclass(frozen=True)
class TargetShape(Extents):
    """A shape with as many elements as an input."""

    of: str


@dataclass(frozen=True)
class BroadcastShape(Extents):
    """A shape to which an input can be broadcast."""

    of: str


@dataclass(frozen=True)
class ResizedShape(Extents):
    """The shape of an input after sampling; its batch and channels stay."""

    of: str


class GridShape(Extents):
    """The size of the images of AffineGrid."""


class UnpooledShape(Extents):
    """The result's shape of MaxUnpool."""


class ImageShape(Extents):
    """The image of Col2Im."""


class BlockShape(Extents):
    """The block of Col2Im."""


@dataclass(frozen=True)
class Scales(Role):
    """Factors by which the axes of an input grow."""

    of: str


@dataclass(frozen=True)
class CropRegion(Role):
    """Starts and ends of a region along all axes of an input, from 0 to 1; in Resize of operator set 10 the scales."""

    of: str


@dataclass(frozen=True)
class Boxes(Role):
    """Corners of boxes in an image, in pixels."""

    of: str


# ---- axes, and lengths along them


@dataclass(frozen=True)
class Axes(Role):
    """Distinct axes of an input."""

    of: str
    inserted: bool = False
    """Whether they are axes of the result, in which these are new."""
    but_last: int = 0
    """How many of the last axes are none of them."""
    single: bool = False
    """Whether their extents must be 1."""


@dataclass(frozen=True)
class Length(Role):
    """A length along an axis of an input, at most its extent."""

    of: str
    axis: Axis


@dataclass(frozen=True)
class Integer(Role):
    """The extent of an axis of an input."""

    of: str
    axis: Axis


@dataclass(frozen=True)
class StartIndex(Role):
    """Where along an axis of an input an axis of another begins, such that it fits."""

    of: str
    axis: Axis
    part: str
    along: Axis


@dataclass(frozen=True)
class Parts(Role):
    """Lengths that sum to the extent of an axis of an input; of a scalar, the length of each."""

    of: str
    axis: Axis


class ScanLength(Role):
    """The lengths of sequences in Scan of operator set 8."""


class TotalLength(Role):
    """The length of the KV cache with the new tokens in it, of GroupQueryAttention."""


# ---- indices


@dataclass(frozen=True)
class Indices(Role):
    """Indices along an axis of an input."""

    of: str
    axis: Axis


@dataclass(frozen=True)
class IndexTuples(Role):
    """Tuples of indices into an input, from an axis on."""

    of: str
    first: Axis = 0


@dataclass(frozen=True)
class DepthIndex(Role):
    """Indices below a count, which is another input."""

    depth: str


class PooledIndex(Role):
    """Where in the result of MaxUnpool each element goes."""


class GroupIndex(Role):
    """Blocks of quantized weights, of MatMulNBits."""


class LastToken(Role):
    """The last token of each row of GroupQueryAttention."""


class SequenceIndex(Role):
    """An index into a sequence of tensors."""


# ---- what depends on the node


@dataclass(frozen=True)
class ByRank(Role):
    """A role that depends on the rank of the input."""

    ranks: Mapping[int, Role]
    other: Role


@dataclass(frozen=True)
class IfPresent(Role):
    """A role that depends on whether the node has another input."""

    input: str
    role: Role
    other: Role


DATA, HOST_DATA, CONDITION, BRANCH, MASK = Data(), HostData(), TruthValues(), Branch(), Mask()

NUMBERS_OF_THINGS = (Branch, Count, Offset, Padding, Extents, Scales, CropRegion, Length, Integer, StartIndex, Parts)
"""Roles whose values are counts, lengths, offsets or decisions: rounding them changes what is computed."""

SIZES = (Count, RangeBound, Padding, Extents, Scales, CropRegion)
"""Roles whose values say how large a result is, at will but for a TargetShape."""

PER_AXIS = (Padding, ResizedShape, Scales, CropRegion)
"""Roles of inputs with a number for each axis of another input, or for each of its ends."""

ELEMENTS = (Data, Indices, IndexTuples, DepthIndex)
"""Roles whose values a CUDA kernel reads per element; it needs the others before it starts."""


def data(*names: str) -> dict[str, Role]:
    """Return inputs that are all data."""
    return dict.fromkeys(names, DATA)
