"""Launch plans, and the tunable constants of plans."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from itertools import zip_longest
from typing import cast

from onnxfuse.codegen.emit import entry as entries
from onnxfuse.codegen.emit.source import DEVICE, KernelSource, generated, identifier, template
from onnxfuse.cuda.costs import tables
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic.branching import larger
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape
from onnxfuse.symbolic.traced_numbers import is_recorded

EXTREMES_BYTES = struct.calcsize("2f")
"""Bytes of a part of a value's range in scratch memory, two float32 (include/extremes.cuh)."""
PARAMETER_LIMIT = 4000  # bytes; CUDA allows 4096 including the pointers


@dataclass(frozen=True)
class SmallCosts:
    """Where tensors are bound by latency."""

    elements: int
    """Elements per multiprocessor up to which a tensor is small."""
    threads: int
    """Threads per multiprocessor below which vectors of small tensors are halved."""


def small_costs(arch: Arch) -> SmallCosts:
    """Return where tensors are bound by latency on an architecture."""
    return tables.section(arch.name, "small", SmallCosts)


MOST_LINES = 3
"""Lines of two kernels' texts that are named where they differ."""


def is_small(count: int, arch: Arch) -> bool:
    """Return whether so many elements are latency-bound when spread over all available threads."""
    return count <= arch.sm_count * small_costs(arch).elements


def vector_width(width: int, count: int, arch: Arch) -> int:
    """Return the vector width: `width`, or less for small tensors."""
    while is_small(count, arch) and width > 1 and count // width < arch.sm_count * small_costs(arch).threads:
        width //= 2
    return width


