"""Declaration of the recurrent template."""

from onnxfuse.cuda.planning.template import Planner, Template
from onnxfuse.cuda.templates.recurrent.plan import check, general, output_shapes, plan, refuses

TEMPLATES = (
    Template(
        "recurrent", 37, "a layer of an LSTM, a GRU or an RNN",
        Planner(check, output_shapes, plan, refuses, general=general),
    ),
)  # fmt: skip
