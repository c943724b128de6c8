"""Types of the factors of matrix products: how elements lie in memory, and how tensor cores read and add them up."""

from dataclasses import dataclass
from enum import Enum

from onnx import TensorProto

ALIGNED = 8
"""Elements of which rows and columns of the matrices of products must be multiples for the fast kernels: 16 bytes of
16-bit types, which TMA and vectorized loads read at once. Passes pad and split to multiples of as many."""


class Rounding(Enum):
    """What becomes of an element before tensor cores multiply it."""

    NONE = "none"
    """It is multiplied as it is."""
    TF32 = "to tf32"
    """float32 is rounded to the 10 bits of TF32's mantissa."""
    SPLIT = "split into two tf32"
    """float32 becomes the sum of two TF32 numbers, of whose four products three are added up."""


@dataclass(frozen=True)
class FactorType:
    """One row of the table: a pair of element types that a product multiplies."""

    name: str
    left: int
    """ONNX element type of the left factor."""
    right: int
    """ONNX element type of the right factor; equal except for 8-bit integers of both signs."""
    bytes: int
    """Size of an element of either."""
    stored: str
    """C++ type of an element in the kernels' text."""
    ptx: tuple[str, str] | None
    """Names of both in PTX's matrix instructions; None: no instruction reads them, the CUDA cores multiply."""
    accumulator: int = TensorProto.FLOAT
    """ONNX element type of the sums."""
    sum: str = "{}"
    """C++ expression of a sum, from the 32-bit register, a float, in which the kernels hold it."""
    header: str | None = None
    """Template file with the C++ type and its products by a warp; None: include/sm80.cuh has them."""
    rounding: Rounding = Rounding.NONE
    promoted_after: int = 0
    """Terms after which sums must be added to float32 registers, because the instruction keeps fewer bits; 0: never."""

    @property
    def per_word(self) -> int:
        """Elements of a 32-bit register."""
        return 4 // self.bytes

    @property
    def is_integer(self) -> bool:
        """Return whether the sums are integers, exact in any order."""
        return self.accumulator == TensorProto.INT32

    @property
    def needs_k_major(self) -> bool:
        """Return whether the terms of a row or column must be adjacent in memory, for every instruction: nothing
        transposes elements of 8 bits."""
        return self.bytes == 1

    @property
    def line(self) -> int:
        """Return of how many elements the row pitch must be a multiple for TMA: 16 bytes, and at least ALIGNED."""
        return max(ALIGNED, 16 // self.bytes)


def _float8(name: str, dtype: int) -> FactorType:
    # Instructions keep few bits of their sums (FLOAT8_BITS of isa.py): 128 terms are four of wgmma (DeepSeek-V3, 2024).
    header = "include/float8.cuh"
    return FactorType(f"float8 {name}", dtype, dtype, 1, name, (name, name), header=header, promoted_after=128)


def _integers(left: int, right: int) -> FactorType:
    names: dict[int, tuple[str, str, str]] = {
        TensorProto.INT8: ("int8", "signed char", "s8"),
        TensorProto.UINT8: ("uint8", "unsigned char", "u8"),
    }
    (a, cpp_a, ptx_a), (b, cpp_b, ptx_b) = names[left], names[right]
    return FactorType(
        a if a == b else f"{a} by {b}", left, right, 1, f"Bytes<{cpp_a}, {cpp_b}>", (ptx_a, ptx_b), TensorProto.INT32,
        "(int)bits_of_float({})", "include/integers.cuh",
    )  # fmt: skip


FLOAT16 = FactorType("float16", TensorProto.FLOAT16, TensorProto.FLOAT16, 2, "f16", ("f16", "f16"))
BFLOAT16 = FactorType("bfloat16", TensorProto.BFLOAT16, TensorProto.BFLOAT16, 2, "bf16", ("bf16", "bf16"))
TF32 = FactorType("tf32", TensorProto.FLOAT, TensorProto.FLOAT, 4, "float", ("tf32", "tf32"), rounding=Rounding.TF32)
SPLIT_FLOAT32 = FactorType(
    "float32 split in two", TensorProto.FLOAT, TensorProto.FLOAT, 4, "float", ("tf32", "tf32"), rounding=Rounding.SPLIT
)
FLOAT32 = FactorType("float32", TensorProto.FLOAT, TensorProto.FLOAT, 4, "float", None)
E4M3 = _float8("e4m3", TensorProto.FLOAT8E4M3FN)
E5M2 = _float8("e5m2", TensorProto.FLOAT8E5M2)
INTEGERS = tuple(
    _integers(left, right)
    for left in (TensorProto.INT8, TensorProto.UINT8)
    for right in (TensorProto.INT8, TensorProto.UINT8)
)
"""Both signs on both sides: the instructions take each pair, and add up in int32 without saturation."""

FACTORS = (FLOAT16, BFLOAT16, TF32, SPLIT_FLOAT32, FLOAT32, E4M3, E5M2, *INTEGERS)
"""The table. e5m2 is prepared: instruction sets list its products, but kernels do not read its elements."""


def factors_of(left: int, right: int) -> FactorType | None:
    """Return the row of two element types, for float32 the rounded one; None if no product reads them."""
    return next((f for f in FACTORS if (f.left, f.right) == (left, right)), None)
