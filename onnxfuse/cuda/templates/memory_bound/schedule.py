"""Planner of the memory-bound templates `pointwise` and `row`: from a body to its program and a launch plan."""

import math
from functools import lru_cache
from typing import TypeVar

from onnxfuse.codegen.emit import lower_movement
from onnxfuse.codegen.emit.expressions import live_inputs, phases
from onnxfuse.codegen.operators import read
from onnxfuse.codegen.program import program as ir
from onnxfuse.codegen.program import unify_axes
from onnxfuse.codegen.program.program import BodyProgram, broadcast
from onnxfuse.codegen.program.recentre import centred
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.planning.plan_request import PlanRequest
from onnxfuse.cuda.planning.traffic import bytes_of
from onnxfuse.cuda.templates.memory_bound.costs import times_of
from onnxfuse.cuda.templates.pointwise import costs as pointwise_costs
from onnxfuse.cuda.templates.pointwise import dense, mapped
from onnxfuse.cuda.templates.pointwise.variant import PointwiseVariant
from onnxfuse.cuda.templates.reduction import costs as reduction_costs
from onnxfuse.cuda.templates.reduction import plan as reduction
from onnxfuse.cuda.templates.reduction.variant import RowVariant
from onnxfuse.model.fused import FusedOp
from onnxfuse.support.plurals import plural
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape

MemoryBoundVariant = PointwiseVariant | RowVariant
Kind = TypeVar("Kind", PointwiseVariant, RowVariant)


def program(op: FusedOp) -> BodyProgram:
    """Return the expression program of `op`; raises `UnsupportedError` with the reason if there is none."""
    return _scheduled(read.program(op), op.template)


@lru_cache(maxsize=1024)
def _scheduled(body: BodyProgram, template: str) -> BodyProgram:
    ir.refuse_cores(body, f"a {template} body")
    built = centred(body)
    if phases(built) and template == "pointwise":
        raise UnsupportedError("a reduction in a pointwise body, expected template row")
    (unify_axes if phases(built) else lower_movement).check(built)
    return built


def plan(
    op: FusedOp, input_shapes: tuple[Shape, ...], aligned: bool, arch: Arch, variant: MemoryBoundVariant | None = None
) -> LaunchPlan:
    """Return the launch plan of `op` for inputs of these shapes."""
    built = program(op)
    outputs = output_shapes(op, input_shapes)
    if not any(math.prod(s) for s in outputs):
        return launch_plan.nothing(op, outputs)
    if phases(built):
        row = _of_kind(RowVariant, variant).over(reduction_costs.usual(arch))
        launch = reduction.plan(PlanRequest(op, built, input_shapes, outputs, aligned, arch, row))
    else:
        make = mapped.plan if built.moves() else dense.plan
        pointwise = _of_kind(PointwiseVariant, variant).over(pointwise_costs.usual(arch))
        launch = make(PlanRequest(op, built, input_shapes, outputs, aligned, arch, pointwise))
    if launch.grid[0] == 0 and any(math.prod(s) for s in outputs):
        raise UnsupportedError("an empty input beside an output that is not empty")
    if launch.grid[0] >= 2**31:
        raise UnsupportedError(f"{launch.grid[0]} blocks, expected fewer than 2^31")
    return launch


def _of_kind(kind: type[Kind], variant: MemoryBoundVariant | None) -> Kind:
    """Return the variant, which must be of this kind; without one the plan's own choice."""
    if variant is None:
        return kind()
    if not isinstance(variant, kind):
        raise UnsupportedError(f"{variant}, expected a {kind.__name__}")
    return variant


def output_shapes(op: FusedOp, input_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Return the shape of each output of `op` for these shapes of its inputs."""
    built = program(op)
    if len(input_shapes) != len(built.inputs):
        raise UnsupportedError(f"{plural(input_shapes, 'input shape')}, expected {len(built.inputs)}")
    shapes = built.shapes(input_shapes)
    if not built.moves():
        broadcast(*(shapes[o.value] for o in built.outputs))
    return tuple(shapes[o.value] for o in built.outputs)


def inplace(op: FusedOp) -> tuple[tuple[int, int], ...]:
    """Return the (input, output) pairs that may alias, for all shapes, provided that their types and shapes agree.

    An output qualifies when it depends on every input that is read, so that it is as big as the whole op: each of its
    elements is written by the thread that has read the same element of the input, after reading it.
    """
    built = program(op)
    if built.moves():
        return ()
    inputs = live_inputs(built)
    return tuple(
        (i, n)
        for n, output in enumerate(built.outputs)
        if _reads_elementwise(built, output.value) == frozenset(inputs)
        for i in inputs
        if built.inputs[i] == output.dtype
    )


def _reads_elementwise(built: BodyProgram, index: int) -> frozenset[int]:
    """Return the inputs that a value reads other than through a reduction: its shape covers theirs."""
    seen, waiting, inputs = set[int](), [index], set[int]()
    while waiting:
        value = built.values[waiting.pop()]
        if isinstance(value, ir.Input):
            inputs.add(value.index)
        elif not isinstance(value, ir.Reduce):
            fresh = set(ir.arguments(value)) - seen
            seen |= fresh
            waiting.extend(fresh)
    return frozenset(inputs)


def microseconds(op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch) -> float:
    """Return the estimated time of the plan's own choice."""
    return (
        times_of(arch)
        .of(bool(phases(program(op))))
        .microseconds(bytes_of(op, input_shapes, output_shapes(op, input_shapes)))
    )


def candidates(op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch) -> tuple[MemoryBoundVariant, ...]:
    """Return the variants of the kernel worth measuring."""
    return reduction_costs.candidates(arch) if phases(program(op)) else pointwise_costs.candidates(arch)
