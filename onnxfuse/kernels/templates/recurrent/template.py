"""The template of recurrent layers."""

from onnxfuse.kernels.templates.recurrent.plan import check, general, output_shapes, plan, refuses
from onnxfuse.kernels.templates.template import Planner, Template

TEMPLATES = (
    Template(
        "recurrent", 37, "a layer of an LSTM, a GRU or an RNN",
        Planner(check, output_shapes, plan, refuses, general=general),
    ),
)  # fmt: skip
