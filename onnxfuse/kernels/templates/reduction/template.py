"""The template of reductions: planned as one program with what is pointwise around them."""

from onnxfuse.kernels.templates.pointwise.schedule import candidates, inplace, output_shapes, plan, program
from onnxfuse.kernels.templates.template import Growth, Planner, Template

TEMPLATES = (
    Template(
        "row", 30, "reductions over any axes",
        Planner(program, output_shapes, plan, inplace=inplace, candidates=candidates),
        growth=frozenset({
            Growth.PROLOGUE, Growth.EPILOGUE, Growth.WHOLE_INPUT, Growth.REDUCTIONS, Growth.TRANSPOSED_INPUT,
            Growth.TRANSPOSED_OUTPUT,
        }),
        looks_up_rows=True, moves_runs=True,
    ),
)  # fmt: skip
