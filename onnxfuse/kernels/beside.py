"""Inputs side by side of which a kernel reads one: a table in shared memory tells where each run of neighbours begins.

What an element lies in is looked up, however many inputs there are; finding it by comparisons is done once for a block.
"""

import math
from dataclasses import dataclass

from onnxfuse.kernels import maps
from onnxfuse.kernels.index import Digit, Index
from onnxfuse.kernels.lowered import Lowered, Read

FEWEST = 3
"""Inputs from which the table is faster than a comparison with each."""
MOST = 128
"""Entries of a table."""


@dataclass(frozen=True)
class Starts:
    """The table of a read."""

    along: int
    """The dimension along which the inputs lie side by side."""
    across: int
    """The one in which they have different steps."""
    grain: int
    """Neighbours along the first for each entry: they lie in one input."""
    entries: int
    rest: Index
    """What the other dimensions add to a position."""


def starts(read: Read, lowered: Lowered, width: int) -> Starts | None:
    """Return the table for a read in vectors of `width`, None where a table does not tell where its elements lie."""
    if len(read.cases) < FEWEST or maps.run(read, lowered.extents, width) < width:
        return None
    bounds = [b for c in read.cases for b in c.bounds]
    along = next((a.number for b in bounds for a, _ in b.index.terms if isinstance(a, Digit)), -1)
    if len(bounds) != len(read.cases) or any(b.index != Index(((Digit(along), 1),)) for b in bounds):
        return None
    edges = [0, *(b.high for b in bounds)]
    if [b.low for b in bounds] != edges[:-1] or edges[-1] != lowered.extents[along]:
        return None  # zeros beside them
    if any(not isinstance(a, Digit) for c in read.cases for a, _ in c.position.terms):
        return None
    dimensions = range(len(lowered.extents))
    first = read.cases[0].position
    differ = [d for d in dimensions if any(c.position.factor(d) != first.factor(d) for c in read.cases)]
    across = differ[0] if differ else along - 1
    if len(differ) > 1 or across in (along, -1):
        return None
    grain = math.gcd(*edges)
    entries = lowered.extents[along] // grain
    if entries > MOST:
        return None
    others = ((Digit(d), first.factor(d)) for d in dimensions if d not in (along, across) and first.factor(d))
    return Starts(along, across, grain, entries, Index(tuple(others)))


def text(name: str, of: Starts, along: int, numbers: maps.Numbers) -> str:
    """Return the struct that templates/beside.cuh takes for a source; neighbours are `along` elements apart."""
    rest = maps.cpp(of.rest, numbers) if of.rest.terms else "0"
    return (
        f"struct {name}Starts : {name} {{\n"
        f"  static constexpr int ALONG = {of.along}, ACROSS = {of.across}, ENTRIES = {of.entries};\n"
        "  DEVICE static const Divisor<Index>& grain(const Parameters& p) { return "
        f"{numbers.divisor(of.grain)}; }}\n"
        "  DEVICE static Index step(const Parameters& p) { return " + numbers.number(along) + "; }\n"
        "  DEVICE static Index rest(const Place& at, const Parameters& p) {\n"
        f"    const auto& c = at.coordinate;\n    return {rest};\n  }}\n}};\n"
    )
