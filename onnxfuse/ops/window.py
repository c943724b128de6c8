"""Sliding windows and sampling of images."""

from onnxfuse.ops.registry import Entries, Trait, entries

ENTRIES: Entries = (
    *entries(
        "MaxPool AveragePool LpPool GlobalAveragePool GlobalMaxPool GlobalLpPool MaxUnpool Resize Upsample Col2Im",
    ),
    *entries(
        "MaxRoiPool RoiAlign GridSample AffineGrid ImageDecoder",
        Trait.OPAQUE,
    ),
)
