"""Parameters of a general kernel: all extents are parameters, so that the source is independent of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class WordTable:
    """The words after the step, in the order of their first use."""

    words: list[int] = field(default_factory=list)
    shapes: dict[int, int] = field(default_factory=dict)
    """Start of a shape's extents, by the identity of the shape object, which must outlive this."""
    held: list[Sequence[int]] = field(default_factory=list)

    def one(self, value: int) -> str:
        """Return C++ of an integer parameter."""
        self.words.append(value)
        return f"p.number[{len(self.words) - 1}]"

    def extents(self, shape: Sequence[int]) -> str:
        """Return C++ of the address of a shape's extents, which are stored once per shape."""
        if id(shape) not in self.shapes:
            self.shapes[id(shape)] = len(self.words)
            self.held.append(shape)
            self.words.extend(shape)
        return f"p.number + {self.shapes[id(shape)]}"

    def extent(self, shape: Sequence[int], axis: int) -> str:
        """Return C++ of one of them."""
        self.extents(shape)
        return f"p.number[{self.shapes[id(shape)] + axis % max(len(shape), 1)}]"
