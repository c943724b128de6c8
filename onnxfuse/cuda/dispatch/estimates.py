"""Estimated microseconds of the variants of a fused op's kernel, as `explain --cost` prints them."""

from dataclasses import dataclass

from onnxfuse.cuda.costs import tables
from onnxfuse.cuda.dispatch.cost import traffic_costs
from onnxfuse.cuda.dispatch.dispatch import plan, planner_of
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.planning.traffic import bytes_of
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.model.fused import FusedOp
from onnxfuse.support.errors import NoPlanError
from onnxfuse.symbolic.strides import Shape


@dataclass(frozen=True)
class Estimate:
    """One variant of a kernel, and how long it should take."""

    variant: Variant | None
    """None: the plan's own choice, of a template without estimates of variants."""
    microseconds: float
    chosen: bool
    """Whether it is the plan's own choice."""


def estimates(op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch) -> tuple[Estimate, ...]:
    """Return the estimates of a kernel's variants for inputs of these shapes, fastest first.

    The plan's own choice is among them; where its template estimates no times of these, it is alone, by its kind's
    measured speed, else by `traffic`. Raises
    NoPlanError if there is no plan.
    """
    chosen = plan(op, input_shapes, True, arch)
    times = planner_of(op).estimates(op, input_shapes, arch)
    found = [
        Estimate(variant, time, made.configuration == chosen.configuration)
        for variant, time in times.items()
        if (made := _plan(op, input_shapes, arch, variant)) is not None
    ]
    if not any(one.chosen for one in found):
        time = planner_of(op).microseconds(op, input_shapes, arch)
        return (Estimate(None, time or traffic(op, input_shapes, chosen.output_shapes, arch), True),)
    return tuple(sorted(found, key=lambda one: one.microseconds))


def traffic(op: FusedOp, input_shapes: tuple[Shape, ...], output_shapes: tuple[Shape, ...], arch: Arch) -> float:
    """Return a lower bound in microseconds: a launch that reads each input and writes each output once at the card's
    memory bandwidth, and computes in no time."""
    return launch_and_traffic(bytes_of(op, input_shapes, output_shapes), arch)


def launch_and_traffic(size: int, arch: Arch) -> float:
    """Return the least microseconds of a launch that moves so many bytes."""
    return traffic_costs(arch.name).launch + size / (tables.card(arch.name).bandwidth * 1e6)


def _plan(op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch, variant: Variant) -> LaunchPlan | None:
    try:
        return plan(op, input_shapes, True, arch, variant)
    except NoPlanError:
        return None
