"""An instruction set as far as kernels depend on it: matrix instructions, copies, shared memory, clusters, launches."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from onnxfuse.cuda.isa.factors import FactorType

WARP, WARPGROUP = 32, 128
"""Threads that execute an instruction together."""
FRAGMENT = 16
"""Rows of a left factor and of sums that a warp has in registers (PTX ISA, m16n8)."""
FRAGMENT_COLUMNS = 8
"""Columns of the same."""
TERMS_BYTES = 32
"""Bytes of terms of each factor that one matrix instruction consumes."""
SWIZZLED_BYTES = 128
"""Bytes of a row of a swizzled tile in shared memory: all banks once (PTX ISA, 128B swizzle)."""


FLOAT32_BITS = 24
"""Significant bits of a float32, in which matrix instructions add up."""
FLOAT8_BITS = 14
"""Bits of those that multiply float8: terms and sum are aligned to the largest of them, and cut off behind so many.

Of sm_90: DeepSeek-V3 (2024, section 3.3.2, 14 bits of the aligned products); of sm_89 and sm_90: SageAttention2 (Zhang
et al., 2024, an accumulator of 1 + 8 + 13 bits). They are cut off towards zero (Fasi et al., "Numerical behavior of
NVIDIA tensor cores", 2021). Of sm_120 the same is assumed.
"""


class Copy(Enum):
    """A way in which data moves from global to shared memory next to the threads."""

    CP_ASYNC = "cp.async"
    """4, 8 or 16 bytes per thread."""
    TMA = "cp.async.bulk.tensor"
    """Boxes of a tensor, which one thread requests and an mbarrier awaits."""


@dataclass(frozen=True)
class MatrixInstruction:
    """A tensor-core instruction, d[m, n] += a[m, k] b[k, n], and which lane holds which elements of it."""

    factors: FactorType
    m: int
    n: tuple[int, ...]
    """Possible columns."""
    k: int
    """Terms: 32 bytes of each factor."""
    threads: int
    """Threads that execute it together: a warp or a warpgroup."""
    k_major: bool
    """Whether both factors must have the terms of a row or column adjacent in memory: no load or descriptor transposes
    elements that are not 16 bits wide."""
    sum_bits: int = FLOAT32_BITS
    """Bits that it keeps of its terms and their sum, counted from the highest bit of the largest; of floats."""

    @property
    def keeps_float32(self) -> bool:
        """Return whether sums keep the bits of float32, or all of them."""
        return self.factors.is_integer or self.sum_bits >= FLOAT32_BITS

    def left(self, lane: int, register: int, element: int = 0) -> tuple[int, int]:
        """Return (row, term) of an element of a warp's left factor in registers: four of 32 bits per lane."""
        word = lane % 4 + register // 2 * 4
        return lane // 4 + register % 2 * 8, word * self.factors.per_word + element

    def right(self, lane: int, register: int, element: int = 0) -> tuple[int, int]:
        """Return (term, column) of an element of the right factor in registers: two of 32 bits per lane."""
        return (lane % 4 + register * 4) * self.factors.per_word + element, lane // 4

    def sums(self, thread: int, register: int) -> tuple[int, int]:
        """Return (row, column) of an accumulator register: each warp has 16 rows, four registers eight columns."""
        row = thread // WARP * 16 + thread % WARP // 4 + register // 2 % 2 * 8
        return row, register // 4 * 8 + thread % 4 * 2 + register % 2


@dataclass(frozen=True)
class Isa:
    """Instructions and limits of GPUs of one compute capability."""

    name: str
    """Its architecture in NVRTC's notation."""
    shared_bytes: int
    """Maximum shared memory per block (CUDA C++ programming guide, technical specifications)."""
    copies: frozenset[Copy] = frozenset()
    instructions: tuple[MatrixInstruction, ...] = ()
    """Those that the kernels use."""
    cluster: int = 1
    """Maximum portable cluster size in blocks, whose shared memory is accessible to each other; 1: no clusters."""
    starts_early: bool = False
    """Supports programmatic dependent launch: a kernel may start while its predecessor on the stream still runs."""
    unused: str = ""
    """Matrix instructions that the tensor cores need for their full rate and that the kernels do not use; empty: none.
    The kernels run there by the other ones; the library is faster."""

    def mma(self, factors: FactorType) -> MatrixInstruction | None:
        """Return the instruction by which a warp multiplies such factors; None if there is none."""
        return self._instruction(factors, WARP)

    def wgmma(self, factors: FactorType) -> MatrixInstruction | None:
        """Return the instruction by which a warpgroup multiplies such factors; None if there is none."""
        return self._instruction(factors, WARPGROUP)

    def _instruction(self, factors: FactorType, threads: int) -> MatrixInstruction | None:
        return next((i for i in self.instructions if i.factors == factors and i.threads == threads), None)


def mma_sync(*factors: FactorType, sum_bits: int = FLOAT32_BITS) -> tuple[MatrixInstruction, ...]:
    """Return `mma.sync.aligned.m16n8` of each type: 32 bytes of terms, fragments in registers (PTX ISA 9.7.14).

    Transposed fragments of 16-bit elements are loaded by ldmatrix, those of 32 bits element by element.
    """
    return tuple(
        MatrixInstruction(
            f, FRAGMENT, (FRAGMENT_COLUMNS,), TERMS_BYTES // f.bytes, WARP, k_major=f.needs_k_major, sum_bits=sum_bits
        )
        for f in factors
    )


def wgmma_async(*factors: FactorType, sum_bits: int = FLOAT32_BITS) -> tuple[MatrixInstruction, ...]:
    """Return `wgmma.mma_async.sync.aligned.m64` of each type, factors in shared memory (PTX ISA 9.7.15).

    Integer sums have no widths of odd multiples of eight from 40 columns on.
    """
    return tuple(
        MatrixInstruction(
            f, 64,
            tuple(n for n in range(8, 257, 8) if not f.is_integer or n <= 24 or n % 16 == 0),
            TERMS_BYTES // f.bytes, WARPGROUP, k_major=f.bytes != 2, sum_bits=sum_bits,
        )
        for f in factors
    )  # fmt: skip
