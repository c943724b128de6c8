"""What every kernel template answers about a fused op."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onnxfuse.kernels.arch import Arch
from onnxfuse.kernels.ir.strides import Shape
from onnxfuse.kernels.launch_plan import LaunchPlan, Tuning
from onnxfuse.model.fused import FusedOp

Extents = Sequence[object]
"""A shape whose dimensions may be numbers or names; a name means one number everywhere."""


def _none(op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch) -> tuple[Tuning, ...]:
    return ()


def _nowhere(op: FusedOp) -> tuple[tuple[int, int], ...]:
    return ()


@dataclass(frozen=True)
class Template:
    """One template: a new one is a module that ends in one of these, and a line in `launch.TEMPLATES`.

    All but `refuses` and `inplace` raise `UnsupportedError` with the reason in one line where they do not take the op.
    """

    check: Callable[[FusedOp], object]
    """Whether a kernel can be generated for the body, whatever the shapes."""
    output_shapes: Callable[[FusedOp, tuple[Shape, ...]], tuple[Shape, ...]]
    """The shape of each output for these shapes of the inputs."""
    plan: Callable[[FusedOp, tuple[Shape, ...], bool, Arch, Tuning], LaunchPlan]
    """How to run on inputs of these shapes; the flag: every pointer is a multiple of 16 bytes."""
    refuses: Callable[[FusedOp, Arch], str | None] | None = None
    """Why the body is the better choice on this GPU, None where the kernel is; absent: never."""
    fits: Callable[[FusedOp, Sequence[Extents | None], Arch], str | None] | None = None
    """Why inputs of these shapes, of which parts may be unknown, may have no plan on this GPU, None where they have
    one; absent: all have."""
    reads: Callable[[Extents, Extents], str | None] | None = None
    """Why the kernel does not read an operand of the first shape beside work of the second; absent: it reads all."""
    reads_before: Callable[[Extents, Extents], str | None] | None = None
    """The same of what a prologue computes a value of the second shape from; absent: it has no such prologue."""
    beside: int = 1
    """Anchors side by side that one launch is meant for, at most: each with an operand and an output of its own."""
    inplace: Callable[[FusedOp], tuple[tuple[int, int], ...]] = _nowhere
    """The (input, output) pairs that may share memory, for all shapes, where their types and shapes agree."""
    candidates: Callable[[FusedOp, tuple[Shape, ...], Arch], tuple[Tuning, ...]] = _none
    """The variants worth measuring on inputs of these shapes, beside the plan's own choice; absent: none.

    Those that make the same plan are measured once. One that raises `UnsupportedError` in `plan` is told as failed.
    """
