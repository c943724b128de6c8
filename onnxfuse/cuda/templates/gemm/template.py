"""Declaration of the gemm template: matrix products and implicit GEMM."""

from onnxfuse.cuda.planning.template import Growth, Planner, Template
from onnxfuse.cuda.templates.gemm.body import anatomy
from onnxfuse.cuda.templates.gemm.plan import (
    COLUMNS_BESIDE,
    MOST_BESIDE,
    MOST_TOGETHER,
    candidates,
    estimates,
    plan,
    reads,
    reads_before,
    refuses,
    stand_ins,
)
from onnxfuse.cuda.templates.gemm.problem import output_shapes
from onnxfuse.cuda.templates.gemm.variant import GemmVariant

TEMPLATES = (
    Template(
        "gemm", 40, "matrix products and convolutions on the tensor cores",
        Planner(
            anatomy, output_shapes, plan, refuses, candidates=candidates, stand_ins=stand_ins,
            estimates=estimates, variants=(GemmVariant,),
        ),
        growth=frozenset({
            Growth.EPILOGUE, Growth.SIBLINGS, Growth.LEFT_OPERAND, Growth.TRANSPOSED_OUTPUT, Growth.K_MAJOR_WEIGHTS,
            Growth.PADDED_ROWS, Growth.JOINED_INPUT,
        }),
        reads=reads, reads_before=reads_before, beside=MOST_BESIDE, together=MOST_TOGETHER, writes_slots=True,
        leaves_extremes=True, uneven_columns=COLUMNS_BESIDE,
    ),
)  # fmt: skip
