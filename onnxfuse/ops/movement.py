"""Operators that only move elements: views, permutations, slices, scatters, tables."""

from typing import Any

import numpy as np

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
    IndexTuples,
    Indices,
    Length,
    Offset,
    Padding,
    Parts,
    StartIndex,
    TargetShape,
    data,
)
from onnxfuse.ops.registry import Trait
from onnxfuse.ops.shapes import alike, moved
from onnxfuse.ops.shapes.extents import UnknownError, axis_of, different_axes, is_symbolic, unknown
from onnxfuse.ops.shapes.node import Dims, Elements, ShapeNode, plain


def _reshaped(node: ShapeNode) -> list[Dims]:
    target, copies = node.integers("shape"), not node.attribute("allowzero", 0)
    if node.shapes[0] is None:
        return [tuple(n if n not in (-1, 0) else unknown() for n in target)]
    return [moved.reshaped(node.shape(0), target, copies)]


def _concatenated(node: ShapeNode) -> list[Dims]:
    """The axis is unknown if a part of unknown rank is in it."""
    parts, axis = [s for s in node.shapes if s is not None], node.attribute("axis", 0)
    if not parts:
        raise UnknownError("no shape of any part")
    whole = moved.concatenated(parts, axis)
    return [whole if len(parts) == len(node.shapes) else moved.gathered(whole, (unknown(),), axis)]


def _split(node: ShapeNode) -> list[Dims]:
    of, parts = node.shape(0), node.outputs
    axis = axis_of(node.attribute("axis", 0), len(of))
    sizes = node.integers("split") if node.has("split") else ()
    return [(*of[:axis], n, *of[axis + 1 :]) for n in moved.split(sizes, parts, of[axis])]


def _cuts(node: ShapeNode, rank: int) -> list[tuple[int, Any, Any, int]]:
    """Return the axis, start, end and step of each cut of a Slice."""
    axes = node.axes("axes") if node.has("axes") else range(len(node.integers("starts")))
    steps = node.axes("steps") if node.has("steps") else (1,) * len(axes)
    starts, ends = (node.integers(name, len(axes)) for name in ("starts", "ends"))
    return [*zip(different_axes(axes, rank, "Slice"), starts, ends, steps, strict=True)]


def _sliced(node: ShapeNode) -> list[Dims]:
    extents = [*node.shape(0)]
    for axis, start, end, step in _cuts(node, len(extents)):
        extents[axis] = moved.sliced(start, end, step, extents[axis])[1]
    return [tuple(extents)]


def _slice(node: ShapeNode) -> Elements:
    elements = node.elements(0)
    cut = [slice(None)] * elements.ndim
    for axis, start, end, step in _cuts(node, elements.ndim):
        if is_symbolic(start, end):
            raise UnknownError("which elements a Slice takes")
        cut[axis] = slice(start, end, step)
    return elements[tuple(cut)]


