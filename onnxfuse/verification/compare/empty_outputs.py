"""Outputs that have no element whatever the inputs are: nothing of them can be compared but that."""

from collections.abc import Mapping

import onnx

from onnxfuse import ops
from onnxfuse.model.nested import bodies
from onnxfuse.ops import Trait
from onnxfuse.shapes.inference import inferred
from onnxfuse.shapes.types import value_types
from onnxfuse.verification.run.tensors import LENGTH, PRESENT

Empty = Mapping[str, str]
"""Values that hold nothing, with what of them is compared all the same: LENGTH of a sequence without an entry, also in
an optional, and PRESENT of an optional without a value."""


def outputs_without_elements(model: onnx.ModelProto) -> frozenset[str]:
    """Return the outputs whose shape has no element, and the names of what else tells that an output holds nothing."""
    types = value_types(inferred(model).graph)
    names = [o.name for o in model.graph.output]
    none = {name for name in names if 0 in (types[name].shape or () if name in types else ())}
    empty = _empty(model.graph, {})
    return frozenset({*none, *(f"{name}{empty[name]}" for name in names if name in empty)})


def _empty(graph: onnx.GraphProto, outer: Empty) -> Empty:
    """Return the empty sequences and optionals of a graph, with those of the graphs around it."""
    empty = dict(outer)
    for node in graph.node:
        entry = ops.operator(node.op_type, node.domain)
        if entry is None:
            continue
        if entry == ops.SequenceEmpty:
            empty[node.output[0]] = LENGTH
        elif entry == ops.Optional and not any(node.input):
            empty[node.output[0]] = PRESENT
        elif Trait.CARRIES in entry.traits and node.input and node.input[0] in empty:
            empty[node.output[0]] = empty[node.input[0]]
        elif entry == ops.If:
            of_branches = [[found.get(o.name) for o in b.output] for b in bodies(node) if (found := _empty(b, empty))]
            for name, *kinds in zip(node.output, *of_branches, strict=False):  # the last may be left out
                if len(kinds) == 2 and kinds[0] is not None and kinds[0] == kinds[1]:
                    empty[name] = kinds[0]
        elif entry == ops.Loop:
            empty |= _carried(node, empty)
    return empty


def _carried(loop: onnx.NodeProto, outer: Empty) -> Empty:
    """Return the states of a Loop that are empty at first, and stay so from iteration to iteration."""
    (body,) = bodies(loop)
    states = range(len(loop.input) - 2)
    empty = {i: outer[loop.input[2 + i]] for i in states if loop.input[2 + i] in outer}
    while True:
        inside = _empty(body, {**outer, **{body.input[2 + i].name: kind for i, kind in empty.items()}})
        stay = {i: kind for i, kind in empty.items() if inside.get(body.output[1 + i].name) == kind}
        if stay == empty:
            return {name: empty[i] for i, name in enumerate(loop.output) if i in empty}
        empty = stay
