"""Infer the role of each graph input from its uses: count, index, size, mask, or plain data."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import onnx
from onnx import FunctionProto, NodeProto, TensorProto, numpy_helper

from onnxfuse import ops
from onnxfuse.files.external import is_external
from onnxfuse.graph.graph import bodies
from onnxfuse.model.functions import Key, called, functions_of
from onnxfuse.ops import Trait, named
from onnxfuse.shapes.inference import infer, shell
from onnxfuse.shapes.types import ValueType, value_types
from onnxfuse.verification.inputs.counted_extents import CountedExtent, Fitted, InputValues, IntegerRange, Site
from onnxfuse.verification.inputs.counting_inputs import ENTRIES
from onnxfuse.verification.inputs.one_hot_ids import Ranges, ranges

CARRIERS = frozenset(
    {ops.Cast, ops.Reshape, ops.Unsqueeze, ops.Squeeze, ops.Flatten, ops.Identity, ops.Transpose, ops.Expand,
     ops.Slice, ops.Concat, ops.Tile, ops.Split, ops.Max, ops.Min, ops.Abs, ops.Gather, ops.GatherElements,
     ops.GatherND}
)  # fmt: skip
"""Operators that forward the values of their first input."""

OWNERS = frozenset({"", "ai.onnx", "com.microsoft"})
"""Domains whose operators are known by name; an Add of another domain is not known to add."""

SHIFTERS: dict[str, int] = {ops.Add: 1, ops.Sub: -1}
"""Operators that forward values shifted by a constant second operand, and the sign of the shift."""

SUM = ops.ReduceSum
"""The operator that turns a mask into lengths."""

ALIGNED = named(Trait.VIEW) | {ops.Cast, ops.Abs}
"""Those that preserve the position of every element."""

COMPARISONS = named(Trait.COMPARISON)

TESTERS = frozenset({ops.Not, ops.And, ops.Or, ops.Xor, ops.Where, ops.If})
"""Operators that test a value, equivalent to comparisons with 0, 1 or a computed value."""

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.BOOL)


@dataclass(frozen=True)
class Role:
    """How the values of an input are used."""

    kind: str
    """`number` for any value, `mask`, or a kind of `Numbers`."""
    spans: tuple[IntegerRange, ...] = ()
    """For `within`: the values must lie in all of them. Otherwise as in `Numbers`."""
    choices: tuple[int, ...] = ()
    """For `number`: constants that the values are compared with. Otherwise as in `Numbers`."""
    real: bool = False
    fitted: Fitted | None = None
    """For `fitted`: the function that computes them."""

    @property
    def points(self) -> bool:
        """Whether values beyond some extent are rejected."""
        return self.kind == "within" and any(s.high.terms for s in self.spans)

    def ends(self, sizes: Mapping[str, int]) -> tuple[int, int] | None:
        """Return the least and greatest valid value for these dimension sizes; None if any value is valid.

        An unknown span is used only if there is no other.
        """
        if self.kind != "within":
            return None
        known = [s for s in self.spans if s.high.at(sizes) is not None] or self.spans
        lows, highs = zip(*(s.at(sizes) for s in known), strict=True)
        high = min(highs)
        # If two spans do not intersect, the smaller values are the safe ones: indices beyond a table are rejected.
        low = min(max(lows), max(high, min(lows)))
        return low, max(low, high)


@dataclass(frozen=True)
class _Use:
    node: NodeProto
    position: int
    shift: int = 0
    """The constant added to the value before this use."""
    aligned: bool = True
    """Whether the node reads the whole value element by element."""
    summed: bool = False
    """Whether the node reads sums of the values: lengths, if the values are a mask."""


def roles(model: onnx.ModelProto) -> dict[str, Role]:
    """Return the role of each graph input by name. Follows values into subgraphs and local functions."""
    named = shell(model)
    for value in named.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.dim_param and not dim.HasField("dim_value"):
                dim.dim_param = unnamed(value.name, axis)
    typed = infer(named)
    vectors = _vectors(model)
    scope = _Scope(
        _readers(typed.graph.node),
        value_types(typed.graph),
        functions_of(typed),
        _numbers(vectors),
        vectors,
        ranges(model),
    )
    return {i.name: _role(i.name, scope) for i in model.graph.input}


def unnamed(name: str, axis: int) -> str:
    """Return the generated name of an unnamed input dimension."""
    return f"{name}[{axis}]"


@dataclass(frozen=True)
class _Scope:
    """A graph or a function body."""

    readers: dict[str, list[_Use]]
    types: dict[str, ValueType]
    functions: dict[Key, FunctionProto]
    """The functions of the model."""
    numbers: dict[str, int]
    """Scalar integer constants."""
    vectors: dict[str, tuple[int, ...]]
    """Short integer vector constants."""
    ranges: Ranges
    """Ranges of consecutive integers, in all graphs of the model."""


def _role(name: str, graph: _Scope) -> Role:
    spans: list[IntegerRange] = []
    special: list[Role] = []
    compared = set[int]()
    tested, real = False, True
    for use, scope in _uses(name, graph):
        numbers = _numbers_of(use, scope, graph)
        one_hot = _one_hot(use, graph.ranges)
        if one_hot is not None:
            spans.append(_moved(one_hot, use.shift))
        if use.summed:
            tested = tested or (numbers is not None and numbers.kind == "within")
            continue
        number = _compared(use, graph.numbers)
        compared |= set() if number is None else {number - use.shift}
        tested = (
            tested or (_is_test(use) and number in (None, 0, 1)) or (numbers is not None and numbers.kind == "mask")
        )
        if numbers is None or numbers.kind == "mask":
            continue
        moved = tuple(_moved(s, use.shift) for s in numbers.spans)
        if numbers.kind == "within":
            spans += moved
            real = real and numbers.real
        elif use.aligned or numbers.kind == "axes":
            special.append(Role(numbers.kind, moved, numbers.choices, numbers.real, numbers.fitted))
        elif not numbers.real:
            spans.append(PART_OF_A_SIZE)
            real = False
    if special:
        return special[0]
    if spans:
        return Role("within", tuple(dict.fromkeys(spans)), real=real)
    return Role("mask") if tested else Role("number", choices=tuple(sorted(compared)))


def _moved(span: IntegerRange, shift: int) -> IntegerRange:
    """Return the values such that adding `shift` yields these; non-negative if these are."""
    low = span.low - shift
    if not low.terms and span.low.plus >= 0:
        low = CountedExtent((), max(0, low.plus))
    return IntegerRange(low, span.high - shift)


def _one_hot(use: _Use, known: Ranges) -> IntegerRange | None:
    """Return the range that the value is compared with for equality; None if there is none."""
    if use.node.op_type != ops.Equal or use.node.domain or use.node.input[1 - use.position] not in known:
        return None
    first, end = known[use.node.input[1 - use.position]]
    return IntegerRange(CountedExtent((), first), CountedExtent((), end - 1))


PART_OF_A_SIZE = IntegerRange(CountedExtent((), 1), CountedExtent((), 4))
"""A value that is concatenated with others into a shape."""


def _numbers_of(use: _Use, types: Mapping[str, ValueType], graph: _Scope) -> InputValues | None:
    """Return the values that the operator accepts at that input; None if it is data, or unknown."""
    domain = "" if use.node.domain == "ai.onnx" else use.node.domain
    entry = ENTRIES.get((domain, use.node.op_type), {}).get(use.position)
    return None if entry is None else entry(Site(use.node, use.position, types, graph.numbers, graph.vectors))


def _uses(
    name: str, scope: _Scope, moved: int = 0, *, aligned: bool = True, summed: bool = False
) -> Iterator[tuple[_Use, dict[str, ValueType]]]:
    """Yield every use of the value, also through operators that forward it, with the types known there.

    `moved` is the total shift so far; `aligned` says whether elements are at their original positions, `summed` whether
    they have been summed.
    """
    pending, seen = [(name, moved, aligned, summed)], {name}
    while pending:
        value, shift, whole, sums = pending.pop()
        for plain in scope.readers.get(value, ()):
            use = replace(plain, shift=shift, aligned=whole, summed=sums)
            node = use.node
            yield use, scope.types
            function = scope.functions.get(called(node))
            if function is not None and use.position < len(function.input):
                inner = {
                    formal: scope.types[actual]
                    for formal, actual in zip(function.input, node.input, strict=False)
                    if actual in scope.types
                }
                body = _Scope(_readers(function.node), inner, scope.functions, {}, {}, scope.ranges)
                yield from _uses(function.input[use.position], body, shift, aligned=whole, summed=sums)
                continue
            step = _carried(use, scope.numbers) if node.domain in OWNERS else None
            if step is not None:
                fresh = [o for o in node.output if o not in seen]
                seen.update(fresh)
                kept = whole and (node.op_type in ALIGNED or node.op_type in SHIFTERS)
                pending.extend((o, shift + step, kept, sums or node.op_type == SUM) for o in fresh)


def _carried(use: _Use, numbers: dict[str, int]) -> int | None:
    """Return the shift that the operator applies to a value it forwards; None if it does not forward it."""
    node = use.node
    if node.op_type == SUM and use.position == 0:
        return 0
    if node.op_type in CARRIERS and (use.position == 0 or node.op_type in (ops.Concat, ops.Max, ops.Min)):
        return 0
    if node.op_type == ops.Where and use.position > 0:
        return 0
    if node.op_type in SHIFTERS and (use.position == 0 or node.op_type == ops.Add):
        other = numbers.get(node.input[1 - use.position])
        return None if other is None else SHIFTERS[node.op_type] * other
    return None


def _numbers(vectors: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Return the scalar integer constants of the main graph."""
    return {n: x[0] for n, x in vectors.items() if len(x) == 1}


