"""Select the template of a reduction by its axes.

`row` for contiguous reductions, `column` for strided ones, `group` for norms over both.
"""

import math
from dataclasses import dataclass

from onnxfuse.codegen.emit import access
from onnxfuse.codegen.program import unify_axes
from onnxfuse.codegen.program.program import Reduce, broadcast, reduced_axes
from onnxfuse.codegen.program.recentre import alone
from onnxfuse.codegen.program.unify_axes import BroadcastProgram
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.planning.plan_request import PlanRequest
from onnxfuse.cuda.templates.reduction import column, costs, group, row
from onnxfuse.cuda.templates.reduction.problem import Reduced
from onnxfuse.cuda.templates.reduction.variant import RowVariant
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape


@dataclass(frozen=True)
class ReductionAxes:
    """The axes of the work, outermost first, with extent 1 for unused ones."""

    full: Shape
    reduced: frozenset[int]
    """The reduced axes, the same for all reductions."""


def plan(request: PlanRequest[RowVariant]) -> LaunchPlan:
    """Return the launch plan of a program with reductions."""
    work = _reduced(request)
    norm = group.norm(work)
    if norm is not None and group.pays(norm):
        return group.plan(norm)
    # Small tensors are cached: strided reads are cheap, and no block exchanges partial sums.
    most = costs.column(request.arch).few_columns
    few = launch_plan.is_small(math.prod(work.full), request.arch) and math.prod(work.extents(work.axes)) <= most
    return column.plan(work) if _across(work) and not few else row.plan(work)


def of_block(request: PlanRequest[RowVariant], kept: int, threads: int, at_once: int) -> row.RowsOfBlock:
    """Return the rows of a program as a part of another kernel, each block of which computes all of them."""
    work = _reduced(request)
    if _across(work):
        raise UnsupportedError("a reduction across rows before a product")
    return row.of_block(work, kept, threads, at_once)


def _reduced(request: PlanRequest[RowVariant]) -> Reduced:
    """Return the program in the common index space of its operands."""
    flat = unify_axes.broadcast_program(request.program, request.input_shapes)
    operands = access.operands(flat.program, flat.input_shapes)
    axes = axes_of(flat, broadcast(*(o.shape for o in operands)))
    one = all(axes.full[d] == 1 for d in axes.reduced)
    lookups = {f"in{i}": lookup for i, lookup in flat.lookups.items()}
    program = alone(flat.program) if one else flat.program
    return Reduced(request, program, operands, axes.full, tuple(sorted(axes.reduced)), lookups, flat.orders)


def _across(work: Reduced) -> bool:
    """Return whether adjacent elements are results, rather than reduced: the innermost axis decides."""
    wide = [d for d, n in enumerate(work.full) if n != 1]
    return bool(wide) and wide[-1] not in work.axes


def axes_of(flat: BroadcastProgram, full: Shape) -> ReductionAxes:
    """Return the axes of the reductions of a program without views; raises `UnsupportedError` if they differ."""
    shapes = flat.program.shapes(flat.input_shapes)
    reductions: dict[frozenset[int], frozenset[int]] = {}
    for index in flat.program.reductions():
        reduce = flat.program.values[index]
        assert isinstance(reduce, Reduce)
        shape = shapes[reduce.arg]
        axes = reduced_axes(reduce, len(shape))
        leading = len(full) - len(shape)
        other = next((a for a in sorted(axes) if shape[a] != full[a + leading]), None)
        if other is not None:
            raise UnsupportedError(
                f"a reduction over axes {sorted(axes)} of shape {shape} in an op with rows of "
                f"{tuple(full[a + leading] for a in sorted(axes))}"
            )
        placed = frozenset(a + leading for a in axes)
        # Axes of extent 1 make no difference.
        reductions.setdefault(frozenset(a for a in placed if full[a] != 1), placed)
    if len(reductions) != 1:
        sets = " and ".join(sorted(str(sorted(s)) for s in reductions.values()))
        raise UnsupportedError(f"reductions over axes {sets} of {full} in one op")
    return ReductionAxes(full, *reductions.values())
