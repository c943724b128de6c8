"""Sizes and rates with their units, for people; how many times as large one time is as another, and how surely."""

import math
from dataclasses import dataclass
from typing import Protocol

SAME = 0.05
"""Two times are called the same if the intervals of their medians overlap, and neither could be this much longer."""


def megabytes(size: int) -> str:
    """Format the size of a file."""
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"


def size_text(size: float) -> str:
    """Format a number of bytes."""
    return _in_units(size, "B")


def flops_text(count: float) -> str:
    """Format a number of floating-point operations."""
    return _in_units(count, "FLOP")


def digits(value: float) -> str:
    """Format a number by four digits or more, never by a power of ten: 0.8626, 411.5, 43000."""
    return f"{value:.4g}" if value < 9999.5 else f"{value:.0f}"


def _in_units(value: float, unit: str) -> str:
    """Format three digits and a prefix: 616 MB, 4.02 kFLOP, 236 B."""
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return (
                f"{value / size:.3g} {prefix}{unit}" if value < 999.5 * size else f"{value / size:.0f} {prefix}{unit}"
            )
    return f"{value:.0f} {unit}"


class Median(Protocol):
    """A median with its confidence interval."""

    @property
    def p50(self) -> float:
        """The median."""

    @property
    def low(self) -> float:
        """The lower end of its interval."""

    @property
    def high(self) -> float:
        """The upper end of its interval."""


@dataclass(frozen=True)
class Factor:
    """How many times as long as another one run takes."""

    medians: float
    """By the medians."""
    low: float
    """With `high`: between these, by the intervals of both medians."""
    high: float

    @classmethod
    def of(cls, one: Median, other: Median) -> "Factor":
        """Return how many times as large `one` is as `other`."""
        return cls(one.p50 / other.p50, one.low / other.high, one.high / other.low if other.low else math.inf)

    @property
    def decided(self) -> bool:
        """Whether one of them is faster beyond chance."""
        return self.low > 1 or self.high < 1

    @property
    def same(self) -> bool:
        """Whether neither is, and the difference is small at most."""
        return not self.decided and self.low >= 1 - SAME and self.high <= 1 + SAME

    @property
    def range(self) -> str:
        """The range in words."""
        return f"{self.low:.2f}x to {self.high:.2f}x"

    def __str__(self) -> str:
        return f"{self.medians:.2f}x" if self.decided else "no difference" if self.same else f"undecided, {self.range}"
