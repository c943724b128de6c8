"""Declaration of the cached_attention template."""

from onnxfuse.cuda.planning.template import Planner, Template
from onnxfuse.cuda.templates.cached_attention.body import parse_op
from onnxfuse.cuda.templates.cached_attention.plan import fits, general, microseconds, output_shapes, plan, refuses

TEMPLATES = (
    Template(
        "cached_attention", 21, "attention of new tokens behind a KV cache, which they join: GroupQueryAttention",
        Planner(parse_op, output_shapes, plan, refuses, fits, general=general, microseconds=microseconds),
        rounds_to_tf32=True,
    ),
)  # fmt: skip
