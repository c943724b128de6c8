"""Launch limits of a GPU: a plan that exceeds one is rejected during planning, not by the driver."""

from collections.abc import Iterator

from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan, TensorMapSpec

THREADS = 1024
"""Maximum threads per block (CUDA C++ programming guide, technical specifications)."""
BLOCKS = (2**31 - 1, 65535, 65535)
"""Maximum blocks along each grid dimension (same table)."""
PARAMETER_BYTES = 4096
"""Maximum total size of a kernel's arguments that every driver supports."""
TENSOR_MAPS = 24
"""Maximum tensor maps of one launch: three quarters of those bytes. The engine has room for as many."""
TENSOR_MAP_BYTES = 128
POINTER_BYTES = 8

SECTOR_BYTES = 32
"""Bytes of a memory sector, the smallest unit of a transfer (CUDA C++ best practices guide)."""
ACCESS_BYTES = 16
"""Bytes of a thread's widest access (CUDA C++ programming guide)."""
INDICES = 2**31
"""Elements from which a signed 32-bit index does not reach all."""
REGISTERS = 65536
"""32-bit registers of a multiprocessor (CUDA C++ programming guide, technical specifications)."""
RESERVED_BYTES = 1024
"""Shared memory of a multiprocessor reserved per block (CUDA C++ programming guide)."""

EXTENT, STRIDE, BOX, ALIGNMENT = 2**32, 2**40, 256, 16
"""Limits of a tensor map: elements along a dimension, byte strides, elements of a box, and the alignment of strides and
addresses (CUDA driver API, cuTensorMapEncodeTiled)."""
TRAVERSAL_STRIDE = 8
"""Maximum stride of a window in elements (CUDA driver API, cuTensorMapEncodeIm2col)."""
CORNERS = {2: 128, 3: 16}
"""Range of a window's corner offsets, by the number of its axes."""
OFFSETS = {2: 255, 3: 31}
"""Maximum offset of an element from the window's first one (PTX ISA, im2col offsets of 8 and of 5 bits)."""


def exceeded(plan: LaunchPlan, tensors: int, arch: Arch) -> str | None:
    """Return which limit of `arch` a plan exceeds, for kernels with so many tensors; None if it can be launched."""
    return next((reason for launch in (plan, *plan.then) for reason in _exceeded(launch, tensors, arch)), None)


def _exceeded(plan: LaunchPlan, tensors: int, arch: Arch) -> Iterator[str]:
    """Yield each limit that one launch exceeds."""
    blocks = zip(plan.grid, BLOCKS, strict=True)
    threads = plan.block[0] * plan.block[1] * plan.block[2]
    maps = len(plan.tensor_maps)
    pointers = tensors + (plan.scratch_bytes > 0)
    parameters = pointers * POINTER_BYTES + maps * TENSOR_MAP_BYTES + len(plan.parameters)
    yield from (f"{n} blocks, expected at most {most}" for n, most in blocks if n > most)
    if not 0 < threads <= THREADS:
        yield f"{threads} threads in a block, expected 1 to {THREADS}"
    if plan.shared_bytes > arch.shared_bytes:
        yield f"{plan.shared_bytes} bytes of shared memory, {arch.name} has {arch.shared_bytes} for a block"
    if maps > TENSOR_MAPS:
        yield f"{maps} tensor maps, expected at most {TENSOR_MAPS}"
    if parameters > PARAMETER_BYTES:
        yield f"{parameters} bytes of arguments, expected at most {PARAMETER_BYTES}"
    if plan.grid[0]:
        yield from (f"a tensor map of {reason}" for m in plan.tensor_maps if (reason := _unencodable(m)) is not None)


def _unencodable(tensor: TensorMapSpec) -> str | None:
    """Return why the driver would reject a tensor map; None if it is valid."""
    if any(not 0 < n <= EXTENT for n in tensor.extents):
        return f"extents {list(tensor.extents)}, expected 1 to 2^32"
    if any(not 0 < n <= BOX for n in tensor.box):
        return f"boxes of {list(tensor.box)} elements, expected 1 to {BOX}"
    if any(n >= STRIDE or n % ALIGNMENT for n in (*tensor.strides, tensor.offset)):
        return f"steps of {[*tensor.strides, tensor.offset]} bytes, expected multiples of {ALIGNMENT} below 2^40"
    return None
