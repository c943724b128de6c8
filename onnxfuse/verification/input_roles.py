"""What an integer input is used for, read from the graph: row numbers of a table, a mask, a size, or plain numbers."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import onnx
from onnx import FunctionProto, NodeProto, TensorProto, numpy_helper

from onnxfuse.model.functions import Key, called, functions_of
from onnxfuse.model.graph import bodies
from onnxfuse.model.types import ValueType, infer, value_types
from onnxfuse.verification.one_hot_ids import Ranges, ranges

CARRIERS = frozenset(
    {"Cast", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Identity", "Transpose", "Expand", "Slice", "Concat", "Tile",
     "Split", "Max", "Min", "Abs", "Gather", "GatherElements", "GatherND"}
)  # fmt: skip
"""Operators that hand their first input's values on."""

OWNERS = frozenset({"", "ai.onnx", "com.microsoft"})
"""Domains whose operators are known here by their names; another one's Add is not known to add."""

SHIFTERS = {"Add": 1, "Sub": -1}
"""Operators that hand values on moved by the other operand, where that is a constant, and its sign."""

INDEXERS = {"Gather": 0, "GatherElements": 0, "ScatterElements": 0, "Scatter": 0}
"""Operators whose second input holds row numbers of the first along the attribute `axis`, and the default axis."""

TUPLES = frozenset({"GatherND", "ScatterND"})
"""Operators whose second input holds tuples of numbers along the first axes of the first input."""

TABLES = {"EmbedLayerNormalization": {0: 2, 1: 4}}
"""Operators with tables of their own: for each input of row numbers, the input with the table that it selects from."""

SIZES = {
    "Reshape": (1,), "Expand": (1,), "Tile": (1,), "ConstantOfShape": (0,), "Range": (0, 1, 2), "TopK": (1,),
    "OneHot": (1,), "Resize": (3,), "Slice": (1, 2, 4), "Pad": (1,), "Trilu": (1,), "Split": (1,),
}  # fmt: skip
"""Operators and their inputs that say how many, from where, up to where: such numbers are small and positive."""

TESTERS = frozenset(
    {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "And", "Or", "Xor", "Where", "If"}
)
"""Operators that ask yes or no of a value."""

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.BOOL)


@dataclass(frozen=True)
class Role:
    """How the values of an integer input are read."""

    kind: str
    """`index`, `mask`, `size` or `number`."""
    below: int | None = None
    """For an index: the extent of the smallest axis that it selects from, less what is added to it before."""
    least: int = 0
    """For an index: the smallest number that is valid after what is added to it."""


@dataclass(frozen=True)
class _Use:
    node: NodeProto
    position: int
    shift: int = 0
    """What was added to the value before."""


def roles(model: onnx.ModelProto) -> dict[str, Role]:
    """Return the role of each graph input, by name. Follows values into subgraphs and local functions."""
    typed = infer(model)
    scope = _Scope(
        _readers(typed.graph.node), value_types(typed.graph), functions_of(typed), _numbers(model), ranges(model)
    )
    return {i.name: _role(i.name, scope) for i in model.graph.input}


@dataclass(frozen=True)
class _Scope:
    """A graph or the body of a function."""

    readers: dict[str, list[_Use]]
    types: dict[str, ValueType]
    functions: dict[Key, FunctionProto]
    """Those of the model."""
    numbers: dict[str, int]
    """Constants of one whole number."""
    ranges: Ranges
    """Consecutive whole numbers, in all graphs of the model."""


def _role(name: str, graph: _Scope) -> Role:
    bounds: list[int] = []
    least = 0
    tested = sized = False
    for use, scope in _uses(name, graph):
        bound = _bound(use, scope, graph.numbers)
        if bound is not None:
            bounds.append(bound - use.shift)
            least = max(least, -use.shift)
        one_hot = _one_hot(use, graph.ranges)
        if one_hot is not None:
            bounds.append(one_hot[1] - use.shift)
            least = max(least, one_hot[0] - use.shift)
        tested = tested or _is_test(use)
        sized = sized or (use.node.domain == "" and use.position in SIZES.get(use.node.op_type, ()))
    if bounds:
        return Role("index", min(bounds), least)
    if sized:
        return Role("size")
    return Role("mask") if tested else Role("number")


