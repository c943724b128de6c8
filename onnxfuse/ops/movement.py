"""Operators that only move elements: views, permutations, slices, scatters, tables."""

from onnxfuse.ops.families import moving, pointwise
from onnxfuse.ops.inputs import (
    CONDITION,
    DATA,
    HOST_DATA,
    Axes,
    BroadcastShape,
    Count,
    DepthIndex,
    Extents,
    Index,
    IndexTuples,
    Length,
    Offset,
    Padding,
    Parts,
    Start,
    TargetShape,
    data,
)
from onnxfuse.ops.registry import Trait

__all__ = [
    "CenterCropPad", "Compress", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND",
    "Identity", "OneHot", "Pad", "Reshape", "ReverseSequence", "Scatter", "ScatterElements", "ScatterND", "Slice",
    "SpaceToDepth", "Split", "Squeeze", "TensorScatter", "Tile", "Transpose", "Trilu", "Unsqueeze",
]  # fmt: skip

Identity = pointwise("Identity", lambda node: node.term(0), Trait.VIEW, Trait.FOLDABLE, flops=0, inputs=data("input"))

Reshape = moving(
    "Reshape",
    Trait.RESHAPE,
    Trait.FOLDABLE,
    Trait.SHAPES_ON_CUDA,
    inputs={"data": DATA, "shape": TargetShape("data")},
    moved={"shape": 5},
)
Flatten = moving("Flatten", Trait.RESHAPE, Trait.FOLDABLE, Trait.SHAPES_ON_CUDA, inputs=data("input"))
Squeeze = moving(
    "Squeeze",
    Trait.UNIT_AXES,
    Trait.FOLDABLE,
    Trait.SHAPES_ON_CUDA,
    inputs={"data": DATA, "axes": Axes("data", single=True)},
    moved={"axes": 13},
)
Unsqueeze = moving(
    "Unsqueeze",
    Trait.UNIT_AXES,
    Trait.FOLDABLE,
    Trait.SHAPES_ON_CUDA,
    inputs={"data": DATA, "axes": Axes("data", inserted=True)},
    moved={"axes": 13},
)

Trilu = moving(
    "Trilu",
    Trait.KEEPS_SHAPE,
    Trait.FOLDABLE,
    Trait.CARRIES_SOME,
    Trait.SHAPES_ON_CUDA,
    inputs={"input": DATA, "k": Offset(-2, 2)},
)
ReverseSequence = moving(
    "ReverseSequence",
    Trait.KEEPS_SHAPE,
    Trait.KEEPS_ELEMENTS,
    inputs={"input": DATA, "sequence_lens": Length("input", ("time_axis", 0))},
)
Scatter = moving(
    "Scatter",
    Trait.KEEPS_SHAPE,
    Trait.CARRIES,
    inputs={"data": DATA, "indices": Index("data", ("axis", 0)), "updates": DATA},
)
ScatterElements = moving(
    "ScatterElements",
    Trait.KEEPS_SHAPE,
    Trait.FOLDABLE,
    Trait.CARRIES_SOME,
    Trait.SHAPES_ON_CUDA,
    inputs={"data": DATA, "indices": Index("data", ("axis", 0)), "updates": DATA},
)
ScatterND = moving(
    "ScatterND",
    Trait.KEEPS_SHAPE,
    Trait.FOLDABLE,
    Trait.CARRIES_SOME,
    Trait.SHAPES_ON_CUDA,
    inputs={"data": DATA, "indices": IndexTuples("data"), "updates": DATA},
)
TensorScatter = moving(
    "TensorScatter",
    Trait.KEEPS_SHAPE,
    Trait.CARRIES,
    inputs={
        "past_cache": DATA,
        "update": DATA,
        "write_indices": Start("past_cache", ("axis", -2), "update", ("axis", -2)),
    },
)

Transpose = moving("Transpose", Trait.FOLDABLE, Trait.KEEPS_ELEMENTS, Trait.SHAPES_ON_CUDA, inputs=data("data"))
Concat = moving(
    "Concat",
    Trait.NAMES_AXES,
    Trait.FOLDABLE,
    Trait.CARRIES,
    Trait.IDENTITY_OF_ONE,
    Trait.SHAPES_ON_CUDA,
    inputs=data("inputs"),
)
Split = moving(
    "Split",
    Trait.NAMES_AXES,
    Trait.SELECTS,
    Trait.CARRIES,
    Trait.SHAPES_ON_CUDA,
    inputs={"input": DATA, "split": Parts("input", ("axis", 0))},
    moved={"split": 13},
)
Slice = moving(
    "Slice",
    Trait.NAMES_AXES,
    Trait.SELECTS,
    Trait.FOLDABLE,
    Trait.CARRIES,
    Trait.SHAPES_ON_CUDA,
    inputs={
        "data": DATA,
        "starts": Offset(0, 1),
        "ends": Offset(2, 8),
        "axes": Axes("data"),
        "steps": Offset(1, 2),
    },
    moved={"starts": 10, "ends": 10, "axes": 10},
)
Expand = moving(
    "Expand",
    Trait.FOLDABLE,
    Trait.KEEPS_ELEMENTS,
    Trait.SHAPES_ON_CUDA,
    inputs={"input": DATA, "shape": BroadcastShape("input")},
)
Tile = moving(
    "Tile", Trait.FOLDABLE, Trait.KEEPS_ELEMENTS, Trait.SHAPES_ON_CUDA, inputs={"input": DATA, "repeats": Count(1, 3)}
)
Pad = moving(
    "Pad",
    Trait.NAMES_AXES,
    Trait.CARRIES_SOME,
    Trait.FLOATS_ON_CUDA,
    inputs={"data": DATA, "pads": Padding(), "constant_value": HOST_DATA, "axes": Axes("data")},
    moved={"pads": 11},
)
Gather = moving(
    "Gather",
    Trait.SELECTS,
    Trait.FOLDABLE,
    Trait.CARRIES,
    Trait.SHAPES_ON_CUDA,
    inputs={"data": DATA, "indices": Index("data", ("axis", 0))},
)
GatherElements = moving(
    "GatherElements",
    Trait.SELECTS,
    Trait.CARRIES,
    Trait.SHAPES_ON_CUDA,
    inputs={"data": DATA, "indices": Index("data", ("axis", 0))},
)
GatherND = moving(
    "GatherND",
    Trait.SELECTS,
    Trait.CARRIES,
    Trait.SHAPES_ON_CUDA,
    inputs={"data": DATA, "indices": IndexTuples("data", ("batch_dims", 0))},
)
DepthToSpace = moving("DepthToSpace", Trait.KEEPS_ELEMENTS, Trait.IMAGES, inputs=data("input"))
SpaceToDepth = moving("SpaceToDepth", Trait.KEEPS_ELEMENTS, Trait.IMAGES, inputs=data("input"))
CenterCropPad = moving("CenterCropPad", Trait.CARRIES_SOME, inputs={"input_data": DATA, "shape": Extents()})
Compress = moving("Compress", Trait.CARRIES, Trait.SIZE_FROM_DATA, inputs={"input": DATA, "condition": CONDITION})
OneHot = moving(
    "OneHot",
    Trait.SHAPES_ON_CUDA,
    inputs={"indices": DepthIndex("depth"), "depth": Count(), "values": HOST_DATA},
)
