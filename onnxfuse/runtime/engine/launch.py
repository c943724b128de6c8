"""Data exchanged between Python and the engine: the description of an op, and the launch for one set of shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onnxfuse.cuda import TensorMapSpec

Shape = tuple[int, ...]


@dataclass(frozen=True)
class LaunchArguments:
    """Everything `cuLaunchKernelEx` needs, except the pointers."""

    function: int
    """The `CUfunction`."""
    grid: tuple[int, int, int]
    """Grid size in blocks; a zero extent means that nothing is launched."""
    block: tuple[int, int, int]
    """Block size in threads."""
    shared_bytes: int
    """Dynamic shared memory per block."""
    early: bool
    """Programmatic dependent launch: the kernel may start before its predecessor on the stream ends, and waits for it
    itself."""
    parameters: bytes
    """By-value parameter struct, passed after the input and output pointers and any tensor maps."""
    output_shapes: tuple[Shape, ...]
    """One shape per output, in order."""
    tensor_maps: tuple[TensorMapSpec, ...]
    """Tensor maps, encoded for every launch and passed by value together between the pointers and the parameters."""
    scratch_bytes: int
    """Bytes of scratch memory, from the stream's pool, its pointer after the outputs; 0 = none, no pointer."""
    module: object
    """Keeps the module of `function` loaded."""
    counter_bytes: int = 0
    """Bytes at the beginning of the scratch memory that are zeros before and after the launch."""
    interim: bool = False
    """Use this fallback launch for one run only and ask the planner again for the next."""
    then: tuple[LaunchArguments, ...] = ()
    """Subsequent launches on the same pointers."""
    program: LaunchProgram | None = None
    """Program that the engine evaluates for further shapes before it asks the planner; None: no new program."""


@dataclass(frozen=True)
class LoadedKernel:
    """A loaded kernel that a launch program can launch."""

    function: int
    """The `CUfunction`."""
    early: bool
    """See `LaunchArguments.early`."""
    module: object
    """Keeps the module of `function` loaded."""


@dataclass(frozen=True)
class LaunchProgram:
    """A launch program: computes launches for a family of shapes, on one device and for one pointer alignment."""

    family: int
    """Family identifier: the next program with the same identifier replaces this one."""
    tape: bytes
    """Bytes of the program, as written by `onnxfuse.cuda.launch_programs.tape`."""
    kernels: tuple[LoadedKernel, ...]
    """Kernels by their index in the tape."""
    apart: tuple[tuple[int, ...], ...]
    """Shapes that are left to the planner, each in the encoding of `words_of`."""


def words_of(shapes: Sequence[Shape]) -> tuple[int, ...]:
    """Return shapes in the encoding of launch programs: rank and extents of each shape in turn."""
    return tuple(n for s in shapes for n in (len(s), *s))


Varied = tuple[tuple[bool, ...], ...]
"""Per input and axis, whether the extent has varied between runs of the same node."""

Planner = Callable[[tuple[Shape, ...], bool, int, Varied | None, int | None], LaunchArguments | LaunchProgram]
"""(input shapes, all pointers 16-byte aligned?, device, varying extents or None for a node's first shapes, bytes of
scratch memory that launches may have or None for any) -> a launch, or a program that computes it.

Called once per shape; the engine caches the result unless it is a fallback launch.
"""


@dataclass(frozen=True)
class Row:
    """One fused op as registered with the engine."""

    name: str
    """`op_type` in the domain `onnxfuse`."""
    inputs: tuple[int, ...]
    """Element type of each input."""
    outputs: tuple[int, ...]
    """Element type of each output."""
    may_alias: tuple[int, ...]
    """Inputs whose buffer output 0 may reuse."""
    planner: Planner
    """Plans launches for shapes that the op has not seen yet."""
    on_host: tuple[int, ...] = ()
    """Inputs that stay in host memory: they only carry a shape, and no kernel reads them."""