def _uses(name: str, scope: _Scope, moved: int = 0) -> Iterator[tuple[_Use, dict[str, ValueType]]]:
    """Yield every use of the value and of what only carries its values on, with the types known where it stands.

    `moved` is what has been added to the value so far.
    """
    pending, seen = [(name, moved)], {name}
    while pending:
        value, shift = pending.pop()
        for plain in scope.readers.get(value, ()):
            use = replace(plain, shift=shift)
            node = use.node
            if node.domain in OWNERS:
                yield use, scope.types
            function = scope.functions.get(called(node))
            if function is not None and use.position < len(function.input):
                inner = {
                    formal: scope.types[actual]
                    for formal, actual in zip(function.input, node.input, strict=False)
                    if actual in scope.types
                }
                body = _Scope(_readers(function.node), inner, scope.functions, {}, scope.ranges)
                yield from _uses(function.input[use.position], body, shift)
                continue
            step = _carried(use, scope.numbers) if node.domain in OWNERS else None
            if step is not None:
                fresh = [o for o in node.output if o not in seen]
                seen.update(fresh)
                pending.extend((o, shift + step) for o in fresh)


def _carried(use: _Use, numbers: dict[str, int]) -> int | None:
    """Return what the operator adds to the values that it hands on; None where it does not hand them on."""
    node = use.node
    if node.op_type in CARRIERS and (use.position == 0 or node.op_type in ("Concat", "Max", "Min")):
        return 0
    if node.op_type == "Where" and use.position > 0:
        return 0
    if node.op_type in SHIFTERS and (use.position == 0 or node.op_type == "Add"):
        other = numbers.get(node.input[1 - use.position])
        return None if other is None else SHIFTERS[node.op_type] * other
    return None


def _numbers(model: onnx.ModelProto) -> dict[str, int]:
    """Return the whole numbers among the constants of the main graph: those of one element."""
    tensors = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
            tensors[node.output[0]] = node.attribute[0].t
    whole = (TensorProto.INT32, TensorProto.INT64)
    one = {n: t for n, t in tensors.items() if t.data_type in whole and math.prod(t.dims) == 1}
    return {n: int(numpy_helper.to_array(t).reshape(-1)[0]) for n, t in one.items()}


def _readers(nodes: Iterable[NodeProto]) -> dict[str, list[_Use]]:
    readers: dict[str, list[_Use]] = defaultdict(list)
    for node in nodes:
        for position, name in enumerate(node.input):
            readers[name].append(_Use(node, position))
        for body in bodies(node):
            for name, uses in _readers(body.node).items():
                readers[name].extend(uses)
    return readers


def _bound(use: _Use, types: dict[str, ValueType], numbers: dict[str, int]) -> int | None:
    """Return how many rows the value selects from, None where it selects none or their number is unknown."""
    node = use.node
    if node.op_type in TUPLES and use.position == 1:
        return _smallest(types, node.input[0])
    if node.op_type == "OneHot" and use.position == 0 and len(node.input) > 1:
        return numbers.get(node.input[1])
    place = TABLES.get(node.op_type, {}).get(use.position, len(node.input))
    if place < len(node.input):
        table = types.get(node.input[place])
        rows = table.shape[0] if table is not None and table.shape else None
        return rows if isinstance(rows, int) else None
    if node.op_type not in INDEXERS or use.position != 1:
        return None
    axis = next((a.i for a in node.attribute if a.name == "axis"), INDEXERS[node.op_type])
    shape = types[node.input[0]].shape if node.input[0] in types else None
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    extent = shape[axis]
    return extent if isinstance(extent, int) else None


def _one_hot(use: _Use, known: Ranges) -> tuple[int, int] | None:
    """Return the range that the value is compared with for equality; None where it is with none."""
    if use.node.op_type != "Equal" or use.node.domain:
        return None
    return known.get(use.node.input[1 - use.position])


def _smallest(types: dict[str, ValueType], name: str) -> int | None:
    shape = types[name].shape if name in types else None
    known = [d for d in shape or () if isinstance(d, int)]
    return min(known) if known else None


def _is_test(use: _Use) -> bool:
    if use.node.op_type in TESTERS:
        return use.node.op_type != "Where" or use.position == 0
    return use.node.op_type == "Cast" and any(a.name == "to" and a.i in FLOATS for a in use.node.attribute)
