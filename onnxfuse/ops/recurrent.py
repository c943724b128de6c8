"""Recurrent layers."""

from onnxfuse.ops.inputs import Length, data
from onnxfuse.ops.registry import Operator

_INPUTS = data("X", "W", "R", "B") | {"sequence_lens": Length("X", ("layout", 0))} | data("initial_h")


RNN = Operator("RNN", inputs=_INPUTS)
GRU = Operator("GRU", inputs=_INPUTS)
LSTM = Operator("LSTM", inputs=_INPUTS | data("initial_c", "P"))
