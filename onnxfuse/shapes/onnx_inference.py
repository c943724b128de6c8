"""ONNX's shape inference with bounded time and memory: it propagates integers, and a small file can multiply them.

Where a file's integers could exceed what shapes hold, inference runs in a process that can be killed
(`inference_process`).
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, lru_cache

import onnx
from google.protobuf.message import DecodeError
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, numpy_helper

from onnxfuse import ops
from onnxfuse.model.nested import bodies
from onnxfuse.ops import Trait, named
from onnxfuse.ops.inputs import SIZES, TargetShape
from onnxfuse.shapes import inference_process
from onnxfuse.shapes.inference_process import NOT_VALID, EndedError, InvalidModelError, OutOfTimeError, Request
from onnxfuse.support.errors import ModelError

LARGE = 50_000
"""Maximum elements of an integer vector that inference propagates in this process. It stores each as a message of 60
bytes, again for each value derived from it: 10 million, added to themselves, take a minute. Shapes have a few.
"""

SECONDS, SECONDS_PER_NODE = 10.0, 0.002
"""Time limit of that process. 8,000 nodes take 0.3 s on one slow core."""

MEMORY = 1_000_000_000
"""Memory limit of that process in bytes, beyond its own at the start."""

FOLLOWING, FOLLOWING_PER_BYTE = 100_000_000, 20
"""Memory limit in bytes while it propagates integers, and the addition per byte of the model: 1.5 million of them take
0.2 s, and a model is inferred six times until it is optimized.
"""

FOLLOWING_SECONDS = 1
"""CPU time limit for that, plus the above for each node: memory that the process has freed before is used first, and a
GB of it holds integers for 10 s.
"""

LONGEST = 2**28
"""Maximum elements of a vector created from integers in the file: longer ones are rejected."""


class ContradictionError(ModelError):
    """Operators and declarations of a model are inconsistent, according to ONNX's inference."""


def infer_shapes(light: ModelProto, *, strict: bool = False) -> ModelProto:
    """Return `light`, a model without large weights, with every type that ONNX infers; `strict`: errors raise.

    Raises ContradictionError if inference stops, ModelError if it exceeds its time limit.
    """
    if not may_multiply(light):
        try:
            return onnx.shape_inference.infer_shapes(light, strict_mode=strict, data_prop=True)
        except NOT_VALID as error:
            raise _not_valid(f"{error}") from None
        except DecodeError:
            raise ModelError(
                "the types of its values are nested deeper in branches and loops than protobuf can read",
                "Export the model with branches that nest less.",
            ) from None
    return _in_a_process(light, strict)


def infer_node(
    node: NodeProto, types: Mapping[str, onnx.TypeProto], numbers: Mapping[str, onnx.TensorProto], opset: int
) -> Mapping[str, onnx.TypeProto]:
    """Return the output types of one node from its input types; empty if ONNX infers nothing.

    `numbers` are its small constants. A node with inconsistent inputs has no types: ONNX's inference reports nothing
    there.
    """
    if not onnx.defs.has(node.op_type, opset) or any(v and v not in types for v in node.input):
        return {}
    if any(True for _ in bodies(node)) or _may_multiply(GraphProto(node=[node])):
        return {}
    schema = onnx.defs.get_schema(node.op_type, opset)
    inputs = {v: types[v] for v in node.input if v}
    data = {v: numbers[v] for v in node.input if v in numbers}
    try:
        return onnx.shape_inference.infer_node_outputs(
            schema, node, inputs, data, opset_imports=[onnx.helper.make_opsetid("", opset)]
        )
    except NOT_VALID:
        return {}


def may_multiply(model: ModelProto) -> bool:
    """Return whether the model's integers could exceed LARGE elements; False is certain."""
    return any(_may_multiply(graph) for graph in _graphs(model))


def _graphs(model: ModelProto) -> Iterator[GraphProto | onnx.FunctionProto]:
    waiting: list[GraphProto | onnx.FunctionProto] = [model.graph, *model.functions]
    while waiting:
        graph = waiting.pop()
        yield graph
        waiting += [a.g for n in graph.node for a in n.attribute if a.type == AttributeProto.GRAPH]


_EQUATION = re.compile(rb"[A-Za-z.,\-> ]*")
"""Characters of a valid Einsum equation; on some others ONNX 1.23's inference does not terminate."""


def _may_multiply(graph: GraphProto | onnx.FunctionProto) -> bool:
    equations = (a.s for n in graph.node if n.op_type == ops.Einsum for a in n.attribute if a.name == "equation")
    if not all(_EQUATION.fullmatch(equation) for equation in equations):
        return True
    declared = (*graph.value_info, *graph.input, *graph.output) if isinstance(graph, GraphProto) else graph.value_info
    lengths = [(value.name, _length(value.type.SerializeToString())) for value in declared]
    if any(length is None for _, length in lengths):
        return True
    tensors = {t.name: t for t in graph.initializer} if isinstance(graph, GraphProto) else {}
    tensors.update(
        {n.output[0]: a.t for n in graph.node if n.op_type == ops.Constant for a in n.attribute if a.HasField("t")}
    )
    numbers = {name: _largest(t) for name, t in tensors.items()}
    sizes = {n: math.prod(t.dims) for n, t in tensors.items()}
    for name, length in lengths:  # weights are inputs here
        if length:
            sizes.setdefault(name, length)
    return _grows(graph.node, sizes) or _may_be_large(graph.node, numbers)


