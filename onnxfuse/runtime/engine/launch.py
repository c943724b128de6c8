"""What Python and the engine tell each other: the row of an op, and the launch for one set of shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onnxfuse.cuda import TensorMap

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Launch:
    """All that a `cuLaunchKernelEx` needs but the pointers."""

    function: int
    """The `CUfunction`."""
    grid: tuple[int, int, int]
    """Blocks; a zero means that there is nothing to launch."""
    block: tuple[int, int, int]
    """Threads."""
    shared_bytes: int
    """Dynamic shared memory per block."""
    early: bool
    """Launched before the kernel ahead on the stream has ended, for which it waits by itself."""
    parameters: bytes
    """The by-value struct that follows the input and output pointers, and the tensor maps if there are any."""
    output_shapes: tuple[Shape, ...]
    """One shape per output, in order."""
    tensor_maps: tuple[TensorMap, ...]
    """Encoded for every launch, and passed by value together, between the pointers and the parameters."""
    scratch_bytes: int
    """Memory that launches on one stream hand on, its pointer after those of the outputs; 0 = none, and no pointer."""
    scratch: Callable[[], int]
    """Returns the address of such memory, zeros, that lives as long as this; called once for each stream."""
    module: object
    """Whatever must stay alive for `function` to stay loaded."""
    passing: bool = False
    """Whether that memory holds nothing from one plan to the next, so that one room serves all shapes of the op."""
    interim: bool = False
    """For one run alone: the planner is asked again for the next. Only without scratch memory that is not passing."""
    then: tuple[Launch, ...] = ()
    """Launches after this one, on the same pointers."""
    program: Program | None = None
    """What the engine asks for the next shapes, before it asks for another launch; None: nothing new."""


@dataclass(frozen=True)
class Kernel:
    """A loaded kernel that a program launches."""

    function: int
    """The `CUfunction`."""
    early: bool
    """As of a `Launch`."""
    module: object
    """Whatever must stay alive for `function` to stay loaded."""


@dataclass(frozen=True)
class Rooms:
    """The scratch memory of a launch that a program made."""

    scratch: Callable[[], int]
    """As of a `Launch`."""


@dataclass(frozen=True)
class Program:
    """A launch program: answers for the shapes of a family, on the device and by the pointers that it was made for."""

    family: int
    """The next program of this number takes its place."""
    tape: bytes
    """`onnxfuse.cuda.launch_programs.tape`."""
    kernels: tuple[Kernel, ...]
    """By their numbers in the tape."""
    apart: tuple[tuple[int, ...], ...]
    """Shapes that the planner plans itself: the words of each."""
    rooms: Callable[[int], Rooms]
    """From bytes to scratch memory."""


def words_of(shapes: Sequence[Shape]) -> tuple[int, ...]:
    """Return shapes as programs read them: rank and extents of each in turn."""
    return tuple(n for s in shapes for n in (len(s), *s))


Varied = tuple[tuple[bool, ...], ...]
"""For each extent of each input whether it has been another one in some run of the same node."""

Planner = Callable[[tuple[Shape, ...], bool, int, Varied | None], Launch | Program]
"""(input shapes, all pointers 16-byte aligned?, device, what varies, None of a node's first shapes) -> the launch, or a
program that answers with it.

Asked once; the engine keeps the answer, but for an interim one."""


@dataclass(frozen=True)
class Row:
    """One fused op as the engine registers it."""

    name: str
    """`op_type` in the domain `onnxfuse`."""
    inputs: tuple[int, ...]
    """Element type of each input."""
    outputs: tuple[int, ...]
    """Element type of each output."""
    may_alias: tuple[int, ...]
    """Inputs whose buffer output 0 may take over."""
    planner: Planner
    """Answers for shapes that the op has not seen."""
    on_host: tuple[int, ...] = ()
    """Inputs that stay on the CPU: they tell a shape, and no kernel reads them."""
