"""Declaration of ops with data movement that share a launch."""

from onnxfuse.cuda.planning.template import Growth, Planner, Template
from onnxfuse.cuda.templates.parallel.plan import output_shapes, parse, plan

TEMPLATES = (
    Template(
        "parallel", 88, 'two ops of `"pointwise"` that move data and share an input, of any two shapes',
        Planner(parse, output_shapes, plan),
        growth=frozenset({Growth.SHARED_INPUT}), joins="pointwise", of="pointwise",
    ),
)  # fmt: skip
