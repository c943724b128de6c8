"""Validation of untrusted models: invariants that the rest of the code relies on without checking again.

Whether the model computes something is decided by ONNX (`types.check`). This module checks what must hold before any
value from the file is used: valid versions, tensors whose data match their shapes, attributes of the types that their
operators declare, numbers of inputs and outputs that the operators allow, and functions that exist and do not recurse.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import onnx
from google.protobuf.message import Message
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from onnxfuse import ops
from onnxfuse.model import schema
from onnxfuse.model.functions import Key, called, key_of, short_domain
from onnxfuse.model.fused import DOMAIN
from onnxfuse.support.errors import ModelError
from onnxfuse.support.plurals import plural

AGAIN = "The file is damaged or malicious; export it again."

MOST_NODES = 1_000_000
"""Maximum nodes of a model with all functions inlined: shape inference and inlining walk each of them."""

MANY_NODES, MOST_COPIES = 100_000, 8
"""Beyond MANY_NODES, the maximum nodes with all functions inlined for each node of the file: modules of one kind share
a function, but functions that double at each level make 500,000 nodes, a minute and 2 GB of a file of 124 kB.
"""

MOST_DEPTH = 64
"""Maximum call depth of functions: all walks are recursive, onnx's evaluator several levels for each. Exporters nest
one per module level.
"""

MOST_BODIES = 31
"""Maximum nesting of branches and loops, with functions inlined. Protobuf reads messages up to 100 deep: a body takes
three levels, the type of a value in it five.
"""

MOST_AXES = 64
"""Maximum rank of a tensor: NumPy's limit."""

MOST_ELEMENTS = 2**48
"""Maximum declared elements of a tensor: beyond any memory, and far below where 64-bit sizes wrap around."""

LONGEST_NAME = 10_000
"""Maximum length of an extent's name. Exporters write expressions of some hundred characters."""

THE_FUSED_FILE = (
    "Take the file that onnxfuse wrote. ONNX Runtime, where it writes a session's model (optimized_model_filepath, its "
    "Compile API), leaves the functions out."
)

FEWER_AXES = "Export it with fewer, for example without axes of extent 1."

_TYPES = frozenset(int(v) for v in TensorProto.DataType.values()) - {TensorProto.UNDEFINED}

_FIELDS: dict[int, str] = {
    **dict.fromkeys((TensorProto.FLOAT, TensorProto.COMPLEX64), "float_data"),
    **dict.fromkeys((TensorProto.DOUBLE, TensorProto.COMPLEX128), "double_data"),
    **dict.fromkeys((TensorProto.UINT32, TensorProto.UINT64), "uint64_data"),
    TensorProto.INT64: "int64_data", TensorProto.STRING: "string_data",
}  # fmt: skip
"""Typed data field of each element type, where not raw bytes; all others use int32_data."""


def validate(model: ModelProto) -> None:
    """Raise ModelError if `model` is inconsistent; external data is not read.

    The model is not changed. The cost is one visit of each node, and of the length of each weight.
    """
    _texts(model)
    _versions(model)
    functions = _functions(model)
    for tensor in tensors(model):
        check_tensor(tensor)
    opsets = {short_domain(o.domain): o.version for o in model.opset_import}
    _graph(model.graph, opsets, functions, "")
    for function in model.functions:
        function_opsets = {short_domain(o.domain): o.version for o in function.opset_import}
        prefix = f"in function {function.domain}.{function.name}: "
        _named_once(function.input, f"{prefix}input")
        _nodes(function.node, function_opsets, functions, prefix, inside=True)


def _texts(message: Message) -> None:
    """Raise ModelError for a string that is not UTF-8: protobuf returns bytes for it, or raises on access."""
    if isinstance(message, TensorProto):  # its data is long, and not checked
        texts: list[object] = [message.name, message.doc_string]
        inside: list[Message] = [*message.external_data, *message.metadata_props]
    else:
        texts, inside = [], []
        for field, value in message.ListFields():
            if field.message_type is not None:
                inside += value if field.is_repeated else (value,)
            elif field.type == field.TYPE_STRING:
                texts += value if field.is_repeated else (value,)
    if bytes in map(type, texts):
        strange = next(t for t in texts if isinstance(t, bytes))
        raise ModelError(f"a name in it is not UTF-8: {strange[:40]!r}", AGAIN)
    for one in inside:
        _texts(one)


def tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Yield every tensor in the file: weights, those of branches and loops, and attributes."""
    waiting: list[GraphProto | FunctionProto] = [model.graph, *model.functions]
    while waiting:
        graph = waiting.pop()
        if isinstance(graph, FunctionProto):
            yield from (a.t for a in graph.attribute_proto if a.type == AttributeProto.TENSOR)
        else:
            yield from graph.initializer
            for sparse in graph.sparse_initializer:
                yield from (sparse.values, sparse.indices)
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == AttributeProto.TENSOR and not attribute.ref_attr_name:
                    yield attribute.t
                yield from attribute.tensors
                waiting += [attribute.g] if attribute.type == AttributeProto.GRAPH else attribute.graphs


def check_tensor(tensor: TensorProto) -> None:
    """Raise ModelError unless the tensor has a known type and as many elements as its shape states.

    For external data only type and shape are checked.
    """
    label = f"weight '{tensor.name}'" if tensor.name else "a tensor without a name"
    if tensor.data_type not in _TYPES:
        raise ModelError(f"{label} is of the element type {tensor.data_type}, which ONNX does not have", AGAIN)
    if len(tensor.dims) > MOST_AXES:
        raise ModelError(f"{label} has {len(tensor.dims)} axes, at most {MOST_AXES} are allowed", FEWER_AXES)
    elements = math.prod(tensor.dims)
    if any(d < 0 for d in tensor.dims) or elements > MOST_ELEMENTS:
        raise ModelError(f"{label} has the shape {_shown(tensor.dims)}, which no tensor can have", AGAIN)
    if tensor.data_location == TensorProto.EXTERNAL:
        return
    expected = math.ceil(elements * bits(tensor.data_type) / 8)
    if tensor.HasField("raw_data"):
        actual = len(tensor.raw_data)
        if actual == expected and tensor.data_type != TensorProto.STRING:
            return
        unit = "bytes"
    else:
        field = _FIELDS.get(tensor.data_type, "int32_data")
        actual, unit = len(getattr(tensor, field)), f"values in {field}"
        halves = tensor.data_type in (TensorProto.COMPLEX64, TensorProto.COMPLEX128)
        packed = bits(tensor.data_type) if bits(tensor.data_type) < 8 else 8
        expected = elements * 2 if halves else math.ceil(elements * packed / 8)
        if actual == expected:
            return
    raise ModelError(f"{label} holds {actual} {unit}, but its shape {_shown(tensor.dims)} needs {expected}", AGAIN)


def bits(dtype: int) -> int:
    """Return the bits of an element in memory; two 4-bit elements share a byte. A string counts as 8."""
    name = TensorProto.DataType.Name(dtype)
    if dtype == TensorProto.STRING:
        return 8
    for suffix, width in (("INT2", 2), ("INT4", 4), ("FLOAT4E2M1", 4)):
        if name.endswith(suffix):
            return width
    return int(onnx.helper.tensor_dtype_to_np_dtype(dtype).itemsize) * 8


def _shown(dims: Sequence[int]) -> str:
    return str(list(dims)) if len(dims) <= 16 else f"[{', '.join(map(str, dims[:16]))}, ...]"


# ---- versions and functions


def _versions(model: ModelProto) -> None:
    if not 1 <= model.ir_version <= 2**31 - 1:
        raise ModelError(f"its IR version is {model.ir_version}, which does not exist", AGAIN)
    for holder, prefix in ((model, ""), *((f, f"function {f.domain}.{f.name}: ") for f in model.functions)):
        for opset in holder.opset_import:
            if not 1 <= opset.version <= 2**31 - 1:
                name = opset.domain or "ai.onnx"
                raise ModelError(f"{prefix}version {opset.version} of the operator set {name} does not exist", AGAIN)


def _functions(model: ModelProto) -> dict[Key, FunctionProto]:
    """Return the model's functions by key; raises ModelError if they are recursive, or inline to too many nodes."""
    by_key: dict[Key, FunctionProto] = {}
    for function in model.functions:
        key = key_of(function)
        if key in by_key:
            raise ModelError(f"the function {function.domain}.{function.name} is defined twice", AGAIN)
        if function.domain == DOMAIN and function.overload:  # kernels are registered by name, with one body each
            raise ModelError(f"the function {function.domain}.{function.name} has an overload", AGAIN)
        by_key[key] = function
    sizes = dict[Key, int]()
    depths = dict[Key, int]()
    nested = dict[Key, int]()
    for key in by_key:
        _opened(key, by_key, sizes, depths, nested)
    bodies = _nesting(model.graph.node, nested)
    if bodies > MOST_BODIES:
        raise ModelError(
            f"its branches and loops nest {bodies} deep, at most {MOST_BODIES} are allowed",
            "Export the model with branches that nest less.",
        )
    deepest = max(depths.values(), default=0)
    if deepest > MOST_DEPTH:
        raise ModelError(
            f"its functions call each other {deepest} deep, at most {MOST_DEPTH} are allowed",
            "Export the model with functions that nest less.",
        )
    total = _count(model.graph.node, sizes)
    # The body of a fused op is not inlined where a model is optimized.
    opened = _count(model.graph.node, {key: size for key, size in sizes.items() if key[0] != DOMAIN})
    stored = sum(_count(of.node, {}) for of in (model.graph, *model.functions))
    copies = max(MANY_NODES, MOST_COPIES * stored)
    if total > MOST_NODES or opened > copies:
        raise ModelError(
            f"its functions expand to {total:.3g} nodes, at most {min(copies, MOST_NODES)} are allowed",
            "Functions that call functions multiply: export the model with fewer of them.",
        )
    return by_key