def residency_padding(shared_bytes: int, blocks: int, arch: Arch) -> int:
    """Return the padding of shared memory that limits the residency of so many blocks, so that they spread over all
    multiprocessors.

    A kernel launched while its predecessor ends finds few multiprocessors free. As many blocks as fit would be placed
    on each of these, and the others would idle: after a product, 32 x 28x28x128 to 32 filters in 128 blocks take 20 us
    without padding and 9.5 with it, 14x14 9.5 and 5.3, 7x7 5.1 either way (float16, H200, 2026-11).
    """
    share = larger(-(-blocks // arch.sm_count), 1)
    # A multiprocessor has one kilobyte more than a block may request, and each block uses one more than it requests.
    crowded = (arch.shared_bytes + 1024) // (share + 1) - 1024
    return larger(shared_bytes, crowded + 128)


Size = tuple[int, int, int]


@dataclass(frozen=True)
class PixelWindow:
    """A window sliding over the pixels of an image, in the order of the map's extents: width, then height."""

    lower: tuple[int, ...]
    """Start of the first window relative to the image's first pixel."""
    upper: tuple[int, ...]
    """End of the window relative to the image's last pixel."""
    strides: tuple[int, ...]
    """Stride of the window in pixels."""


@dataclass(frozen=True)
class TensorMapSpec:
    """A TMA tensor map; encoded for each launch, since pointers change.

    Boxes are swizzled over rows of 128 bytes in shared memory; elements outside of the tensor read as zero.
    """

    pointer: int
    """Index among the kernel's pointers: inputs, then outputs."""
    dtype: int
    """Element type, `onnx.TensorProto.DataType`."""
    extents: tuple[int, ...]
    """Elements along each dimension, innermost first."""
    strides: tuple[int, ...]
    """Byte strides of each dimension except the innermost; multiples of 16."""
    box: tuple[int, ...]
    """Elements that one copy transfers along each dimension; for a window channels and pixels."""
    window: PixelWindow | None = None
    """For images [batch, height, width, channels] (im2col mode): one copy transfers the same element of as many windows
    as fit."""
    to_tf32: bool = False
    """Whether float32 is rounded to the 10 mantissa bits that the tensor cores read; otherwise they truncate."""
    offset: int = 0
    """Bytes from the pointer to the first element."""


@dataclass(frozen=True)
class LaunchPlan:
    """Everything that a launch needs besides the pointers and the stream."""

    kernel: KernelSource
    """The kernel to compile; equal kernels are compiled once."""
    grid: Size
    """Number of blocks; 0 = nothing to launch."""
    block: Size
    """Threads per block."""
    shared_bytes: int
    """Dynamic shared memory per block."""
    parameters: bytes
    """The by-value struct that is the kernel's last argument, after the input and the output pointers."""
    output_shapes: tuple[Shape, ...]
    tensor_maps: tuple[TensorMapSpec, ...] = ()
    """Passed by value, together, between the pointers and the parameters."""
    scratch_bytes: int = 0
    """Scratch memory, its pointer after those of the outputs; 0 = none, and no pointer.

    All plans that run on a stream share it (engine/scratch.h), so it holds anything at first, but for the counters. The
    launches of a plan that have equally many counters hand on the rest to each other.
    """
    counter_bytes: int = 0
    """Bytes at the beginning of the scratch memory that are zeros before and after each launch."""
    extremes: int | None = None
    """Parts in which the launch leaves the smallest and the largest element of an output in its scratch memory, where
    the op asks for it (`FusedOp.extremes_of`); None: it does not."""
    then: tuple[LaunchPlan, ...] = ()
    """Subsequent launches on the same pointers."""

    @property
    def all_scratch_bytes(self) -> int:
        """Scratch memory that all launches need: as much as the one with most counters, and the one with most data."""
        launches = (self, *self.then)
        most = max(p.counter_bytes for p in launches), max(p.scratch_bytes - p.counter_bytes for p in launches)
        return sum(most)

    @property
    def configuration(self) -> tuple[object, ...]:
        """The kernel, its launch configuration and its parameters: equal for variants that launch the same."""
        return self.kernel, self.grid, self.block, self.shared_bytes, self.parameters


def in_sequence(plans: Iterable[LaunchPlan], output_shapes: tuple[Shape, ...]) -> LaunchPlan:
    """Return the plan of an op with outputs of these shapes, by the launches of some plans one after the other."""
    launches = (launch for plan in plans for launch in (plan, *plan.then))
    first, *others = (replace(launch, output_shapes=output_shapes, then=()) for launch in launches)
    return replace(first, then=tuple(others))


def difference(plan: LaunchPlan, expected: LaunchPlan) -> str:
    """Return in which fields two plans differ, in one line; of the kernels' texts the first lines that do."""
    values = [(f.name, getattr(plan, f.name), getattr(expected, f.name)) for f in fields(LaunchPlan)[1:-1]]
    differences = [f"{name} {mine} instead of {other}" for name, mine, other in values if mine != other]
    if plan.kernel != expected.kernel:
        lines = zip_longest(plan.kernel.text.split("\n"), expected.kernel.text.split("\n"), fillvalue="")
        changed = [f"{mine.strip()!r} instead of {other.strip()!r}" for mine, other in lines if mine != other]
        differences.append(
            f"kernel {plan.kernel.entry}, {', '.join(changed[:MOST_LINES]) or 'by its flags or file names'}"
        )
    if len(plan.then) != len(expected.then):
        differences.append(f"{len(plan.then)} launches after it instead of {len(expected.then)}")
    after = (difference(mine, other) for mine, other in zip(plan.then, expected.then, strict=False))
    return "; ".join((*differences, *(f"after it: {text}" for text in after if text)))


def nothing(op: FusedOp, output_shapes: tuple[Shape, ...]) -> LaunchPlan:
    """Return the plan for outputs without elements: a kernel that is never launched."""
    entry = identifier(op.name)
    text = "struct Parameters { unsigned count; };\n"
    text += entries.kernel(entry, len(op.inputs), len(op.outputs), "", bounds="KERNEL(32)")
    kernel = KernelSource(entry, (template(DEVICE), generated(entry, text)))
    return LaunchPlan(kernel, (0, 1, 1), (32, 1, 1), 0, packed((0,), 32), output_shapes)


def index_bits(elements: int) -> int:
    """Return the width of the kernel's index type: 32 if no index can reach 2^31."""
    return 32 if elements < 2**31 else 64


def index_type(bits: int) -> str:
    """Return the C++ index type of this width."""
    return "unsigned" if bits == 32 else "unsigned long long"


@dataclass(frozen=True)
class PackedParameters:
    """Parameters whose words are recorded symbolically before they become bytes."""

    words: tuple[int, ...]
    bits: int

    def __len__(self) -> int:
        """Return the size in bytes."""
        return len(self.words) * self.bits // 8

    def data(self) -> bytes:
        """Return the bytes."""
        whole = [w % (1 << self.bits) for w in self.words]
        return struct.pack(f"<{len(whole)}{'I' if self.bits == 32 else 'Q'}", *whole)


def packed(words: Iterable[int], bits: int) -> bytes:
    """Pack the parameters, all of them words of the index type, as the kernel reads them."""
    values = PackedParameters(tuple(words), bits)
    if any(not -(1 << (bits - 1)) <= w < 1 << bits for w in values.words):
        raise UnsupportedError(f"numbers beyond {bits} bits among the kernel's parameters")
    if len(values) > PARAMETER_LIMIT:
        raise UnsupportedError(f"{len(values)} bytes of kernel parameters, expected at most {PARAMETER_LIMIT}")
    # While a planner is recorded its words are symbolic: return their expressions instead of bytes.
    return cast(bytes, values) if any(is_recorded(w) for w in values.words) else values.data()
