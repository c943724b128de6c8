"""Measured sizes of elementwise work and data movement; their files say what was measured."""

from dataclasses import dataclass

from onnxfuse.cuda.costs import tables
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.variant import one_at_a_time
from onnxfuse.cuda.templates.pointwise.variant import PointwiseVariant


@dataclass(frozen=True)
class TransposeCosts:
    """Sizes of tiles that are transposed in shared memory."""

    side: int
    """Rows and columns of a tile."""
    area: int
    """Elements of a tile."""
    smallest: int
    """Minimum elements of a tile that justify its barrier."""
    shared_bytes: int
    """Maximum shared memory of all tiles per block."""
    narrow: int
    """Extents below this are accessed without a tile."""
    flat: int
    """Maximum columns that a tile of at least `side` rows may hold completely, so that its stores are one run."""
    flat_area: int
    """Elements of such a tile."""
    waste: float
    """Maximum share beyond the end of a dimension; above it, longer tiles."""


@dataclass(frozen=True)
class MappedCosts:
    """Sizes of vectors of data movement."""

    narrowest: int
    """Width in bytes of vectors that are narrowed to divide the inner dimension."""
    narrow_in_flight: int
    """Factor on the bytes in flight if no access is 16 bytes wide."""
    strided: int
    """Elements per vector if every input is strided."""


@dataclass(frozen=True)
class Candidates:
    """Values of each constant of the variants that lead to other plans."""

    bytes_in_flight: tuple[int, ...]
    pointwise_threads: tuple[int, ...]


def transpose(arch: Arch | None) -> TransposeCosts:
    """Return the sizes of transposed tiles on an architecture; None: for models that are optimized for any GPU."""
    return tables.section(tables.REFERENCE if arch is None else arch.name, "pointwise.transpose", TransposeCosts)


def mapped(arch: Arch) -> MappedCosts:
    """Return the sizes of vectors of data movement on an architecture."""
    return tables.section(arch.name, "pointwise.mapped", MappedCosts)


def usual(arch: Arch) -> PointwiseVariant:
    """Return the constants of plans that no variant changes."""
    return tables.section(arch.name, "pointwise.usual", PointwiseVariant)


def candidates(arch: Arch) -> tuple[PointwiseVariant, ...]:
    """Return the variants worth measuring, each with one constant varied."""
    return one_at_a_time(PointwiseVariant, tables.section(arch.name, "pointwise.candidates", Candidates))
