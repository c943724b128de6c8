"""Freeze dynamic dimensions to integers: a model specialized to one batch size, or to all input sizes."""

from collections.abc import Iterator, Mapping, Sequence

import onnx
from onnx import TypeProto

from onnxfuse.graph.concrete_shapes import every_graph
from onnxfuse.support.close_match import did_you_mean
from onnxfuse.support.errors import UsageError
from onnxfuse.support.plurals import plural

Shapes = Mapping[str, Sequence[int]]
"""Integers by dimension name, INPUT[AXIS] for unnamed ones; or shapes by input name."""


def freeze_shapes(model: onnx.ModelProto, shapes: Shapes) -> None:
    """Replace dynamic dimensions by integers wherever `model` uses them. Raises UsageError for unknown names.

    Declarations of interior values that may no longer hold are removed; shape inference recomputes them.
    """
    if not shapes:
        return
    inputs = {value.name: value.type.tensor_type.shape.dim for value in model.graph.input}
    named: dict[str, int] = {}
    for name, sizes in shapes.items():
        if name in inputs:
            for axis, size in enumerate(_fitting(name, sizes, len(inputs[name]))):
                _place(inputs[name][axis], f"{name}[{axis}]", size, named)
        elif name in (known := _dynamic(inputs)):
            if len(sizes) != 1:
                told = ",".join(map(str, sizes))
                raise UsageError(f"--shape {name}={told}: a model is specialized to one size", f"Say {name}=8.")
            for dim in known[name]:
                _place(dim, name, sizes[0], named)
        else:
            there = ", ".join(known) or "none"
            raise UsageError(
                f"--shape {name}: the model has no dynamic dimension and no input of that name."
                f"{did_you_mean(name, [*known, *inputs])}",
                f"Dynamic dimensions: {there}. Inputs: {', '.join(inputs)}.",
            )
    _require_elements(model.graph.output, named)
    for graph in every_graph(model.graph):
        # Declared expressions of a frozen name, such as 2*batch, are removed; inference recomputes them.
        kept = [v for v in graph.value_info if not _open(v.type)]
        del graph.value_info[:]
        graph.value_info.extend(kept)
        for value in (*graph.input, *graph.output):
            for dim in _dims(value.type):
                if dim.dim_param in named:
                    dim.dim_value = named[dim.dim_param]


def _require_elements(outputs: Sequence[onnx.ValueInfoProto], named: Mapping[str, int]) -> None:
    """Raise UsageError for a size of 0 that leaves an output without elements; a cache may be empty."""
    for value in outputs:
        empty = next((dim.dim_param for dim in _dims(value.type) if named.get(dim.dim_param) == 0), None)
        if empty is not None:
            raise UsageError(
                f"--shape {empty}=0: the output '{value.name}' would have no elements", f"Use {empty}=1 or more."
            )


def _dynamic(
    inputs: Mapping[str, Sequence[onnx.TensorShapeProto.Dimension]],
) -> dict[str, list[onnx.TensorShapeProto.Dimension]]:
    """Return the dynamic dimensions by name."""
    found: dict[str, list[onnx.TensorShapeProto.Dimension]] = {}
    for name, dims in inputs.items():
        for axis, dim in enumerate(dims):
            if not dim.HasField("dim_value"):
                found.setdefault(dim.dim_param or f"{name}[{axis}]", []).append(dim)
    return found


def _fitting(name: str, sizes: Sequence[int], rank: int) -> Sequence[int]:
    if len(sizes) != rank:
        told = "x".join(map(str, sizes))
        raise UsageError(
            f"--shape {name}={told}: the input has {plural(rank, 'dimension')}", "Give a number for each of them."
        )
    return sizes


def _place(dim: onnx.TensorShapeProto.Dimension, place: str, size: int, named: dict[str, int]) -> None:
    """Set a dimension to an integer; a name with another value already is a conflict."""
    before = dim.dim_value if dim.HasField("dim_value") else named.get(dim.dim_param, size)
    if before != size:
        raise UsageError(f"--shape: {place} is {before}, not {size}", "Leave it out, or give the same number.")
    if dim.dim_param:
        named[dim.dim_param] = size
    dim.dim_value = size


def _dims(kind: TypeProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    """Yield the dimensions of a type, including those of a sequence's or an optional's elements."""
    which = kind.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        yield from getattr(kind, which).shape.dim
    elif which in ("sequence_type", "optional_type"):
        yield from _dims(getattr(kind, which).elem_type)


def _open(kind: TypeProto) -> bool:
    """Return whether a type has a dynamic dimension."""
    return any(not dim.HasField("dim_value") for dim in _dims(kind))
