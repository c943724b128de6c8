"""Recurrent layers."""

from onnxfuse.ops.registry import Operator

RNN = Operator("RNN")
GRU = Operator("GRU")
LSTM = Operator("LSTM")
