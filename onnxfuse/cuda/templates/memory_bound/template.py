"""Declarations of the memory-bound templates: elementwise work, data movement, and reductions."""

from onnxfuse.cuda.planning.template import Growth, Planner, Template
from onnxfuse.cuda.templates.memory_bound.schedule import (
    candidates,
    inplace,
    microseconds,
    output_shapes,
    plan,
    program,
)  # fmt: skip
from onnxfuse.cuda.templates.pointwise.variant import PointwiseVariant
from onnxfuse.cuda.templates.reduction.variant import RowVariant

PLANNER = Planner(
    program, output_shapes, plan, inplace=inplace, candidates=candidates, microseconds=microseconds,
    variants=(PointwiseVariant, RowVariant),
)  # fmt: skip

TEMPLATES = (
    Template(
        "pointwise", 70, "elementwise work and data movement", PLANNER,
        growth=frozenset({
            Growth.PROLOGUE, Growth.EPILOGUE, Growth.MOVEMENT, Growth.TWINS, Growth.BROADCAST_INPUT,
            Growth.LIBRARY_ANCHOR,
        }),
    ),
    Template(
        "row", 30, "reductions over any axes", PLANNER,
        growth=frozenset({
            Growth.PROLOGUE, Growth.EPILOGUE, Growth.WHOLE_INPUT, Growth.REDUCTIONS, Growth.TRANSPOSED_INPUT,
            Growth.TRANSPOSED_OUTPUT,
        }),
        looks_up_rows=True, moves_runs=True, leaves_extremes=True,
    ),
)  # fmt: skip
