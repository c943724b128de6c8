"""Sensitive nodes: those that lower precision would harm, in groups that must stay float32 together, each with its
reason.

A value beyond the range is produced and read in float32 by all its users; likewise the inputs of a node that amplifies
rounding, back to where the type represents the values exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from onnx import numpy_helper

from onnxfuse import ops
from onnxfuse.model.precision_record import NAMES
from onnxfuse.ops import Trait, named
from onnxfuse.precision import rounding
from onnxfuse.precision.measure import SENSITIVE, ObservedNode
from onnxfuse.precision.plan import FLOAT, FloatNode, float_values
from onnxfuse.precision.scopes import called, key

HEADROOM = 2.0
"""Largest part of the type's range that a value may use, because other inputs produce larger ones."""

PRODUCTS = named(Trait.CONTRACTION, Trait.ATTENTION) | {ops.MultiHeadAttention}
"""Operators beyond which inexact inputs are not traced: their sums are rounded anyway."""

DEEP = 12
"""Largest number of nodes traced back from one that amplifies rounding."""


@dataclass
class NodeGroup:
    """Nodes that stay float32 together."""

    severity: float
    reasons: dict[str, str] = field(default_factory=dict)
    """The reason, by the node's first output."""


def beyond_range(
    float_nodes: Mapping[str, FloatNode], statistics: Mapping[str, ObservedNode], type_: int
) -> list[NodeGroup]:
    """Return a group for each node whose output exceeds the range of `type_`: the node and its readers."""
    groups = []
    limit = rounding.facts(type_).largest
    for name, float_node in float_nodes.items():
        largest = statistics[name].largest if name in statistics else 0.0
        if largest * HEADROOM <= limit or not float_node.types or not list(float_values(float_node)):
            continue
        size = f"{largest:.3g}; the largest {NAMES[type_]} is {limit:.5g}"
        group = NodeGroup(
            largest / limit,
            {name: f"reaches {size}" if largest > limit else f"comes close to the limit: reaches {size}"},
        )
        for value in float_values(float_node):
            for _, reader in float_node.scope.uses(value):
                other = float_nodes.get(key(reader))
                if other is not None and other.types and other.node is reader and key(reader) not in group.reasons:
                    group.reasons[key(reader)] = f"reads '{value}', which reaches {size}"
        groups.append(group)
    return groups


def never_observed(float_nodes: Mapping[str, FloatNode], statistics: Mapping[str, ObservedNode]) -> list[NodeGroup]:
    """Return a group for each node that no case reached, so that nothing is known of its values."""
    return [
        NodeGroup(0.0, {n: "never ran on these inputs"})
        for n, p in float_nodes.items()
        if p.types and n not in statistics
    ]


def sensitive(
    float_nodes: Mapping[str, FloatNode], statistics: Mapping[str, ObservedNode], type_: int
) -> list[NodeGroup]:
    """Return a group for each node that amplifies the rounding of `type_`, the worst first."""
    unit = rounding.facts(type_).eps / 2
    groups = []
    for name, float_node in float_nodes.items():
        error = statistics[name].error.get(type_, 0.0) if name in statistics else 0.0
        if error > SENSITIVE * unit and type_ in float_node.types:
            group = NodeGroup(error)
            _blame(group, name, float_nodes, statistics, type_, unit)
            groups.append(group)
    return sorted(groups, key=lambda g: -g.severity)


def singletons(
    float_nodes: Mapping[str, FloatNode], statistics: Mapping[str, ObservedNode], type_: int
) -> list[NodeGroup]:
    """Return each node alone, in file order, for models in which no single node stands out."""
    groups = []
    for name, float_node in float_nodes.items():
        if type_ in float_node.types:
            error = statistics[name].error.get(type_, 0.0) if name in statistics else 0.0
            groups.append(
                NodeGroup(
                    error, {name: f"its rounding alone is {error:.2g} of its output, more than the tolerance leaves"}
                )
            )
    return groups


def _blame(
    group: NodeGroup,
    name: str,
    float_nodes: Mapping[str, FloatNode],
    statistics: Mapping[str, ObservedNode],
    type_: int,
    unit: float,
) -> None:
    """Extend the group by the nodes that produce values not representable in the type.

    The effect of an input's rounding at the group's first node is its error here times the gain of the nodes between.
    """
    waiting = [(name, 1.0, "", 0)]
    while waiting:
        one, gain, reader, depth = waiting.pop(0)
        float_node, node_statistics = float_nodes[one], statistics.get(one)
        if one in group.reasons or not float_node.types:
            continue
        error = 0.0 if node_statistics is None else node_statistics.error.get(type_, 0.0)
        group.reasons[one] = (
            f"{reader} needs more digits of it than {NAMES[type_]} holds"
            if depth
            else _why(float_node, node_statistics, error, type_)
        )
        if node_statistics is None or depth == DEEP or (float_node.node.op_type in PRODUCTS and depth):
            continue
        alone = node_statistics.blamed.get(type_, {})
        for n, own_error in sorted(node_statistics.inexact.get(type_, {}).items()):
            output_error = alone.get(n, error)
            producer = float_node.scope.producer(float_node.node.input[n]) if n < len(float_node.node.input) else None
            if output_error * gain > SENSITIVE * unit and producer is not None and key(producer[1]) in float_nodes:
                # A value beyond the range has no comparable error and is handled by `beyond_range`.
                amplification = (
                    output_error / own_error if 0 < own_error < np.inf and np.isfinite(output_error) else 1.0
                )
                waiting.append((key(producer[1]), gain * amplification, called(float_node.node), depth + 1))


def _why(float_node: FloatNode, statistics: ObservedNode | None, error: float, type_: int) -> str:
    """Return why a node amplifies rounding: a constant that the type cannot represent, or its operation."""
    type_facts = rounding.facts(type_)
    for name in float_node.node.input:
        tensor = float_node.scope.constant(name) if name else None
        if tensor is None or tensor.data_type != FLOAT:
            continue
        x = np.abs(numpy_helper.to_array(tensor))
        smallest, largest = float(x[x > 0].min(initial=np.inf)), float(x[np.isfinite(x)].max(initial=0.0))
        if largest > type_facts.largest:
            return f"its constant {largest:.3g} exceeds {NAMES[type_]}'s largest, {type_facts.largest:.5g}"
        if smallest < type_facts.tiny and x.size == 1:
            return f"its constant {smallest:.3g} is below {NAMES[type_]}'s smallest, {type_facts.tiny:.2g}"
    blamed = sorted((statistics.blamed.get(type_, {}) if statistics else {}).items(), key=lambda pair: -pair[1])
    of = f" of '{float_node.node.input[blamed[0][0]]}'" if blamed and blamed[0][0] < len(float_node.node.input) else ""
    error_text = "a value that is not finite" if error == float("inf") else f"an error of {error:.2g}"
    return f"turns the rounding{of} to {NAMES[type_]} into {error_text}"


def types_of(group: NodeGroup, float_nodes: Mapping[str, FloatNode], type_: int) -> dict[str, int]:
    """Return the type for each node of a group: `type_` if the whole group can compute in that, else float32."""
    all_support = type_ == FLOAT or all(type_ in float_nodes[n].types for n in group.reasons)
    return dict.fromkeys(group.reasons, type_ if all_support else FLOAT)
