"""Operands of the column and group kernels, whose threads read vectors along the inner dimensions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onnxfuse.codegen.emit.access import Load, Operand
from onnxfuse.symbolic.strides import StridedLayout, divisors


@dataclass(frozen=True)
class VectorOperand:
    """An operand, and its access pattern."""

    operand: Operand
    slot: int
    """Index of its stride row among the parameters."""
    along: str
    """Along the inner dimensions: `vector` (contiguous), `splat` (one element) or `gather` (anything else)."""
    reduced: bool
    """Whether a reduction reads it."""

    def load(self, at: str, inner_stride: str) -> Load:
        """Return the load of a vector at a pointer; `inner_stride` is the parameter with the inner strides."""
        pack = f"Pack<{self.operand.stored}, WIDTH>"
        match self.along:
            case "vector":
                return Load(self.operand.name, pack, f"load<WIDTH>({at})")
            case "splat":
                return Load(self.operand.name, f"Splat<{self.operand.stored}>", f"load_splat({at})")
            case _:
                return Load(self.operand.name, pack, f"load_gather({at}, column, p.{inner_stride}[{self.slot}], p)")


def pointers_at(placed: Iterable[VectorOperand]) -> str:
    """Return the function that moves all pointers to an outer index and a column."""

    def moved(p: VectorOperand) -> str:
        column = " + column" if p.along == "vector" else ""
        return f"to.{p.operand.name} + at.offset(p.outer_stride[{p.slot}]){column}"

    return (
        "DEVICE Pointers pointers_at(const Pointers& to, const Outer& at, Index column, const Parameters& p) {\n"
        f"  return {{{', '.join([*map(moved, placed), 'to.scratch'])}}};\n"
        "}\n"
    )


def space_words(spaces: Sequence[StridedLayout], bits: int) -> list[int]:
    """Return the parameter words of spaces: the divisors of all, then each operand's strides in each."""
    words = [word for space in spaces for word in divisors(space.extents, bits)]
    return words + [stride for space in spaces for strides in space.strides for stride in strides]
