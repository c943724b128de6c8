"""A reducing program in the common index space of its operands: input of the row and column templates."""

from collections.abc import Mapping
from dataclasses import dataclass

from onnxfuse.codegen.emit.access import Operand
from onnxfuse.codegen.program.program import BodyProgram
from onnxfuse.codegen.program.unify_axes import Lookup
from onnxfuse.cuda.planning.plan_request import PlanRequest
from onnxfuse.cuda.templates.reduction.variant import RowVariant
from onnxfuse.symbolic.strides import Shape, StridedLayout, collapse, strides_by, strides_in


@dataclass(frozen=True)
class Reduced:
    """A program without movements, whose reductions all run over the same axes."""

    request: PlanRequest[RowVariant]
    program: BodyProgram
    """The requested program, with the axes of the index space."""
    operands: tuple[Operand, ...]
    full: Shape
    """The index space: extents of its axes, outermost first."""
    axes: tuple[int, ...]
    """The reduced axes, in order."""
    lookups: Mapping[str, Lookup]
    """Row lookups, by the name of the table operand."""
    orders: Mapping[str, tuple[int, ...]]
    """Memory order of the axes of operands, by name, if it differs from the index space's."""

    @property
    def free(self) -> tuple[int, ...]:
        """The axes that are not reduced, in order."""
        return tuple(d for d in range(len(self.full)) if d not in self.axes)

    @property
    def strides(self) -> tuple[Shape, ...]:
        """Strides of each operand along each axis."""
        return tuple(
            strides_by(o.shape, self.full, self.orders[o.name])
            if o.name in self.orders
            else strides_in(o.shape, self.full)
            for o in self.operands
        )

    def extents(self, axes: tuple[int, ...]) -> Shape:
        """Return the extents of these axes."""
        return tuple(self.full[d] for d in axes)

    def layout(self, axes: tuple[int, ...]) -> StridedLayout:
        """Return these axes merged to as few dimensions as possible, with the strides of each operand."""
        return collapse(self.extents(axes), tuple(tuple(s[d] for d in axes) for s in self.strides))
