"""What an integer input is used for, read from the graph: row numbers of a table, a mask, or plain numbers."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import onnx
from onnx import FunctionProto, NodeProto, TensorProto

from onnxfuse.model.graph import bodies
from onnxfuse.model.types import ValueType, infer, value_types

CARRIERS = frozenset(
    {"Cast", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Identity", "Transpose", "Expand", "Slice", "Concat", "Tile",
     "Split", "Max", "Min", "Abs"}
)  # fmt: skip
"""Operators that hand their first input's values on."""

INDEXERS = {"Gather": 0, "GatherElements": 0, "ScatterElements": 0, "Scatter": 0, "Compress": 0}
"""Operators whose second input holds row numbers of the first along the attribute `axis`, and the default axis."""

TESTERS = frozenset(
    {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "And", "Or", "Xor", "Where", "If"}
)
"""Operators that ask yes or no of a value."""

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.BOOL)


@dataclass(frozen=True)
class Role:
    """How the values of an integer input are read."""

    kind: str
    """`index`, `mask` or `number`."""
    below: int | None = None
    """For an index: the extent of the smallest axis that it selects from."""


@dataclass(frozen=True)
class _Use:
    node: NodeProto
    position: int


def roles(model: onnx.ModelProto) -> dict[str, Role]:
    """Return the role of each graph input, by name. Follows values into subgraphs and local functions."""
    typed = infer(model)
    types = value_types(typed.graph)
    functions = {(f.domain, f.name): f for f in typed.functions}
    readers = _readers(typed.graph.node)
    return {i.name: _role(i.name, readers, types, functions) for i in model.graph.input}


def _role(
    name: str,
    readers: dict[str, list[_Use]],
    types: dict[str, ValueType],
    functions: dict[tuple[str, str], FunctionProto],
) -> Role:
    bounds: list[int] = []
    tested = False
    for use, scope in _uses(name, readers, types, functions):
        bound = _bound(use, scope)
        if bound is not None:
            bounds.append(bound)
        tested = tested or _is_test(use)
    if bounds:
        return Role("index", min(bounds))
    return Role("mask") if tested else Role("number")


def _uses(
    name: str,
    readers: dict[str, list[_Use]],
    types: dict[str, ValueType],
    functions: dict[tuple[str, str], FunctionProto],
) -> Iterator[tuple[_Use, dict[str, ValueType]]]:
    """Yield every use of the value and of what only carries its values on, with the types known where it stands."""
    pending, seen = [name], {name}
    while pending:
        for use in readers.get(pending.pop(), ()):
            yield use, types
            node = use.node
            function = functions.get((node.domain, node.op_type))
            if function is not None and use.position < len(function.input):
                inner = {
                    formal: types[actual]
                    for formal, actual in zip(function.input, node.input, strict=False)
                    if actual in types
                }
                yield from _uses(function.input[use.position], _readers(function.node), inner, functions)
            elif node.op_type in CARRIERS and (use.position == 0 or node.op_type in ("Concat", "Max", "Min")):
                fresh = [o for o in node.output if o not in seen]
                seen.update(fresh)
                pending.extend(fresh)


def _readers(nodes: Iterable[NodeProto]) -> dict[str, list[_Use]]:
    readers: dict[str, list[_Use]] = defaultdict(list)
    for node in nodes:
        for position, name in enumerate(node.input):
            readers[name].append(_Use(node, position))
        for body in bodies(node):
            for name, uses in _readers(body.node).items():
                readers[name].extend(uses)
    return readers


def _bound(use: _Use, types: dict[str, ValueType]) -> int | None:
    """Return how many rows the value selects from, None where it selects none or their number is unknown."""
    node = use.node
    if node.op_type == "GatherND" and use.position == 1:
        return _smallest(types, node.input[0])
    if node.op_type not in INDEXERS or use.position != 1:
        return None
    axis = next((a.i for a in node.attribute if a.name == "axis"), INDEXERS[node.op_type])
    shape = types[node.input[0]].shape if node.input[0] in types else None
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    extent = shape[axis]
    return extent if isinstance(extent, int) else None


def _smallest(types: dict[str, ValueType], name: str) -> int | None:
    shape = types[name].shape if name in types else None
    known = [d for d in shape or () if isinstance(d, int)]
    return min(known) if known else None


def _is_test(use: _Use) -> bool:
    if use.node.op_type in TESTERS:
        return True
    return use.node.op_type == "Cast" and any(a.name == "to" and a.i in FLOATS for a in use.node.attribute)
