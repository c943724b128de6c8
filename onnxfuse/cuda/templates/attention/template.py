"""Declaration of the attention template."""

from onnxfuse.cuda.planning.template import Growth, Planner, Template
from onnxfuse.cuda.templates.attention.body import parse_op
from onnxfuse.cuda.templates.attention.plan import candidates, fits, microseconds, output_shapes, plan, refuses
from onnxfuse.cuda.templates.attention.variant import AttentionVariant

TEMPLATES = (
    Template(
        "attention", 20, "what `realize` writes as one MultiHeadAttention, and attention of 8-bit integers",
        Planner(
            parse_op, output_shapes, plan, refuses, fits, candidates=candidates, microseconds=microseconds,
            integers=lambda op: parse_op(op).integers is not None, variants=(AttentionVariant,),
        ),
        growth=frozenset({Growth.CACHES}), reads_library_form=True, rounds_to_tf32=True, leaves_extremes=True,
    ),
)  # fmt: skip
