"""Concatenated inputs as a lookup table in shared memory: run of adjacent elements -> input and offset.

Addressing an element is one lookup, for any number of inputs; the comparisons run once per block.
"""

from dataclasses import dataclass

from onnxfuse.codegen.emit import index_maps
from onnxfuse.codegen.emit.lower_movement import ConditionalRead, LoweredProgram, Read
from onnxfuse.codegen.program.index_map import Index, SpaceDigit
from onnxfuse.symbolic.branching import gcd

FEWEST = 3
"""Number of inputs from which the table beats a comparison for each. DenseNet-121, float16, 32 images, H200, 2026-11:
with a read and a select for each input 1905 us, with a comparison for each 1681, with tables 1649.
"""
FLIGHT = 2
"""Factor of bytes in flight compared to without a table, whose construction a block waits for: 1633 us; four times
1643.
"""


@dataclass(frozen=True)
class Starts:
    """The lookup table of a read."""

    along: int
    """The concatenated dimension."""
    across: int
    """The dimension in which the inputs' strides differ."""
    run: int
    """Elements along the concatenated dimension per entry, all in one input."""
    entries: int
    others: Index
    """Offset contribution of all dimensions but `across`, equal for every input."""


def starts(read: Read, lowered: LoweredProgram, width: int, most: int) -> Starts | None:
    """Return the table, of at most so many entries, for a read in vectors of `width`; None if there is none."""
    if len(read.cases) < FEWEST or index_maps.run(read, lowered.extents, width) < width:
        return None
    bounds = [b for c in read.cases for b in c.bounds]
    along = next((a.number for b in bounds for a, _ in b.index.terms if isinstance(a, SpaceDigit)), -1)
    if len(bounds) != len(read.cases) or any(b.index != Index.digit(along) for b in bounds):
        return None
    edges = [0, *(b.high for b in bounds)]
    if [b.low for b in bounds] != edges[:-1] or edges[-1] != lowered.extents[along]:
        return None  # padding
    if any(not isinstance(a, SpaceDigit) for c in read.cases for a, _ in c.position.terms):
        return None
    dimensions = range(len(lowered.extents))
    first = read.cases[0].position
    differ = [d for d in dimensions if any(c.position.factor(d) != first.factor(d) for c in read.cases)]
    across = differ[0] if differ else along - 1
    if len(differ) > 1 or across in (along, -1):
        return None
    run = gcd(*edges)
    entries = lowered.extents[along] // run
    if entries > most:
        return None
    others = tuple((a, f) for a, f in first.terms if a != SpaceDigit(across))
    return Starts(along, across, run, entries, Index(others))


def text(name: str, read: Read, of: Starts, stored: str, numbers: index_maps.MapScalars) -> str:
    """Return the struct that templates/concat/beside.cuh expects for a source of elements of the C++ type `stored`."""

    def start(case: ConditionalRead) -> str:
        words = (numbers.number(n) for n in (case.position.constant, case.position.factor(of.across)))
        return f"{{from.in{case.input}, {', '.join(words)}}}"

    first, *others = read.cases
    later = "".join(f"    if (along >= {numbers.number(c.bounds[0].low)}) start = {start(c)};\n" for c in others)
    return (
        f"struct {name}Starts {{\n  using Type = {stored};\n"
        f"  static constexpr int ALONG = {of.along}, ACROSS = {of.across}, ENTRIES = {of.entries};\n"
        f"  DEVICE static const Divisor<Index>& run(const Parameters& p) {{ return {numbers.divisor(of.run)}; }}\n"
        "  DEVICE static Start<Type> start(const Pointers& from, Index along, const Parameters& p) {\n"
        f"    Start<Type> start = {start(first)};\n{later}    return start;\n  }}\n"
        "  DEVICE static Index along(const Place& at, const Parameters& p) {\n"
        f"    const auto& c = at.coordinate;\n    return {index_maps.cpp(of.others, numbers)};\n  }}\n}};\n"
    )
