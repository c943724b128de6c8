"""Recurrent layers."""

from onnxfuse.ops.registry import Entries, entries

ENTRIES: Entries = (
    *entries(
        "RNN GRU LSTM",
    ),
)
