"""Declaration of rows and the products that read them."""

from onnxfuse.cuda.planning.template import Growth, Planner, Template
from onnxfuse.cuda.templates.gemm.variant import GemmVariant
from onnxfuse.cuda.templates.row_product.plan import candidates, output_shapes, parse, plan, refuses

TEMPLATES = (
    Template(
        "row_product", 86, 'an op of `"row"`, and one of `"gemm"` whose left factor it computes',
        Planner(parse, output_shapes, plan, refuses, candidates=candidates, variants=(GemmVariant,)),
        growth=frozenset({Growth.PRODUCER}), joins="gemm", of="row",
    ),
)  # fmt: skip