FEW = 8
"""Largest element count of a constant that may hold extents."""


def _vectors(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Return the constants of the main graph that are short integer vectors."""
    tensors = {t.name: t for t in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == ops.Constant and node.attribute and node.attribute[0].HasField("t"):
            tensors[node.output[0]] = node.attribute[0].t
    whole = (TensorProto.INT32, TensorProto.INT64)
    few = {
        n: t
        for n, t in tensors.items()
        if t.data_type in whole and 1 <= math.prod(t.dims) <= FEW and not is_external(t)
    }
    return {n: tuple(int(x) for x in numpy_helper.to_array(t).reshape(-1)) for n, t in few.items()}


def sites(model: onnx.ModelProto, operator: str) -> Iterator[Site]:
    """Yield the nodes of a standard ONNX operator in the main graph, with what is known at each."""
    typed = infer(shell(model))
    types, vectors = value_types(typed.graph), _vectors(model)
    numbers = _numbers(vectors)
    yield from (Site(n, 0, types, numbers, vectors) for n in typed.graph.node if n.op_type == operator and not n.domain)


def _readers(nodes: Iterable[NodeProto]) -> dict[str, list[_Use]]:
    readers: dict[str, list[_Use]] = defaultdict(list)
    for node in nodes:
        for position, name in enumerate(node.input):
            readers[name].append(_Use(node, position))
        for body in bodies(node):
            for name, uses in _readers(body.node).items():
                readers[name].extend(uses)
    return readers


def _compared(use: _Use, numbers: Mapping[str, int]) -> int | None:
    """Return the constant that the value is compared with; None if there is none."""
    return numbers.get(use.node.input[1 - use.position]) if use.node.op_type in COMPARISONS else None


def _is_test(use: _Use) -> bool:
    if use.node.op_type in TESTERS | COMPARISONS:
        return use.node.op_type != ops.Where or use.position == 0
    return use.node.op_type == ops.Cast and any(a.name == "to" and a.i in FLOATS for a in use.node.attribute)
