"""Operators that only move elements: views, permutations, slices, scatters, tables."""

from onnxfuse.ops.families import moving, pointwise
from onnxfuse.ops.registry import Trait

Identity = pointwise("Identity", lambda node: node.term(0), Trait.VIEW, Trait.FOLDABLE, flops=0)

Reshape = moving("Reshape", Trait.VIEW, Trait.RESHAPE, Trait.FOLDABLE)
Flatten = moving("Flatten", Trait.VIEW, Trait.RESHAPE, Trait.FOLDABLE)
Squeeze = moving("Squeeze", Trait.VIEW, Trait.RESHAPE, Trait.FOLDABLE)
Unsqueeze = moving("Unsqueeze", Trait.VIEW, Trait.RESHAPE, Trait.FOLDABLE)

Trilu = moving("Trilu", Trait.KEEPS_SHAPE, Trait.FOLDABLE)
ReverseSequence = moving("ReverseSequence", Trait.KEEPS_SHAPE)
Scatter = moving("Scatter", Trait.KEEPS_SHAPE)
ScatterElements = moving("ScatterElements", Trait.KEEPS_SHAPE, Trait.FOLDABLE)
ScatterND = moving("ScatterND", Trait.KEEPS_SHAPE, Trait.FOLDABLE)
TensorScatter = moving("TensorScatter", Trait.KEEPS_SHAPE)

Transpose = moving("Transpose", Trait.FOLDABLE)
Concat = moving("Concat", Trait.FOLDABLE)
Split = moving("Split", Trait.SELECTS)
Slice = moving("Slice", Trait.SELECTS, Trait.FOLDABLE)
Expand = moving("Expand", Trait.FOLDABLE)
Tile = moving("Tile", Trait.FOLDABLE)
Pad = moving("Pad")
Gather = moving("Gather", Trait.SELECTS, Trait.FOLDABLE)
GatherElements = moving("GatherElements", Trait.SELECTS)
GatherND = moving("GatherND", Trait.SELECTS)
DepthToSpace = moving("DepthToSpace")
SpaceToDepth = moving("SpaceToDepth")
CenterCropPad = moving("CenterCropPad")
Compress = moving("Compress")
OneHot = moving("OneHot")
