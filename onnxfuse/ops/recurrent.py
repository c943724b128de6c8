"""Recurrent layers."""

from onnxfuse.ops.inputs import Length, data
from onnxfuse.ops.registry import Cell, Operator

__all__ = ["GRU", "LSTM", "RNN"]

_INPUTS = data("X", "W", "R", "B") | {"sequence_lens": Length("X", ("layout", 0))} | data("initial_h")


RNN = Operator("RNN", inputs=_INPUTS, cell=Cell(("Tanh",)))
GRU = Operator("GRU", inputs=_INPUTS, cell=Cell(("Sigmoid", "Tanh"), gates=3))
LSTM = Operator(
    "LSTM", inputs=_INPUTS | data("initial_c", "P"), cell=Cell(("Sigmoid", "Tanh", "Tanh"), gates=4, states=2)
)
