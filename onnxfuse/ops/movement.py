"""Operators that only move elements: views, permutations, slices, scatters, tables."""

from onnxfuse.ops.families import moving, pointwise
from onnxfuse.ops.registry import Trait

Identity = pointwise("Identity", lambda node: node.term(0), Trait.VIEW, flops=0)

Reshape = moving("Reshape", Trait.VIEW, Trait.RESHAPE)
Flatten = moving("Flatten", Trait.VIEW, Trait.RESHAPE)
Squeeze = moving("Squeeze", Trait.VIEW, Trait.RESHAPE)
Unsqueeze = moving("Unsqueeze", Trait.VIEW, Trait.RESHAPE)

Trilu = moving("Trilu", Trait.KEEPS_SHAPE)
ReverseSequence = moving("ReverseSequence", Trait.KEEPS_SHAPE)
Scatter = moving("Scatter", Trait.KEEPS_SHAPE)
ScatterElements = moving("ScatterElements", Trait.KEEPS_SHAPE)
ScatterND = moving("ScatterND", Trait.KEEPS_SHAPE)
TensorScatter = moving("TensorScatter", Trait.KEEPS_SHAPE)

Transpose = moving("Transpose")
Concat = moving("Concat")
Split = moving("Split", Trait.SELECTS)
Slice = moving("Slice", Trait.SELECTS)
Expand = moving("Expand")
Tile = moving("Tile")
Pad = moving("Pad")
Gather = moving("Gather", Trait.SELECTS)
GatherElements = moving("GatherElements", Trait.SELECTS)
GatherND = moving("GatherND", Trait.SELECTS)
DepthToSpace = moving("DepthToSpace")
SpaceToDepth = moving("SpaceToDepth")
CenterCropPad = moving("CenterCropPad")
Compress = moving("Compress")
OneHot = moving("OneHot")
