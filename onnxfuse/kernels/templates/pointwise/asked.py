"""What a plan of the templates `pointwise` and `row` is asked for."""

from dataclasses import dataclass

from onnxfuse.kernels.arch import Arch
from onnxfuse.kernels.ir.program import Program
from onnxfuse.kernels.ir.strides import Shape
from onnxfuse.kernels.launch_plan import Tuning


@dataclass(frozen=True)
class Asked:
    """A program, the sizes that it is to run on, and the GPU."""

    entry: str
    """Name of the kernel."""
    program: Program
    input_shapes: tuple[Shape, ...]
    output_shapes: tuple[Shape, ...]
    aligned: bool
    """Every pointer is a multiple of 16 bytes."""
    arch: Arch
    tuning: Tuning
