"""Operators that only move elements: views, permutations, slices, scatters, tables."""

from onnxfuse.ops.registry import Entries, Trait, entries

ENTRIES: Entries = (
    *entries(
        "Identity",
        Trait.VIEW,
        Trait.KEEPS_SHAPE,
    ),
    *entries(
        "Reshape Flatten Squeeze Unsqueeze",
        Trait.VIEW,
        Trait.RESHAPE,
    ),
    *entries(
        "Trilu ReverseSequence Scatter ScatterElements ScatterND TensorScatter",
        Trait.KEEPS_SHAPE,
    ),
    *entries(
        "Transpose Concat Split Slice Expand Tile Pad Gather GatherElements GatherND DepthToSpace "
        "SpaceToDepth CenterCropPad Compress OneHot",
    ),
)
