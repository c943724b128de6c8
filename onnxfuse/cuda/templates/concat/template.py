"""Declaration of the concat template."""

from onnxfuse.cuda.planning.template import Growth, Planner, Template
from onnxfuse.cuda.templates.concat.plan import check, output_shapes, plan, refuses

TEMPLATES = (
    Template(
        "concat", 80, 'what several ops of `"gemm"`, `"depthwise"` and `"direct"` make, side by side in one output',
        Planner(check, output_shapes, plan, refuses),
        growth=frozenset({Growth.CONCAT}), joins_slots=True,
    ),
)  # fmt: skip
