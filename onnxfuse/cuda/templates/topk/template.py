"""Declaration of the topk template."""

from onnxfuse.cuda.planning.template import Growth, Planner, Template
from onnxfuse.cuda.templates.topk.plan import candidates, check, general, output_shapes, plan
from onnxfuse.cuda.templates.topk.variant import TopKVariant

TEMPLATES = (
    Template(
        "topk", 38, "the first few elements of rows by their values",
        Planner(check, output_shapes, plan, candidates=candidates, general=general, variants=(TopKVariant,)),
        growth=frozenset({Growth.WHOLE_INPUT, Growth.PROLOGUE}),
    ),
)  # fmt: skip
