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
from onnxfuse.model.nested import constants_of
from onnxfuse.ops import Trait, named
from onnxfuse.ops.inputs import TruthValues
from onnxfuse.shapes.inference import infer, shell
from onnxfuse.shapes.types import ValueType, value_types
from onnxfuse.symbolic.integer import at_most
from onnxfuse.verification.inputs.counted_extents import Fitted, InputValues, IntegerRange, Site, extent_at
from onnxfuse.verification.inputs.counting_inputs import accepted
from onnxfuse.verification.inputs.one_hot_ids import Ranges, ranges
from onnxfuse.verification.run.tensors import innermost, type_name

OWNERS = frozenset({"", "ai.onnx", "com.microsoft"})
"""Domains whose operators are known by name; an Add of another domain is not known to add."""

SUM = ops.ReduceSum
"""The operator that turns a mask into lengths."""

CASTS = named(Trait.CASTS)

ALIGNED = named(Trait.VIEW, Trait.CASTS)
"""Operators that preserve the position of every element."""

COMPARISONS = named(Trait.COMPARISON)

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.BOOL)


@dataclass(frozen=True)
class InputRole:
    """How the values of an input are used."""

    kind: str
    """`number` for any value, `mask`, or a kind of `InputValues`."""
    spans: tuple[IntegerRange, ...] = ()
    """For `within`: the values must lie in all of them. Otherwise as in `InputValues`."""
    choices: tuple[int, ...] = ()
    """For `number`: constants that the values are compared with. Otherwise as in `InputValues`."""
    real: bool = False
    fitted: Fitted | None = None
    """For `fitted`: the function that computes them."""

    @property
    def points(self) -> bool:
        """Whether values beyond some extent are rejected."""
        return self.kind == "within" and any(s.limited for s in self.spans)

    def ends(self, sizes: Mapping[str, int]) -> tuple[int, int] | None:
        """Return the least and greatest valid value for these dimension sizes; None if any value is valid.

        An unknown span is used only if there is no other.
        """
        if self.kind != "within":
            return None
        known_spans = [s for s in self.spans if extent_at(s.high, sizes) is not None] or self.spans
        lows, highs = zip(*(s.at(sizes) for s in known_spans), strict=True)
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


def roles(model: onnx.ModelProto) -> dict[str, InputRole]:
    """Return the role of each graph input by name. Follows values into subgraphs and local functions."""
    named = shell(model)
    for value in named.graph.input:
        tensor = innermost(value.type)
        for axis, dim in enumerate(() if tensor is None else tensor.shape.dim):
            if not dim.dim_param and not dim.HasField("dim_value"):
                dim.dim_param = unnamed_extent(value, axis)
    typed = infer(named)
    vectors = _vectors(model)
    scope = _Scope(
        _readers(typed.graph.node),
        value_types(typed.graph),
        functions_of(typed),
        _scalar_constants(vectors),
        vectors,
        ranges(model),
    )
    return {i.name: _role(i.name, scope) for i in model.graph.input}


def unnamed(name: str, axis: int) -> str:
    """Return the generated name of an unnamed input dimension."""
    return f"{name}[{axis}]"


def unnamed_extent(value: onnx.ValueInfoProto, axis: int) -> str:
    """Return the generated name of an unnamed dimension of an input's tensors: of the entries, if it is a sequence."""
    return unnamed(f"{value.name}[]" if "seq(" in type_name(value.type) else value.name, axis)


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


def _role(name: str, graph: _Scope) -> InputRole:
    spans: list[IntegerRange] = []
    special: list[InputRole] = []
    compared = set[int]()
    tested, real = False, True
    for use, scope in _uses(name, graph):
        accepted_values = _accepted_values(use, scope, graph)
        one_hot = _one_hot(use, graph.ranges)
        if one_hot is not None:
            spans.append(_shifted(one_hot, use.shift))
        if use.summed:
            tested = tested or (accepted_values is not None and accepted_values.kind == "within")
            continue
        constant = _compared(use, graph.numbers)
        compared |= set() if constant is None else {constant - use.shift}
        tested = (
            tested
            or (_is_test(use) and constant in (None, 0, 1))
            or (accepted_values is not None and accepted_values.kind == "mask")
        )
        if accepted_values is None or accepted_values.kind == "mask":
            continue
        spans_before = tuple(_shifted(s, use.shift) for s in accepted_values.spans)
        if accepted_values.kind == "within":
            spans += spans_before
            real = real and accepted_values.real
        elif use.aligned or accepted_values.kind == "axes":
            special.append(
                InputRole(
                    accepted_values.kind,
                    spans_before,
                    accepted_values.choices,
                    accepted_values.real,
                    accepted_values.fitted,
                )
            )
        elif not accepted_values.real:
            spans.append(PART_OF_A_SIZE)
            real = False
    if special:
        return special[0]
    if spans:
        return InputRole("within", tuple(dict.fromkeys(spans)), real=real)
    return InputRole("mask") if tested else InputRole("number", choices=tuple(sorted(compared)))


