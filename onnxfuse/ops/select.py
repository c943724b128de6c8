"""Operators whose output has as many elements as the data say."""

from onnxfuse.ops.registry import Entries, entries

ENTRIES: Entries = (
    *entries(
        "TopK NonZero NonMaxSuppression Unique",
    ),
)