def _padded(node: ShapeNode) -> list[Dims]:
    of = node.shape(0)
    pads = node.attribute("paddings") or node.integers("pads")
    axes = different_axes(node.axes("axes"), len(of), "Pad") if node.has("axes") else None
    return [moved.padded(of, pads[: len(pads) // 2], pads[len(pads) // 2 :], axes)]


def _hot(node: ShapeNode) -> list[Dims]:
    of, (depth,) = node.shape(0), node.integers("depth", 1)
    axis = axis_of(node.attribute("axis", -1), len(of) + 1)
    return [(*of[:axis], depth, *of[axis:])]


def _one_hot(node: ShapeNode) -> Elements:
    """Repeats of torch's repeat_interleave: 1 except for one axis."""
    places, (depth,), (off, on) = node.axes("indices"), node.axes("depth"), node.elements(2)
    spread = np.full((len(places), depth), off, object)
    for row, place in zip(spread, places, strict=True):
        if -depth <= place < depth:
            row[place] = on
    return np.moveaxis(spread.reshape(*node.elements(0).shape, depth), -1, node.attribute("axis", -1))


__all__ = [
    "CenterCropPad", "Compress", "Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND",
    "Identity", "OneHot", "Pad", "Reshape", "ReverseSequence", "Scatter", "ScatterElements", "ScatterND", "Slice",
    "SpaceToDepth", "Split", "Squeeze", "TensorScatter", "Tile", "Transpose", "Trilu", "Unsqueeze",
]  # fmt: skip

Identity = pointwise(
    "Identity", lambda node: node.term(0), Trait.VIEW, Trait.EXPANDS, Trait.FOLDABLE, flops=0, inputs=data("input")
)

Reshape = moving(
    "Reshape",
    Trait.RESHAPE,
    Trait.FOLDABLE,
    Trait.SHAPES_ON_CUDA,
    inputs={"data": DATA, "shape": TargetShape("data")},
    moved={"shape": 5},
    shape=_reshaped,
)
Flatten = moving(
    "Flatten",
    Trait.RESHAPE,
    Trait.FOLDABLE,
    Trait.SHAPES_ON_CUDA,
    inputs=data("input"),
    shape=lambda node: [moved.flattened(node.shape(0), node.attribute("axis", 1))],
)
Squeeze = moving(
    "Squeeze",
    Trait.UNIT_AXES,
    Trait.FOLDABLE,
    Trait.SHAPES_ON_CUDA,
    inputs={"data": DATA, "axes": Axes("data", single=True)},
    moved={"axes": 13},
    shape=lambda node: [moved.squeezed(node.shape(0), node.axes("axes") if node.has("axes") else None)],
)
Unsqueeze = moving(
    "Unsqueeze",
    Trait.UNIT_AXES,
    Trait.FOLDABLE,
    Trait.SHAPES_ON_CUDA,
    inputs={"data": DATA, "axes": Axes("data", inserted=True)},
    moved={"axes": 13},
    shape=lambda node: [moved.unsqueezed(node.shape(0), node.axes("axes"))],
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
    inputs={"data": DATA, "indices": Indices("data", ("axis", 0)), "updates": DATA},
)
ScatterElements = moving(
    "ScatterElements",
    Trait.KEEPS_SHAPE,
    Trait.FOLDABLE,
    Trait.CARRIES_SOME,
    Trait.SHAPES_ON_CUDA,
    inputs={"data": DATA, "indices": Indices("data", ("axis", 0)), "updates": DATA},
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
        "write_indices": StartIndex("past_cache", ("axis", -2), "update", ("axis", -2)),
    },
)

Transpose = moving(
    "Transpose",
    Trait.FOLDABLE,
    Trait.KEEPS_ELEMENTS,
    Trait.SHAPES_ON_CUDA,
    inputs=data("data"),
    shape=lambda node: [moved.transposed(node.shape(0), node.attribute("perm"))],
    value=lambda node: np.transpose(node.elements(0), node.attribute("perm")),
)
Concat = moving(
    "Concat",
    Trait.NAMES_AXES,
    Trait.FOLDABLE,
    Trait.CARRIES,
    Trait.IDENTITY_OF_ONE,
    Trait.SHAPES_ON_CUDA,
    inputs=data("inputs"),
    shape=_concatenated,
    value=lambda node: np.concatenate([*map(node.elements, range(len(node.shapes)))], node.attribute("axis", 0)),
)
Split = moving(
    "Split",
    Trait.NAMES_AXES,
    Trait.SELECTS,
    Trait.FOLDABLE,
    Trait.CARRIES,
    Trait.SHAPES_ON_CUDA,
    inputs={"input": DATA, "split": Parts("input", ("axis", 0))},
    moved={"split": 13},
    shape=_split,
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
    shape=_sliced,
    value=_slice,
    alike=alike.sliced,
)
Expand = moving(
    "Expand",
    Trait.FOLDABLE,
    Trait.EXPANDS,
    Trait.SHAPES_ON_CUDA,
    inputs={"input": DATA, "shape": BroadcastShape("input")},
    shape=lambda node: [moved.expanded(node.shape(0), node.integers("shape"))],
)
Tile = moving(
    "Tile",
    Trait.FOLDABLE,
    Trait.KEEPS_ELEMENTS,
    Trait.SHAPES_ON_CUDA,
    inputs={"input": DATA, "repeats": Count(1, 3)},
    shape=lambda node: [moved.repeated(node.shape(0), node.integers("repeats"), "Tile")],
)
Pad = moving(
    "Pad",
    Trait.NAMES_AXES,
    Trait.CARRIES_SOME,
    Trait.FLOATS_ON_CUDA,
    inputs={"data": DATA, "pads": Padding(), "constant_value": HOST_DATA, "axes": Axes("data")},
    moved={"pads": 11},
    shape=_padded,
)
Gather = moving(
    "Gather",
    Trait.SELECTS,
    Trait.FOLDABLE,
    Trait.CARRIES,
    Trait.SHAPES_ON_CUDA,
    inputs={"data": DATA, "indices": Indices("data", ("axis", 0))},
    shape=lambda node: [moved.gathered(node.shape(0), node.shape(1), node.attribute("axis", 0))],
    value=lambda node: np.take(node.elements(0), plain(node.elements(1)), node.attribute("axis", 0)),
)
GatherElements = moving(
    "GatherElements",
    Trait.SELECTS,
    Trait.CARRIES,
    Trait.SHAPES_ON_CUDA,
    inputs={"data": DATA, "indices": Indices("data", ("axis", 0))},
    shape=lambda node: [node.shape(1)],
)
GatherND = moving(
    "GatherND",
    Trait.SELECTS,
    Trait.CARRIES,
    Trait.SHAPES_ON_CUDA,
    inputs={"data": DATA, "indices": IndexTuples("data", ("batch_dims", 0))},
)
DepthToSpace = moving(
    "DepthToSpace",
    Trait.KEEPS_ELEMENTS,
    Trait.IMAGES,
    inputs=data("input"),
    shape=lambda node: [moved.depth_to_space(node.shape(0), node.attribute("blocksize"))],
)
SpaceToDepth = moving(
    "SpaceToDepth",
    Trait.KEEPS_ELEMENTS,
    Trait.IMAGES,
    inputs=data("input"),
    shape=lambda node: [moved.space_to_depth(node.shape(0), node.attribute("blocksize"))],
)
CenterCropPad = moving("CenterCropPad", Trait.CARRIES_SOME, inputs={"input_data": DATA, "shape": Extents()})
Compress = moving("Compress", Trait.CARRIES, Trait.SIZE_FROM_DATA, inputs={"input": DATA, "condition": CONDITION})
OneHot = moving(
    "OneHot",
    Trait.SHAPES_ON_CUDA,
    inputs={"indices": DepthIndex("depth"), "depth": Count(), "values": HOST_DATA},
    shape=_hot,
    value=_one_hot,
)
