"""The template of recurrent layers."""

from onnxfuse.kernels.templates.recurrent.body import take_apart
from onnxfuse.kernels.templates.recurrent.plan import general, output_shapes, plan, refuses
from onnxfuse.kernels.templates.template import Planner, Template

TEMPLATES = (
    Template(
        "recurrent", 37, "a layer of an LSTM, a GRU or an RNN",
        Planner(take_apart, output_shapes, plan, refuses, general=general),
    ),
)  # fmt: skip