def _opened(
    key: Key,
    functions: dict[Key, FunctionProto],
    sizes: dict[Key, int],
    depths: dict[Key, int],
    nested: dict[Key, int],
) -> None:
    """Record for each function its node count, call depth and body nesting with all calls inlined; innermost first."""
    waiting = [key]
    active: set[Key] = set()
    while waiting:
        top = waiting[-1]
        if top in sizes:
            waiting.pop()
            continue
        calls = {called(n) for n in _every_node(functions[top].node)} & functions.keys()
        pending = [c for c in calls if c not in sizes]
        if not pending:
            sizes[top] = _count(functions[top].node, sizes)
            depths[top] = 1 + max((depths[c] for c in calls), default=0)
            nested[top] = _nesting(functions[top].node, nested)
            active.discard(top)
            waiting.pop()
        elif top in active:
            raise ModelError(
                f"its local functions cannot be inlined: {top[0]}.{top[1]} calls itself", "Export it again."
            )
        else:
            active.add(top)
            waiting += pending


def _count(nodes: Sequence[NodeProto], sizes: dict[Key, int]) -> int:
    return sum(sizes.get(called(n), 1) for n in _every_node(nodes))


def _nesting(nodes: Sequence[NodeProto], nested: dict[Key, int]) -> int:
    """Return the nesting depth of bodies, including those of called functions."""
    deepest, waiting = 0, [(nodes, 0)]
    while waiting:
        inner, level = waiting.pop()
        for node in inner:
            deepest = max(deepest, level + nested.get(called(node), 0))
            for attribute in node.attribute:
                if attribute.type == AttributeProto.GRAPH:
                    waiting.append((attribute.g.node, level + 1))
                waiting += [(g.node, level + 1) for g in attribute.graphs]
        deepest = max(deepest, level)
    return deepest


def _every_node(nodes: Sequence[NodeProto]) -> Iterator[NodeProto]:
    """Yield nodes and those of their nested bodies."""
    waiting = [nodes]
    while waiting:
        for node in waiting.pop():
            yield node
            for attribute in node.attribute:
                if attribute.type == AttributeProto.GRAPH:
                    waiting.append(attribute.g.node)
                waiting += [g.node for g in attribute.graphs]


# ---- graphs and nodes

_Functions = dict[Key, FunctionProto]


def _graph(
    graph: GraphProto, opsets: dict[str, int], functions: _Functions, prefix: str, *, inside: bool = False
) -> None:
    _named_once([i.name for i in graph.input], f"{prefix}input")
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.HasField("tensor_type"):
            element = value.type.tensor_type.elem_type
            if element not in _TYPES and element != TensorProto.UNDEFINED:
                raise ModelError(
                    f"{prefix}'{value.name}' is of the element type {element}, which ONNX does not have", AGAIN
                )
            axes = len(value.type.tensor_type.shape.dim)
            if axes > MOST_AXES:
                raise ModelError(f"{prefix}'{value.name}' has {axes} axes, at most {MOST_AXES} are allowed", FEWER_AXES)
            longest = max((len(d.dim_param) for d in value.type.tensor_type.shape.dim), default=0)
            if longest > LONGEST_NAME:
                raise ModelError(
                    f"{prefix}'{value.name}' names an extent by {plural(longest, 'letter')}, at "
                    f"most {LONGEST_NAME} are allowed",
                    "Export it with short names.",
                )
    _nodes(graph.node, opsets, functions, prefix, inside=inside)


def _named_once(names: Sequence[str], subject: str) -> None:
    if len(set(names)) < len(names):
        twice, _ = Counter(names).most_common(1)[0]
        raise ModelError(f"{subject} '{twice}' is defined twice", AGAIN)


