"""Refine extents that ONNX's inference leaves unknown, by propagating names through shape arithmetic.

Exporters write the target of a Reshape as `Concat(Gather(Shape(x), 0), ..., -1)`. Here each extent is an integer
expression, so a -1 resolves to a quotient in which names cancel, and an unknown extent keeps one identity wherever it
occurs.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, numpy_helper

from onnxfuse import ops
from onnxfuse.model.functions import Key, called, functions_of
from onnxfuse.model.schema import opset_of
from onnxfuse.shapes.onnx_inference import ContradictionError, infer_node, infer_shapes, may_multiply
from onnxfuse.shapes.output_shapes import results_of
from onnxfuse.shapes.stand_ins import misjudged
from onnxfuse.shapes.types import (
    INVENTED,
    Dim,
    Shape,
    ValueType,
    invented,
    is_unknown,
    tensor_info,
    type_of,
    value_info,
    value_types,
    write_extent,
)
from onnxfuse.shapes.value_facts import LIMIT, Numbers, Ratio, ValueFacts
from onnxfuse.symbolic.integer import Int, IntLike, bounds, content, solved
from onnxfuse.symbolic.parsing import LONGEST, parsed

PASSES = 10
"""Maximum passes for unifying names; a model's attentions usually determine them in the first."""


