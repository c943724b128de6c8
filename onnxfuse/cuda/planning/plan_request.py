"""What a plan of the templates `pointwise` and `row` is asked for."""

from dataclasses import dataclass

from onnxfuse.codegen.program.program import Program
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import TileTuning
from onnxfuse.symbolic.strides import Shape


@dataclass(frozen=True)
class PlanRequest:
    """A program, the sizes that it is to run on, and the GPU."""

    entry: str
    """Name of the kernel."""
    program: Program
    input_shapes: tuple[Shape, ...]
    output_shapes: tuple[Shape, ...]
    aligned: bool
    """Every pointer is a multiple of 16 bytes."""
    arch: Arch
    tuning: TileTuning
