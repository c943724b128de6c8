"""Operators that only move elements: views, permutations, slices, scatters, tables."""

from onnxfuse.ops.registry import Operator, Trait

Identity = Operator("Identity", Trait.KEEPS_SHAPE, Trait.VIEW)

Reshape = Operator("Reshape", Trait.VIEW, Trait.RESHAPE)
Flatten = Operator("Flatten", Trait.VIEW, Trait.RESHAPE)
Squeeze = Operator("Squeeze", Trait.VIEW, Trait.RESHAPE)
Unsqueeze = Operator("Unsqueeze", Trait.VIEW, Trait.RESHAPE)

Trilu = Operator("Trilu", Trait.KEEPS_SHAPE)
ReverseSequence = Operator("ReverseSequence", Trait.KEEPS_SHAPE)
Scatter = Operator("Scatter", Trait.KEEPS_SHAPE)
ScatterElements = Operator("ScatterElements", Trait.KEEPS_SHAPE)
ScatterND = Operator("ScatterND", Trait.KEEPS_SHAPE)
TensorScatter = Operator("TensorScatter", Trait.KEEPS_SHAPE)

Transpose = Operator("Transpose")
Concat = Operator("Concat")
Split = Operator("Split")
Slice = Operator("Slice")
Expand = Operator("Expand")
Tile = Operator("Tile")
Pad = Operator("Pad")
Gather = Operator("Gather")
GatherElements = Operator("GatherElements")
GatherND = Operator("GatherND")
DepthToSpace = Operator("DepthToSpace")
SpaceToDepth = Operator("SpaceToDepth")
CenterCropPad = Operator("CenterCropPad")
Compress = Operator("Compress")
OneHot = Operator("OneHot")
