"""A program that reduces, in the one space of its operands: what the row and the column template start from."""

from collections.abc import Mapping
from dataclasses import dataclass

from onnxfuse.codegen.emit.access import Operand
from onnxfuse.codegen.program.program import Program
from onnxfuse.codegen.program.unify_axes import Lookup
from onnxfuse.cuda.planning.plan_request import PlanRequest
from onnxfuse.symbolic.strides import Layout, Shape, collapse, strides_by, strides_in


@dataclass(frozen=True)
class Reduced:
    """A program without moves, whose reductions all run over the same axes."""

    asked: PlanRequest
    program: Program
    """That of what is asked, its axes the space's."""
    operands: tuple[Operand, ...]
    full: Shape
    """The space: the extents of its axes, outermost first."""
    axes: tuple[int, ...]
    """Those that are reduced, in order."""
    lookups: Mapping[str, Lookup]
    """By the name of the operand that is the table."""
    orders: Mapping[str, tuple[int, ...]]
    """The axes as memory has them of operands, by name, where that is another order than the space's."""

    @property
    def kept(self) -> tuple[int, ...]:
        """The axes that are not reduced, in order."""
        return tuple(d for d in range(len(self.full)) if d not in self.axes)

    @property
    def strides(self) -> tuple[Shape, ...]:
        """Of each operand along each axis."""
        return tuple(
            strides_by(o.shape, self.full, self.orders[o.name])
            if o.name in self.orders
            else strides_in(o.shape, self.full)
            for o in self.operands
        )

    def extents(self, axes: tuple[int, ...]) -> Shape:
        """Return the extents of these axes."""
        return tuple(self.full[d] for d in axes)

    def layout(self, axes: tuple[int, ...]) -> Layout:
        """Return these axes as few dimensions, with the strides of each operand."""
        return collapse(self.extents(axes), tuple(tuple(s[d] for d in axes) for s in self.strides))
