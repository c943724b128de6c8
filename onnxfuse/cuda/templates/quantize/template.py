"""Declarations of dynamic quantization: of a value that is there, and of one that another fused op computes."""

from onnxfuse.cuda.planning.template import Growth, Planner, Template
from onnxfuse.cuda.templates.attention.variant import AttentionVariant
from onnxfuse.cuda.templates.gemm.variant import GemmVariant
from onnxfuse.cuda.templates.quantize.plan import (
    candidates,
    check,
    check_produced,
    fits,
    output_shapes,
    plan,
    produced_plan,
    produced_shapes,
    refuses,
)
from onnxfuse.cuda.templates.reduction.variant import RowVariant

TEMPLATES = (
    Template(
        "quantize", 5, "dynamic quantization: a value in 8 bits, by its range",
        Planner(check, output_shapes, plan),
    ),
    Template(
        "quantize_output", 85, 'an op of `"row"`, `"gemm"` or `"attention"`, and what it writes in 8 bits by its range',
        Planner(
            check_produced, produced_shapes, produced_plan, refuses, fits, candidates=candidates,
            variants=(RowVariant, GemmVariant, AttentionVariant),
        ),
        growth=frozenset({Growth.PRODUCER}), joins="quantize", reads_library_form=True, rounds_to_tf32=True,
    ),
)  # fmt: skip
