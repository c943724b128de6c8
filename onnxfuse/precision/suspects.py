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
from onnxfuse.precision import numbers
from onnxfuse.precision.measure import SENSITIVE, Met
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


def beyond_range(places: Mapping[str, FloatNode], met: Mapping[str, Met], type_: int) -> list[NodeGroup]:
    """Return a group for each node whose output exceeds the range of `type_`: the node and its readers."""
    found = []
    most = numbers.facts(type_).largest
    for name, place in places.items():
        largest = met[name].largest if name in met else 0.0
        if largest * HEADROOM <= most or not place.types or not list(float_values(place)):
            continue
        size = f"{largest:.3g}, {NAMES[type_]} holds {most:.5g}"
        group = NodeGroup(
            largest / most, {name: f"gives up to {size}" if largest > most else f"comes near the end: {size}"}
        )
        for value in float_values(place):
            for _, reader in place.scope.uses(value):
                other = places.get(key(reader))
                if other is not None and other.types and other.node is reader and key(reader) not in group.reasons:
                    group.reasons[key(reader)] = f"reads '{value}', up to {size}"
        found.append(group)
    return found


def never_met(places: Mapping[str, FloatNode], met: Mapping[str, Met]) -> list[NodeGroup]:
    """Return a group for each node that no case reached, so that nothing is known of its values."""
    return [NodeGroup(0.0, {n: "never ran on these inputs"}) for n, p in places.items() if p.types and n not in met]


def sensitive(places: Mapping[str, FloatNode], met: Mapping[str, Met], type_: int) -> list[NodeGroup]:
    """Return a group for each node that amplifies the rounding of `type_`, the worst first."""
    unit = numbers.facts(type_).eps / 2
    found = []
    for name, place in places.items():
        error = met[name].error.get(type_, 0.0) if name in met else 0.0
        if error > SENSITIVE * unit and type_ in place.types:
            group = NodeGroup(error)
            _blame(group, name, places, met, type_, unit)
            found.append(group)
    return sorted(found, key=lambda g: -g.severity)


def singletons(places: Mapping[str, FloatNode], met: Mapping[str, Met], type_: int) -> list[NodeGroup]:
    """Return each node alone, in file order, for models in which no single node stands out."""
    found = []
    for name, place in places.items():
        if type_ in place.types:
            error = met[name].error.get(type_, 0.0) if name in met else 0.0
            found.append(
                NodeGroup(error, {name: f"the tolerance has no room for its roundings, {error:.2g} of what it gives"})
            )
    return found


def _blame(
    group: NodeGroup, name: str, places: Mapping[str, FloatNode], met: Mapping[str, Met], type_: int, unit: float
) -> None:
    """Extend the group by the nodes that produce values not representable in the type.

    The effect of an input's rounding at the group's first node is its error here times the gain of the nodes between.
    """
    waiting = [(name, 1.0, "", 0)]
    while waiting:
        one, gain, reader, depth = waiting.pop(0)
        place, seen = places[one], met.get(one)
        if one in group.reasons or not place.types:
            continue
        error = 0.0 if seen is None else seen.error.get(type_, 0.0)
        group.reasons[one] = (
            f"gives {reader} digits that {NAMES[type_]} does not hold" if depth else _why(place, seen, error, type_)
        )
        if seen is None or depth == DEEP or (place.node.op_type in PRODUCTS and depth):
            continue
        alone = seen.blamed.get(type_, {})
        for n, rounding in sorted(seen.inexact.get(type_, {}).items()):
            does = alone.get(n, error)
            made = place.scope.producer(place.node.input[n]) if n < len(place.node.input) else None
            if does * gain > SENSITIVE * unit and made is not None and key(made[1]) in places:
                # A value beyond the range has no comparable error and is handled by `beyond_range`.
                own = does / rounding if 0 < rounding < np.inf and np.isfinite(does) else 1.0
                waiting.append((key(made[1]), gain * own, called(place.node), depth + 1))


def _why(place: FloatNode, seen: Met | None, error: float, type_: int) -> str:
    """Return why a node amplifies rounding: a constant that the type cannot represent, or its operation."""
    known = numbers.facts(type_)
    for name in place.node.input:
        tensor = place.scope.constant(name) if name else None
        if tensor is None or tensor.data_type != FLOAT:
            continue
        x = np.abs(numpy_helper.to_array(tensor))
        least, most = float(x[x > 0].min(initial=np.inf)), float(x[np.isfinite(x)].max(initial=0.0))
        if most > known.largest:
            return f"its constant {most:.3g} is beyond {NAMES[type_]}, which holds {known.largest:.5g}"
        if least < known.tiny and x.size == 1:
            return f"its constant {least:.3g} is below {NAMES[type_]}'s smallest, {known.tiny:.2g}"
    blamed = sorted((seen.blamed.get(type_, {}) if seen else {}).items(), key=lambda pair: -pair[1])
    of = f" of '{place.node.input[blamed[0][0]]}'" if blamed and blamed[0][0] < len(place.node.input) else ""
    much = "no number" if error == float("inf") else f"an error of {error:.2g}"
    return f"makes {much} of the rounding{of} to {NAMES[type_]}"


def types_of(group: NodeGroup, places: Mapping[str, FloatNode], type_: int) -> dict[str, int]:
    """Return the type for each node of a group: `type_` if the whole group can compute in that, else float32."""
    whole = type_ == FLOAT or all(type_ in places[n].types for n in group.reasons)
    return dict.fromkeys(group.reasons, type_ if whole else FLOAT)
