"""Operators that only move elements: views, permutations, slices, scatters, tables."""

from onnxfuse.ops.inputs import (
    CONDITION,
    DATA,
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
from onnxfuse.ops.registry import Operator, Trait

Identity = Operator("Identity", Trait.KEEPS_SHAPE, Trait.VIEW, inputs=data("input"))

Reshape = Operator(
    "Reshape", Trait.RESHAPE, Trait.SHAPES_ON_CUDA,
    inputs={"data": DATA, "shape": TargetShape("data")}, moved={"shape": 5},
)  # fmt: skip
Flatten = Operator("Flatten", Trait.RESHAPE, Trait.SHAPES_ON_CUDA, inputs=data("input"))
Squeeze = Operator(
    "Squeeze",
    Trait.RESHAPE,
    Trait.SHAPES_ON_CUDA,
    inputs={"data": DATA, "axes": Axes("data", single=True)},
    moved={"axes": 13},
)
Unsqueeze = Operator(
    "Unsqueeze",
    Trait.RESHAPE,
    Trait.SHAPES_ON_CUDA,
    inputs={"data": DATA, "axes": Axes("data", inserted=True)},
    moved={"axes": 13},
)

Trilu = Operator("Trilu", Trait.KEEPS_SHAPE, Trait.CARRIES_SOME, inputs={"input": DATA, "k": Offset(-2, 2)})
ReverseSequence = Operator(
    "ReverseSequence", Trait.KEEPS_SHAPE, Trait.KEEPS_ELEMENTS,
    inputs={"input": DATA, "sequence_lens": Length("input", ("time_axis", 0))},
)  # fmt: skip
Scatter = Operator(
    "Scatter", Trait.KEEPS_SHAPE, Trait.CARRIES,
    inputs={"data": DATA, "indices": Index("data", ("axis", 0)), "updates": DATA},
)  # fmt: skip
ScatterElements = Operator(
    "ScatterElements", Trait.KEEPS_SHAPE, Trait.CARRIES_SOME, Trait.SHAPES_ON_CUDA,
    inputs={"data": DATA, "indices": Index("data", ("axis", 0)), "updates": DATA},
)  # fmt: skip
ScatterND = Operator(
    "ScatterND", Trait.KEEPS_SHAPE, Trait.CARRIES_SOME, Trait.SHAPES_ON_CUDA,
    inputs={"data": DATA, "indices": IndexTuples("data"), "updates": DATA},
)  # fmt: skip
TensorScatter = Operator(
    "TensorScatter", Trait.KEEPS_SHAPE, Trait.CARRIES,
    inputs={
        "past_cache": DATA, "update": DATA,
        "write_indices": Start("past_cache", ("axis", -2), "update", ("axis", -2)),
    },
)  # fmt: skip

Transpose = Operator("Transpose", Trait.KEEPS_ELEMENTS, Trait.SHAPES_ON_CUDA, inputs=data("data"))
Concat = Operator("Concat", Trait.CARRIES, Trait.IDENTITY_OF_ONE, Trait.SHAPES_ON_CUDA, inputs=data("inputs"))
Split = Operator(
    "Split",
    Trait.CARRIES,
    Trait.SHAPES_ON_CUDA,
    inputs={"input": DATA, "split": Parts("input", ("axis", 0))},
    moved={"split": 13},
)
Slice = Operator(
    "Slice", Trait.CARRIES, Trait.SHAPES_ON_CUDA,
    inputs={
        "data": DATA, "starts": Offset(0, 1), "ends": Offset(2, 8), "axes": Axes("data"), "steps": Offset(1, 2),
    }, moved={"starts": 10, "ends": 10, "axes": 10},
)  # fmt: skip
Expand = Operator(
    "Expand", Trait.KEEPS_ELEMENTS, Trait.SHAPES_ON_CUDA, inputs={"input": DATA, "shape": BroadcastShape("input")}
)
Tile = Operator("Tile", Trait.KEEPS_ELEMENTS, Trait.SHAPES_ON_CUDA, inputs={"input": DATA, "repeats": Count(1, 3)})
Pad = Operator(
    "Pad",
    Trait.CARRIES_SOME,
    inputs={"data": DATA, "pads": Padding(), "constant_value": DATA, "axes": Axes("data")},
    moved={"pads": 11},
)
Gather = Operator(
    "Gather", Trait.CARRIES, Trait.SHAPES_ON_CUDA, inputs={"data": DATA, "indices": Index("data", ("axis", 0))}
)
GatherElements = Operator(
    "GatherElements", Trait.CARRIES, Trait.SHAPES_ON_CUDA,
    inputs={"data": DATA, "indices": Index("data", ("axis", 0))},
)  # fmt: skip
GatherND = Operator(
    "GatherND", Trait.CARRIES, Trait.SHAPES_ON_CUDA,
    inputs={"data": DATA, "indices": IndexTuples("data", ("batch_dims", 0))},
)  # fmt: skip
DepthToSpace = Operator("DepthToSpace", Trait.KEEPS_ELEMENTS, inputs=data("input"))
SpaceToDepth = Operator("SpaceToDepth", Trait.KEEPS_ELEMENTS, inputs=data("input"))
CenterCropPad = Operator("CenterCropPad", Trait.CARRIES_SOME, inputs={"input_data": DATA, "shape": Extents()})
Compress = Operator("Compress", Trait.CARRIES, Trait.SIZE_FROM_DATA, inputs={"input": DATA, "condition": CONDITION})
OneHot = Operator("OneHot", inputs={"indices": DepthIndex("depth"), "depth": Count(), "values": DATA})
