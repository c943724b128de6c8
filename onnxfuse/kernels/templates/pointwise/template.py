"""The template of elementwise work and data movement."""

from onnxfuse.kernels.templates.pointwise.schedule import candidates, inplace, output_shapes, plan, program
from onnxfuse.kernels.templates.template import Growth, Planner, Template

TEMPLATES = (
    Template(
        "pointwise", 70, "elementwise work and data movement",
        Planner(program, output_shapes, plan, inplace=inplace, candidates=candidates),
        growth=frozenset({
            Growth.PROLOGUE, Growth.EPILOGUE, Growth.MOVEMENT, Growth.TWINS, Growth.BROADCAST_INPUT,
            Growth.LIBRARY_ANCHOR,
        }),
    ),
)  # fmt: skip