def rename(graph: onnx.GraphProto) -> None:
    """Write the extents that `graph` declares in normal form, so that equal extents have one name."""
    for value in (*graph.input, *graph.value_info, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                write_extent(dim, parsed(dim.dim_param))


def refine(model: onnx.ModelProto) -> None:
    """Fill in extents of `model`'s main graph that `onnx.shape_inference` left unknown in `value_info`.

    If two names turn out to be equal, all extents are recomputed.
    """
    for _ in range(PASSES):
        equal = _refine(model)
        if not equal:
            return
        _call(model.graph, equal)


def _refine(model: onnx.ModelProto) -> dict[str, IntLike]:
    """Fill in extents in one pass; return a mapping of invented names to the extents that they equal."""
    graph = model.graph
    types, functions = value_types(graph), functions_of(model)
    facts = ValueFacts(opset_of(model), {name: t.shape for name, t in types.items()})
    for tensor in graph.initializer:
        facts.remember(tensor.name, tensor)
    declared = {d.dim_param for i in graph.input for d in i.type.tensor_type.shape.dim}
    refined: dict[str, ValueType] = {}
    equal: dict[str, IntLike] = {}
    more: set[str] = set()

    def learn(names: Sequence[str], inferred: Sequence[Shape]) -> None:
        for name, shape in zip(names, inferred, strict=False):
            if not name:
                continue
            before = facts.shapes.get(name)
            if not _open(before):
                continue
            merged = _merged(name, before, shape)
            if merged is not None and merged != before and name in types:
                refined[name] = ValueType(types[name].dtype, merged)
            if _open(before) > _open(merged):
                more.add(name)
            facts.shapes[name] = merged

    for node in graph.node:
        learn(node.output, _results(facts, node))
        more.update(v for v in node.output if node.op_type != ops.Constant and facts.numbers.get(v) is not None)
        if not more.isdisjoint(node.input) and any(_open(facts.shapes.get(v)) for v in node.output):
            learn(node.output, _onnx_shapes(facts, node, types) or _call_shapes(facts, node, types, functions))
        for zero in _multiplied(facts, node):
            name, extent = _solved(zero, declared) or ("", 0)
            if name and (isinstance(extent, int) or equal.keys().isdisjoint(extent.names)):
                equal.setdefault(name, extent)
    _write(graph, refined)
    return equal


def _multiplied(facts: ValueFacts, node: NodeProto) -> Iterator[IntLike]:
    """Yield what is zero because a product's operands agree: differences of its terms, and of its batch extents.

    Batch extents 4*a and 4*b are equal, since neither is 1, the only extent that broadcasts. So are an Einsum's batch
    and heads merged into one axis.
    """
    shapes = [facts.shapes.get(v) for v in node.input] if node.op_type == ops.MatMul and not node.domain else []
    left, right = (s or () for s in shapes) if len(shapes) == 2 else ((), ())
    if min(len(left), len(right)) < 2:
        return
    pairs = [(left[-1], right[-2], 1), *((a, b, 2) for a, b in zip(left[-3::-1], right[-3::-1], strict=False))]
    for a, b, least in pairs:
        if a is not None and b is not None and a != b and min(content(a), content(b)) >= least:
            yield a - b


def _solved(zero: IntLike, declared: Collection[str]) -> tuple[str, IntLike] | None:
    """Return an invented name that an equation determines, and what it equals; None if there is none.

    Names that inputs declare are not replaced; of two invented names the first is.
    """
    for name in zero.names if isinstance(zero, Int) else ():
        if name.startswith(INVENTED) and name not in declared:
            rest = solved(zero, name)
            if rest is not None:
                return name, rest
    return None


def _call(graph: onnx.GraphProto, equal: Mapping[str, IntLike]) -> None:
    """Replace names wherever they occur in an extent."""
    for value in (*graph.value_info, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            extent = parsed(dim.dim_param) if dim.dim_param else 0
            if isinstance(extent, Int) and not equal.keys().isdisjoint(extent.names):
                write_extent(dim, extent.substitute(**equal))


@lru_cache(1 << 12)
def _open(shape: Shape) -> float:
    """Return the number of unknown extents; cached, as the values of a model share a few shapes."""
    return math.inf if shape is None else sum(map(is_unknown, shape))


def _onnx_shapes(facts: ValueFacts, node: NodeProto, types: Mapping[str, ValueType]) -> Sequence[Shape]:
    """Return ONNX's inference for one node, with the refined types of its inputs.

    Its inference over the whole graph did not have the extents and integers that were found only here.
    """
    if node.domain not in ("", "ai.onnx") or misjudged(node, facts.opset):
        return []
    inputs = {v: value_info(v, ValueType(types[v].dtype, facts.shapes[v])).type
             for v in node.input if v in types and v in facts.shapes}  # fmt: skip
    numbers = {v: tensor for v in node.input if (tensor := _constant(facts, v, types)) is not None}
    inferred = infer_node(node, inputs, numbers, facts.opset)
    return [type_of(inferred[v]).shape if v in inferred else None for v in node.output]


def _call_shapes(
    facts: ValueFacts, node: NodeProto, types: Mapping[str, ValueType], functions: Mapping[Key, onnx.FunctionProto]
) -> Sequence[Shape]:
    """Return ONNX's inference for a call of a function without attributes, with the refined types of its inputs."""
    function = functions.get(called(node))
    if function is None or function.attribute or function.attribute_proto:
        return []
    inner = functions.values() if any(called(n) in functions for n in function.node) else ()
    inputs = [
        value_info(v, ValueType(types[at].dtype, facts.shapes.get(at)))
        for v, at in zip(function.input, node.input, strict=False)
        if at in types
    ]
    outputs = [onnx.ValueInfoProto(name=v) for v in function.output]
    body = onnx.GraphProto(name=function.name, node=function.node, input=inputs, output=outputs)
    model = onnx.ModelProto(ir_version=10, opset_import=function.opset_import, functions=inner, graph=body)
    return _output_shapes(model.SerializeToString(deterministic=True))


@lru_cache(1 << 10)
def _output_shapes(model: bytes) -> Sequence[Shape]:
    """Return the shapes of the outputs of a body; equal layers have equal ones."""
    light = onnx.ModelProto.FromString(model)
    if may_multiply(light):  # it would need a child process
        return []
    try:
        inferred = infer_shapes(light)
    except ContradictionError:
        return []
    return [type_of(output.type).shape for output in inferred.graph.output]


def _constant(facts: ValueFacts, name: str, types: Mapping[str, ValueType]) -> TensorProto | None:
    """Return a value as a constant, from the file or by evaluating its producers."""
    array, numbers = facts.constants.get(name), facts.numbers.get(name)
    if array is None and numbers is not None and all(isinstance(d, int) for d in numbers.reshape(-1)):
        dtype = types[name].dtype if name in types else TensorProto.UNDEFINED
        array = numbers.astype(onnx.helper.tensor_dtype_to_np_dtype(dtype)) if dtype in _INTEGERS else None
    return None if array is None else numpy_helper.from_array(array)


_INTEGERS = (TensorProto.INT64, TensorProto.INT32)


def _results(facts: ValueFacts, node: NodeProto) -> Sequence[Shape]:
    """Return the output shapes, and record integer elements."""
    if node.op_type == ops.Constant:
        facts.hold(node)
        return []
    shapes, elements = results_of(facts, node)
    if elements is not None and node.output[0]:
        facts.numbers[node.output[0]] = numbers = _followed(elements.array)
        if numbers is not None and elements.floats:
            facts.reals.add(node.output[0])
    return [_bounded(shape) for shape in shapes]


@lru_cache(1 << 12)
def _bounded(dims: Shape) -> Shape:
    """Return elements of bounded length, that of a shape: otherwise Concats would accumulate; cached like `_open`."""
    if dims is None or len(dims) > LIMIT:
        return None
    return tuple(None if d is None or bounds(d)[1] < 0 else _short(d) for d in dims)


def _followed(numbers: Numbers) -> Numbers:
    """Return elements that may be part of a shape."""
    if numbers is None or numbers.size > LIMIT:
        return None
    followed = [d if _short(d.above if isinstance(d, Ratio) else d) is not None else None for d in numbers.reshape(-1)]
    return np.array(followed, object).reshape(numbers.shape)


def _short(d: Dim) -> Dim:
    if isinstance(d, Int):
        return d if len(str(d)) <= LONGEST else None
    return d if d is not None and abs(d) < 2**63 else None


def _write(graph: onnx.GraphProto, refined: dict[str, ValueType]) -> None:
    for info in (*graph.value_info, *graph.output):
        if info.name in refined:
            shape = refined[info.name].shape
            assert shape is not None
            info.CopyFrom(tensor_info(info.name, refined[info.name].dtype, shape))


def _merged(name: str, first: Shape, own: Shape) -> Shape:
    if first is None:
        first = None if own is None else tuple(None for _ in own)
    if first is None:
        return None
    if own is None or len(own) != len(first):
        own = tuple(None for _ in first)
    return tuple(
        a if a is not None and (b is None or not is_unknown(a)) else invented(name, axis) if b is None else b
        for axis, (a, b) in enumerate(zip(first, own, strict=True))
    )