@lru_cache(1 << 12)
def _length(declared: bytes) -> int | None:
    """Return the elements of a vector by its serialized type, 0 for other tensors; None if an extent is too large.

    The values of a model share a few types.
    """
    dims = [d.dim_value for d in onnx.TypeProto.FromString(declared).tensor_type.shape.dim]
    if any(d > (LARGE if len(dims) == 1 else 100 * LARGE) for d in dims):
        return None
    return dims[0] if len(dims) == 1 else 0


def _grows(nodes: "list[NodeProto]", sizes: dict[str, int]) -> bool:
    """Return whether Concats could exceed LARGE integers: a hundred doublings come to 2^100."""
    total = 0
    for node in nodes:
        if node.op_type == ops.Constant:
            continue
        if not _may_propagate(node.op_type):
            for value in node.output:
                sizes.pop(value, None)
            continue
        sizes_in = [sizes.get(v, 0) for v in node.input]
        if node.op_type == ops.Shape:
            size = 64  # no more axes than that
        elif node.op_type == ops.Concat:
            size = sum(sizes_in)
        elif node.op_type in _BROADCASTING and not all(sizes_in):
            size = 0
        else:
            size = max(sizes_in, default=0)
        sizes.update((v, size) for v in node.output)
        total += size
    return total > LARGE


def _may_be_large(nodes: "list[NodeProto]", numbers: Mapping[str, int]) -> bool:
    """Return whether a propagated value may have a large extent: a large integer in the graph, or a computed one."""
    computed: set[str] = set()
    large = {value for value, most in numbers.items() if most > LARGE}
    for node in nodes:
        if large:
            read = node.input[:1] if node.op_type == ops.Slice else node.input  # the bounds of a Slice only shorten
            if not large.isdisjoint(read):
                return True
        if computed and _propagates(node.op_type) and not computed.isdisjoint(node.input):
            return True
        sizes = _sizes_read(node.op_type, node.domain, len(node.input))
        if sizes and any(node.input[i] and node.input[i] not in numbers for i in sizes):
            computed.update(node.output)
    return False


_BROADCASTING = named(Trait.BROADCASTS)
"""Operators that propagate integers only if all operands are known: a bias added to an image is not."""


@cache
def _propagates(op: str) -> bool:
    """Return whether ONNX's inference propagates the integers that an operator reads."""
    reads_shape = op in named(Trait.READS_SHAPE)
    return not reads_shape and onnx.defs.has(op) and onnx.defs.get_schema(op).has_data_propagation_function


@cache
def _may_propagate(op: str) -> bool:
    """Return whether the result of an operator may be integers that ONNX's inference follows."""
    return op == ops.Shape or _propagates(op)


@lru_cache(1 << 12)
def _sizes_read(op: str, domain: str, count: int) -> tuple[int, ...]:
    """Return which of `count` inputs of an operator say how large the result is, not bounded by the size of another."""
    entry = ops.operator(op, domain)
    if entry is None or Trait.HAS_BODY in entry.traits:
        return ()
    roles = [entry.role(i) for i in range(count)]
    return tuple(i for i, r in enumerate(roles) if isinstance(r, SIZES) and not isinstance(r, TargetShape))


def _largest(tensor: onnx.TensorProto) -> int:
    """Return the largest magnitude in an integer tensor, 0 for others: they specify no size."""
    if tensor.data_type not in (onnx.TensorProto.INT64, onnx.TensorProto.INT32) or not math.prod(tensor.dims):
        return 0
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return 0
    array = numpy_helper.to_array(tensor)
    return max(abs(int(array.min())), abs(int(array.max())))


def _not_valid(words: str) -> ContradictionError:
    line = next((line.strip() for line in words.splitlines() if line.strip()), "shape inference fails")
    return ContradictionError(f"the model is not valid: {line}", "Check it with onnx.checker.")


def _in_a_process(light: ModelProto, strict: bool) -> ModelProto:
    """Run inference in another process, which is killed if it exceeds its limits.

    If propagating integers exceeds its memory or time, inference runs without: shapes alone do not need it.
    """
    data, more = light.SerializeToString(), SECONDS_PER_NODE * len(light.graph.node)
    seconds = SECONDS + more
    # Limits of processor time end it also where this process is gone.
    plain = Request(data, strict, following=False, seconds=seconds, busy=math.ceil(seconds) + 1, memory=MEMORY)
    following = replace(
        plain, following=True, busy=FOLLOWING_SECONDS + int(more), memory=FOLLOWING + FOLLOWING_PER_BYTE * len(data)
    )
    try:
        try:
            inferred, followed = inference_process.infer(following), True
        except EndedError:
            inferred, followed = inference_process.infer(plain), False
    except InvalidModelError as error:
        raise _not_valid(f"{error}") from None
    except OutOfTimeError:
        raise _endless(f"took more than {seconds:.0f} s") from None
    except EndedError:
        raise _endless(f"took more than {MEMORY / 1e9:.0f} GB") from None
    typed: ModelProto = ModelProto.FromString(inferred)
    too_long = None if followed else next(_too_long(typed), None)
    if too_long is not None:
        raise _endless(f"comes to {too_long}")
    return typed


def _endless(reason: str) -> ModelError:
    return ModelError(
        f"its shapes cannot be inferred: ONNX's shape inference {reason}",
        "A size in the file is far beyond any tensor, doubles from node to node, or an Einsum's equation is invalid: "
        "export it again.",
    )


def _too_long(inferred: ModelProto) -> Iterator[str]:
    """Yield each vector longer than LONGEST."""
    for graph in _graphs(inferred):
        for value in graph.value_info:
            dims = value.type.tensor_type.shape.dim
            if len(dims) == 1 and dims[0].dim_value > LONGEST:
                yield f"{dims[0].dim_value:.2g} elements in '{value.name}'"
