"""Declaration of the scan template."""

from onnxfuse.cuda.planning.template import Growth, Planner, Template
from onnxfuse.cuda.templates.scan.plan import check, inplace, output_shapes, plan, running
from onnxfuse.cuda.templates.scan.variant import ScanVariant

TEMPLATES = (
    Template(
        "scan", 35, "running sums along an axis",
        Planner(check, output_shapes, plan, inplace=inplace, running=running, variants=(ScanVariant,)),
        growth=frozenset({Growth.PROLOGUE, Growth.EPILOGUE}),
    ),
)  # fmt: skip
