"""Values that ONNX Runtime places on the CPU in a CUDA session: shape arithmetic.

The optimizer and the registration of kernels share this answer. It reproduces GetCpuPreferredNodes of ONNX Runtime
1.31.
"""

from collections.abc import Callable, Collection, Iterable, Sequence

from onnx import NodeProto, TensorProto

from onnxfuse.ops import Operator, Trait, named, operator

SMALL = 100
"""Elements. ONNX Runtime's limit for initializers that it copies rather than keep a node on the GPU."""

SHAPE_READERS = named(Trait.READS_SHAPE)
"""Operators whose CUDA kernels write their output to host memory."""

REALS = frozenset({TensorProto.FLOAT, TensorProto.DOUBLE})
"""Element types of floating-point numbers that ONNX Runtime may move to the CPU."""

HALF = frozenset({
    TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ,
    TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E5M2FNUZ,
})  # fmt: skip
"""Element types that ONNX Runtime does not move to the CPU."""


def has_cuda_kernel(entry: Operator, dtype: int) -> bool:
    """Return whether ONNX Runtime may run an operator on the GPU for this type of its first input: a Pad of integers
    runs on the CPU."""
    return Trait.FLOATS_ON_CUDA not in entry.traits or dtype in REALS | HALF


def leaves_on_host(
    op: str, domain: str, inputs: Sequence[str], on_host: Collection[str], is_near: Callable[[str], bool],
    dtype: Callable[[str], int],
) -> bool:  # fmt: skip
    """Return whether a node's outputs are on the CPU, given which of its inputs are.

    They are if it reads a shape, or if it reads a CPU value and each of its other inputs is one too, a graph input or a
    small constant; not if an input has a half type, or is one that the node's CUDA kernel itself reads on the CPU.
    `is_near` returns whether a value is a graph input or a small constant, `dtype` its `onnx.TensorProto.DataType`, 0
    if unknown.
    """
    if domain == "" and op in SHAPE_READERS:
        return True
    if not on_host or not any(map(on_host.__contains__, inputs)):
        return False
    values = [(i, v) for i, v in enumerate(inputs) if v]
    entry = operator(op, domain)
    runs = entry is not None and has_cuda_kernel(entry, dtype(inputs[0]) if inputs else 0)
    read_there = entry.on_host if entry is not None and runs else ()
    return all(dtype(v) not in HALF and (is_near(v) or (v in on_host and i not in read_there)) for i, v in values)


def computed_on_host(
    nodes: Iterable[NodeProto], is_near: Callable[[str], bool], dtype: Callable[[str], int]
) -> frozenset[str]:
    """Return the values that a sequence of nodes leaves on the CPU; `is_near` and `dtype` as in `leaves_on_host`."""
    on_host: set[str] = set()
    for node in nodes:
        if leaves_on_host(node.op_type, node.domain, node.input, on_host, is_near, dtype):
            on_host.update(node.output)
    return frozenset(on_host)