def _shifted(span: IntegerRange, shift: int) -> IntegerRange:
    """Return the values such that adding `shift` yields these; non-negative if these are."""
    low = span.low - shift
    if isinstance(low, int) and at_most(0, span.low):
        low = max(0, low)
    return replace(span, low=low, high=span.high - shift)


def _one_hot(use: _Use, ranges_by_value: Ranges) -> IntegerRange | None:
    """Return the range that the value is compared with for equality; None if there is none."""
    if use.node.op_type != ops.Equal or use.node.domain or use.node.input[1 - use.position] not in ranges_by_value:
        return None
    first, end = ranges_by_value[use.node.input[1 - use.position]]
    return IntegerRange(first, end - 1, limited=False)


PART_OF_A_SIZE = IntegerRange(1, 4, limited=False)
"""A value that is concatenated with others into a shape."""


def _accepted_values(use: _Use, types: Mapping[str, ValueType], graph: _Scope) -> InputValues | None:
    """Return the values that the operator accepts at that input; None if it is data, or unknown."""
    return accepted(Site(use.node, use.position, types, graph.numbers, graph.vectors))


def _uses(
    name: str, scope: _Scope, shift_before: int = 0, *, aligned: bool = True, summed: bool = False
) -> Iterator[tuple[_Use, dict[str, ValueType]]]:
    """Yield every use of the value, also through operators that forward it, with the types known there.

    `shift_before` is the total shift so far; `aligned` says whether elements are at their original positions, `summed`
    whether they have been summed.
    """
    pending, visited = [(name, shift_before, aligned, summed)], {name}
    while pending:
        value, shift, in_place, sums = pending.pop()
        for plain in scope.readers.get(value, ()):
            use = replace(plain, shift=shift, aligned=in_place, summed=sums)
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
                yield from _uses(function.input[use.position], body, shift, aligned=in_place, summed=sums)
                continue
            step = _shift_through(use, scope.numbers) if node.domain in OWNERS else None
            if step is not None:
                fresh = [o for o in node.output if o not in visited]
                visited.update(fresh)
                stays_aligned = in_place and (node.op_type in ALIGNED or node.op_type in (ops.Abs, ops.Add, ops.Sub))
                pending.extend((o, shift + step, stays_aligned, sums or node.op_type == SUM) for o in fresh)


def _shift_through(use: _Use, constants: dict[str, int]) -> int | None:
    """Return the shift that the operator applies to a value it forwards; None if it does not forward it."""
    node = use.node
    entry = ops.operator(node.op_type, node.domain)
    if entry is not None and entry.carries(use.position):
        return 0
    if use.position == 0 and (node.op_type in CASTS or node.op_type in (SUM, ops.Abs)):
        return 0
    if node.op_type == ops.Add or (node.op_type == ops.Sub and use.position == 0):
        other = constants.get(node.input[1 - use.position])
        return None if other is None else -other if node.op_type == ops.Sub else other
    return None


def _scalar_constants(vectors: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Return the scalar integer constants of the main graph."""
    return {n: x[0] for n, x in vectors.items() if len(x) == 1}


SMALL_CONSTANT = 8
"""Largest element count of a constant that may hold extents."""


def _vectors(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Return the constants of the main graph that are short integer vectors."""
    integer_types = (TensorProto.INT32, TensorProto.INT64)
    small = {
        n: t
        for n, t in constants_of(model.graph).items()
        if t.data_type in integer_types and 1 <= math.prod(t.dims) <= SMALL_CONSTANT and not is_external(t)
    }
    return {n: tuple(int(x) for x in numpy_helper.to_array(t).reshape(-1)) for n, t in small.items()}


def sites(model: onnx.ModelProto, operator: str) -> Iterator[Site]:
    """Yield the nodes of a standard ONNX operator in the main graph, with what is known at each."""
    typed = infer(shell(model))
    types, vectors = value_types(typed.graph), _vectors(model)
    scalars = _scalar_constants(vectors)
    yield from (Site(n, 0, types, scalars, vectors) for n in typed.graph.node if n.op_type == operator and not n.domain)


def _readers(nodes: Iterable[NodeProto]) -> dict[str, list[_Use]]:
    readers: dict[str, list[_Use]] = defaultdict(list)
    for node in nodes:
        for position, name in enumerate(node.input):
            readers[name].append(_Use(node, position))
        for body in bodies(node):
            for name, uses in _readers(body.node).items():
                readers[name].extend(uses)
    return readers


def _compared(use: _Use, constants: Mapping[str, int]) -> int | None:
    """Return the constant that the value is compared with; None if there is none."""
    return constants.get(use.node.input[1 - use.position]) if use.node.op_type in COMPARISONS else None


def _is_test(use: _Use) -> bool:
    """Return whether the node tests the value, as a comparison with 0, 1 or a computed value does."""
    entry = ops.operator(use.node.op_type, use.node.domain)
    if use.node.op_type in COMPARISONS or (entry is not None and isinstance(entry.role(use.position), TruthValues)):
        return True
    return use.node.op_type == ops.Cast and any(a.name == "to" and a.i in FLOATS for a in use.node.attribute)
