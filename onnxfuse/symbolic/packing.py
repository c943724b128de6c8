"""Weights stored in few bits, with a scale for each block of terms, as MatMulNBits of ONNX Runtime reads them.

A weight [n, k] lies in bytes [n, blocks, block * bits / 8], the first number of a byte in its low bits; its scales
[n, blocks]; its zero points, if any, packed likewise, [n, ceil(blocks * bits / 8)], or one of the scales' type for each
block. A number stands for (number - zero point) * scale.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

WIDTHS = (2, 4, 8)
"""Bits of a number that a byte holds whole."""
LEAST_BLOCK = 16
"""Fewest terms of a block."""


@dataclass(frozen=True)
class Packing:
    """How a weight lies in few bits."""

    bits: int
    """Bits of a number: 2, 4 or 8."""
    block: int
    """Terms of a block: a power of two of at least 16."""
    terms: int
    """Terms of a column, k."""

    @property
    def blocks(self) -> int:
        """Blocks of a column."""
        return -(-self.terms // self.block)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return self.block * self.bits // 8

    @property
    def zero_bytes(self) -> int:
        """Bytes of a column's packed zero points."""
        return -(-self.blocks * self.bits // 8)

    @property
    def middle(self) -> int:
        """The zero point of a weight that has none."""
        return 1 << self.bits - 1

    @property
    def reason(self) -> str | None:
        """Why no kernel reads it; None if one does."""
        if self.bits not in WIDTHS:
            return f"weights of {self.bits} bits, expected 2, 4 or 8"
        if self.block < LEAST_BLOCK or self.block & self.block - 1:
            return f"blocks of {self.block} terms, expected a power of two of at least {LEAST_BLOCK}"
        if self.terms <= 0 or self.terms % self.block:
            return f"{self.terms} terms, expected a multiple of the block size, {self.block}"
        return None

    def pack(self, numbers: Array) -> Array:
        """Return the bytes of unsigned numbers [n, k]: [n, blocks, block_bytes]."""
        self._check(numbers)
        packed = _pack(numbers.reshape(len(numbers), self.blocks, self.block), self.bits)
        return packed.reshape(len(numbers), self.blocks, self.block_bytes)

    def pack_zero_points(self, numbers: Array) -> Array:
        """Return the bytes of zero points [n, blocks]: [n, zero_bytes]."""
        self._check(numbers)
        room = self.zero_bytes * 8 // self.bits - self.blocks
        return _pack(np.pad(numbers, ((0, 0), (0, room))), self.bits)

    def _check(self, numbers: Array) -> None:
        if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < 1 << self.bits:
            raise ValueError(f"numbers from {numbers.min()} to {numbers.max()} do not fit {self.bits} bits")

    def unpack(self, packed: Array, scales: Array, zeros: Array | None, to: npt.DTypeLike) -> Array:
        """Return the weight [n, k] in the type `to`, computed in it from the packed one, its scales and zero points."""
        n = len(packed)
        numbers = _unpack(packed.reshape(n, -1), self.bits).reshape(n, self.blocks, self.block).astype(to)
        if zeros is None:
            numbers = numbers - np.asarray(self.middle, to)
        elif zeros.dtype == np.uint8:
            numbers = numbers - _unpack(zeros.reshape(n, -1), self.bits)[:, : self.blocks, None].astype(to)
        else:
            numbers = numbers - zeros.reshape(n, self.blocks, 1).astype(to)
        weight = numbers * scales.reshape(n, self.blocks, 1).astype(to)
        return np.asarray(weight.reshape(n, -1)[:, : self.terms])


def packing_of(attribute: Callable[[str, int], Any]) -> Packing:
    """Return the packing that the attributes of a MatMulNBits say, from a function of a name and its default."""
    return Packing(int(attribute("bits", 4)), int(attribute("block_size", 0)), int(attribute("K", 0)))


def _pack(numbers: Array, bits: int) -> Array:
    """Return unsigned numbers, so many bits each, in bytes along the last axis."""
    each = 8 // bits
    parts = numbers.astype(np.uint8).reshape(*numbers.shape[:-1], -1, each)
    shifts = np.arange(each, dtype=np.uint8) * np.uint8(bits)
    return np.asarray(np.bitwise_or.reduce(parts << shifts, axis=-1), np.uint8)


def _unpack(packed: Array, bits: int) -> Array:
    """Return the unsigned numbers of bytes along the last axis, so many bits each."""
    each = 8 // bits
    shifts = np.arange(each, dtype=np.uint8) * np.uint8(bits)
    numbers = packed[..., None] >> shifts & np.uint8((1 << bits) - 1)
    return np.asarray(numbers.reshape(*packed.shape[:-1], -1))
