"""Input of the planners of the templates `pointwise` and `row`."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from onnxfuse.codegen.emit.source import identifier
from onnxfuse.codegen.program.program import BodyProgram
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic.strides import Shape

V = TypeVar("V", bound=Variant)


@dataclass(frozen=True)
class PlanRequest(Generic[V]):
    """A program, the sizes to run it on, and the GPU."""

    op: FusedOp
    """The op whose arguments the kernel takes: it may have more outputs than the program."""
    program: BodyProgram
    input_shapes: tuple[Shape, ...]
    output_shapes: tuple[Shape, ...]
    aligned: bool
    """Whether every pointer is a multiple of 16 bytes."""
    arch: Arch
    tuning: V

    @property
    def entry(self) -> str:
        """Name of the kernel."""
        return identifier(self.op.name)
