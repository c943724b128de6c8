"""The numbers of a general kernel, all of them its parameters: other extents are the same text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Numbers:
    """The words behind the step, in the order in which they were asked for."""

    words: list[int] = field(default_factory=list)
    shapes: dict[int, int] = field(default_factory=dict)
    """By the identity of a shape that lives as long, where its extents begin."""
    held: list[Sequence[int]] = field(default_factory=list)

    def one(self, value: int) -> str:
        """Return C++ of a number."""
        self.words.append(value)
        return f"p.number[{len(self.words) - 1}]"

    def extents(self, shape: Sequence[int]) -> str:
        """Return C++ of the address of the extents of a shape; those of one shape are there once."""
        if id(shape) not in self.shapes:
            self.shapes[id(shape)] = len(self.words)
            self.held.append(shape)
            self.words.extend(shape)
        return f"p.number + {self.shapes[id(shape)]}"

    def extent(self, shape: Sequence[int], axis: int) -> str:
        """Return C++ of one of them."""
        self.extents(shape)
        return f"p.number[{self.shapes[id(shape)] + axis % max(len(shape), 1)}]"
