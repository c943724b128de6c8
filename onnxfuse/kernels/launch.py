"""From a fused op and the shapes of its inputs to a launch plan."""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

import onnx

from onnxfuse.kernels import anatomy, body, gemm, language, pointwise, row
from onnxfuse.kernels.arch import Arch
from onnxfuse.kernels.body import Program, broadcast
from onnxfuse.kernels.functor import live_inputs, phases
from onnxfuse.kernels.layout import Shape
from onnxfuse.kernels.plans import DEFAULT, LaunchPlan, Tuning
from onnxfuse.kernels.source import identifier
from onnxfuse.kernels.types import UnsupportedError
from onnxfuse.model.errors import KernelError
from onnxfuse.model.fused import FusedOp

Result = TypeVar("Result")
TEMPLATES = ("pointwise", "row")


def program(op: FusedOp) -> Program:
    """Return the expression program of `op`; raises `UnsupportedError` with the reason where there is none."""
    return _program(op.template, op.inputs, op.outputs, op.body.SerializeToString(deterministic=True), op.name)


@lru_cache(maxsize=1024)
def _program(template: str, inputs: tuple[int, ...], outputs: tuple[int, ...], text: bytes, name: str) -> Program:
    if template not in TEMPLATES:
        raise UnsupportedError(f"no kernel template {template!r}, expected {' or '.join(TEMPLATES)}")
    function = onnx.FunctionProto.FromString(text)
    op = FusedOp(name=name, rule="", template=template, inputs=inputs, outputs=outputs, body=function)
    built = body.program(op, language.HANDLERS)
    if phases(built) and template == "pointwise":
        raise UnsupportedError("a reduction in a pointwise body, expected template row")
    if any(o.squeezed for o in built.outputs) and not phases(built):
        raise UnsupportedError("keepdims=0 without a reduction")
    return built


def supports(op: FusedOp, arch: Arch | None = None) -> str | None:
    """Return None where a kernel can be generated for `op`, and on `arch` should be, else the reason in one line."""
    try:
        if op.template == "gemm":
            anatomy.anatomy(op)
            return None if arch is None else gemm.refuses(op, arch)
        program(op)
    except UnsupportedError as reason:
        return str(reason)
    return None


def output_shapes(op: FusedOp, input_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Return the shape of each output of `op` for these shapes of its inputs."""
    if op.template == "gemm":
        return _guarded(op, input_shapes, lambda: anatomy.output_shapes(op, input_shapes))
    return _guarded(op, input_shapes, lambda: _output_shapes(program(op), input_shapes))


def plan(
    op: FusedOp, input_shapes: tuple[Shape, ...], aligned: bool, arch: Arch, tuning: Tuning = DEFAULT
) -> LaunchPlan:
    """Return how to run `op` on inputs of these shapes.

    `aligned`: every input and output pointer is a multiple of 16 bytes. The plan holds for all pointers of that kind.
    """
    if op.template == "gemm":
        return _guarded(op, input_shapes, lambda: gemm.plan(op, input_shapes, aligned, arch, tuning))
    return _guarded(op, input_shapes, lambda: _plan(op, program(op), input_shapes, aligned, arch, tuning))


def inplace(op: FusedOp) -> tuple[tuple[int, int], ...]:
    """Return the (input, output) pairs that may share memory, for all shapes, where their types and shapes agree.

    An output qualifies when it depends on every input that is read, so that it is as big as the whole op: each of its
    elements is written by the thread that has read the same element of the input, after reading it.
    """
    if op.template == "gemm":
        return ()  # every element of the left factor is read for a whole row of the output
    built = program(op)
    inputs = live_inputs(built)
    return tuple(
        (i, n)
        for n, output in enumerate(built.outputs)
        if not output.squeezed and _reads_elementwise(built, output.value) == frozenset(inputs)
        for i in inputs
        if built.inputs[i] == output.dtype
    )


def _reads_elementwise(built: Program, index: int) -> frozenset[int]:
    """The inputs that a value reads other than through a reduction: its shape covers theirs."""
    value = built.values[index]
    if isinstance(value, body.Input):
        return frozenset({value.index})
    if isinstance(value, body.Reduce):
        return frozenset()
    return frozenset().union(*(_reads_elementwise(built, a) for a in body.arguments(value)))


def _plan(
    op: FusedOp, built: Program, input_shapes: tuple[Shape, ...], aligned: bool, arch: Arch, tuning: Tuning
) -> LaunchPlan:
    outputs = _output_shapes(built, input_shapes)
    make = row.plan if phases(built) else pointwise.plan
    made = make(identifier(op.name), built, input_shapes, outputs, aligned, arch, tuning)
    if made.grid[0] == 0 and any(math.prod(s) for s in outputs):
        raise UnsupportedError("an empty input beside an output that is not empty")
    if made.grid[0] >= 2**31:
        raise UnsupportedError(f"{made.grid[0]} blocks, expected fewer than 2^31")
    return made


def _output_shapes(built: Program, input_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    if len(input_shapes) != len(built.inputs):
        raise UnsupportedError(f"{len(input_shapes)} input shapes, expected {len(built.inputs)}")
    shapes = built.shapes(input_shapes)
    broadcast(*(shapes[o.value] for o in built.outputs))
    if not any(o.squeezed for o in built.outputs):
        return tuple(shapes[o.value] for o in built.outputs)
    live = [input_shapes[i] for i in live_inputs(built)]
    axes = row.row_axes(built, input_shapes, broadcast(*live))
    return tuple(
        shapes[o.value][: max(len(shapes[o.value]) - axes, 0)] if o.squeezed else shapes[o.value] for o in built.outputs
    )


def _guarded(op: FusedOp, input_shapes: tuple[Shape, ...], work: Callable[[], Result]) -> Result:
    """Run `work`; an error says which op and which shapes it was about."""
    try:
        return work()
    except UnsupportedError as reason:
        shapes = ", ".join("x".join(map(str, s)) or "scalar" for s in input_shapes)
        raise KernelError(
            f"{op.name}: no kernel for input shapes {shapes}: {reason}",
            f"run without onnxfuse's kernels, or optimize without rule {op.rule}",
        ) from reason
