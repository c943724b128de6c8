"""Estimate the cost of each node of a model from shapes alone: bytes, operations, launches. Nothing is run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx

from onnxfuse.measure.profile import traffic
from onnxfuse.measure.profile.traffic import NodeTraffic
from onnxfuse.support.errors import UsageError
from onnxfuse.support.plurals import agreeing, plural

FIRST, OTHERS = 1, 128
"""Assumed sizes of dynamic dimensions; the first one of an input is its batch."""


@dataclass(frozen=True)
class Costs:
    """Costs of the nodes of the main graph at these shapes."""

    nodes: tuple[NodeTraffic, ...]
    shapes: Mapping[str, tuple[int, ...]]
    """Shape of each input."""
    sizes: Mapping[str, int]
    """Size of each dynamic dimension, given or assumed."""

    def facts(self) -> list[dict[str, Any]]:
        """Return name, bytes, operations and launches of each node as plain data."""
        return [
            {
                "name": n.name,
                "reads": n.work.reads,
                "writes": n.work.writes,
                "flops": n.work.flops,
                "launches": int(launches(n)),
            }
            for n in self.nodes
        ]


def costs(model: onnx.ModelProto, sizes: Mapping[str, Sequence[int]] | None = None) -> Costs:
    """Return the estimated cost of each node. `sizes`: of dimensions by name, INPUT[AXIS] for an unnamed one, and
    shapes of inputs; the first dimension of an input defaults to 1, others to 128. Raises ModelError if shapes cannot
    be inferred, UsageError for ambiguous sizes or unknown names."""
    requested = dict(sizes or {})
    initialized = {t.name for t in model.graph.initializer}
    inputs = [v for v in model.graph.input if v.type.HasField("tensor_type")]
    sizes_by_name = dimensions(model)
    unknown = set(requested) - set(sizes_by_name) - {v.name for v in inputs}
    if unknown:
        valid_names = ", ".join([*sizes_by_name, *(v.name for v in inputs if v.name not in initialized)])
        raise UsageError(
            f"shape: the model has no dimension and no input called '{min(unknown)}'; it has {valid_names}"
        )
    several = [name for name in sizes_by_name if len(requested.get(name, (0,))) != 1]
    if several:
        raise UsageError(
            f"shape: {several[0]} has {plural(len(requested[several[0]]), 'size')}, and one is looked at at a time"
        )
    sizes_by_name = {name: requested[name][0] if name in requested else size for name, size in sizes_by_name.items()}
    shapes = {}
    for value in inputs:
        dims = tuple(value.type.tensor_type.shape.dim)
        shape = requested.get(value.name)
        if shape is not None and len(shape) != len(dims):
            raise UsageError(
                f"shape: {value.name} has {plural(dims, 'dimension')}, and {len(shape)} "
                f"{agreeing(shape, 'is', 'are')} given"
            )
        for axis, dim in enumerate(dims):
            if shape is not None and not dim.HasField("dim_value"):
                sizes_by_name[_name(value, axis)] = shape[axis]
    for value in inputs:
        dims = tuple(value.type.tensor_type.shape.dim)
        shapes[value.name] = tuple(
            d.dim_value if d.HasField("dim_value") else sizes_by_name[_name(value, axis)] for axis, d in enumerate(dims)
        )
    return Costs(traffic.count(model, shapes).nodes, shapes, sizes_by_name)


def launches(node: NodeTraffic) -> bool:
    """Return whether a node launches a kernel: views, and values computed from shapes, do not."""
    return node.work.bytes > 0


def dimensions(model: onnx.ModelProto) -> dict[str, int]:
    """Return a size for each dynamic dimension of the inputs; the first one of an input is treated as the batch."""
    sizes: dict[str, int] = {}
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value"):
                name = _name(value, axis)
                sizes[name] = FIRST if axis == 0 else sizes.get(name, OTHERS)
    return sizes


def _name(value: onnx.ValueInfoProto, axis: int) -> str:
    return value.type.tensor_type.shape.dim[axis].dim_param or f"{value.name}[{axis}]"