def _nodes(
    nodes: Sequence[NodeProto], opsets: dict[str, int], functions: _Functions, prefix: str, *, inside: bool
) -> None:
    """Check nodes; `inside` a function, an attribute may refer to the call's, else to its default."""
    for node in nodes:
        where = f"{prefix}{node.op_type} '{node.name or next((o for o in node.output if o), '')}'"
        domain = short_domain(node.domain)
        function = functions.get(called(node))
        if function is not None:
            _arity(node, (0, len(function.input)), (0, len(function.output)), where)
        elif domain == DOMAIN:
            raise ModelError(f"{where}: the model has no function {DOMAIN}.{node.op_type}", THE_FUSED_FILE)
        if not any(node.output):
            raise ModelError(f"{where} computes no value", AGAIN)
        form = None if function is not None else _form(node.op_type, domain, opsets.get(domain, 1))
        if form is not None:
            _arity(node, form.inputs, form.outputs, where)
        _attributes(node, form, where, inside=inside)
        for attribute in node.attribute:
            bodies = [attribute.g] if attribute.type == AttributeProto.GRAPH else attribute.graphs
            for body in bodies:
                _graph(body, opsets, functions, f"{where}: ", inside=inside)


@dataclass(frozen=True)
class _Signature:
    """An operator's signature by ONNX's schema."""

    inputs: tuple[int, int]
    """Minimum and maximum."""
    outputs: tuple[int, int]
    attributes: dict[str, int]
    """Attribute types."""
    required: tuple[str, ...]
    """Attributes without a default."""


@cache
def _form(op: str, domain: str, version: int) -> _Signature | None:
    """Return an operator's signature, None for one that ONNX does not define: its owner checks it."""
    op_schema = schema.find(op, domain, version)
    if op_schema is None:
        return None
    return _Signature(
        (op_schema.min_input, op_schema.max_input),
        (op_schema.min_output, op_schema.max_output),
        {
            name: int(a.type.value)  # type: ignore[attr-defined]  # an enumeration of the binding, which its stubs do not know
            for name, a in op_schema.attributes.items()
        },
        tuple(name for name, a in op_schema.attributes.items() if a.required),
    )


def _arity(node: NodeProto, inputs: tuple[int, int], outputs: tuple[int, int], where: str) -> None:
    for kind, names, (low, high) in (("input", node.input, inputs), ("output", node.output, outputs)):
        if not low <= len(names) <= high:
            expected = f"{low}" if low == high else f"{low} to {high}" if high < 2**31 - 1 else f"{low} or more"
            raise ModelError(f"{where} has {plural(names, kind)}, it takes {expected}", AGAIN)


_KINDS = frozenset(AttributeProto.AttributeType.values()) - {AttributeProto.UNDEFINED}

_HELD = {
    AttributeProto.GRAPH: "g", AttributeProto.TENSOR: "t", AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    AttributeProto.TYPE_PROTO: "tp",
}  # fmt: skip
"""Attribute types with a single message field, which must be present."""


def _attributes(node: NodeProto, form: _Signature | None, where: str, *, inside: bool) -> None:
    _named_once([a.name for a in node.attribute], f"{where}: attribute")
    for attribute in node.attribute:
        kind = attribute.type
        if kind not in _KINDS:
            raise ModelError(
                f"{where}: attribute '{attribute.name}' is of the type {kind}, which does not exist", AGAIN
            )
        if attribute.ref_attr_name and not inside:
            raise ModelError(
                f"{where}: attribute '{attribute.name}' stands for '@{attribute.ref_attr_name}', "
                "which only a node of a function's body may",
                AGAIN,
            )
        if kind in _HELD and not attribute.ref_attr_name and not attribute.HasField(_HELD[kind]):
            raise ModelError(f"{where}: attribute '{attribute.name}' is empty", AGAIN)
        declared = None if form is None else form.attributes.get(attribute.name)
        if declared is not None and declared != kind:
            actual, expected = (AttributeProto.AttributeType.Name(k) for k in (kind, declared))
            raise ModelError(
                f"{where}: attribute '{attribute.name}' is of the type {actual}, it takes {expected}", AGAIN
            )
    if form is None:
        return
    names = {a.name for a in node.attribute}
    lacking = next((name for name in form.required if name not in names), None)
    if lacking is not None:
        raise ModelError(f"{where} lacks its attribute '{lacking}'", AGAIN)
    if node.op_type == ops.Constant and len(names & form.attributes.keys()) != 1:
        raise ModelError(f"{where} holds {plural(names, 'value')}, it takes one", AGAIN)
