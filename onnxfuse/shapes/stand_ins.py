"""Types of operators that ONNX's inference does not support: standard nodes substitute for them while inference runs.

The one table of output types for ONNX Runtime's contrib operators and those of ai.onnx.ml: an entry gives ONNX nodes of
the same types and shapes, as far as these are determined. The substitutes compute nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, defs, helper

from onnxfuse import ops
from onnxfuse.model.nested import bodies, captured, nodes_of
from onnxfuse.ops import ENTRIES, Trait
from onnxfuse.ops.shapes.windows import pool_windows, pooled

PREFIX = "onnxfuse.stand_in."
"""Name prefix of values that exist only during type inference."""

TYPED_SINCE: dict[str, int] = {
    ops.LayerNormalization: 17,
    ops.RMSNormalization: 23,
    ops.RotaryEmbedding: 23,
    ops.Gelu: 20,
}
"""First operator set in which ONNX's inference supports an operator of the default domain."""

KEEPS_NAMES = 10
"""Operator set whose inference propagates a symbolic extent through a Slice."""

BROADCASTS_SINCE = 7
"""First operator set with numpy-style broadcasting of two operands."""


@dataclass
class Standing:
    """Original nodes of a graph, and the position where each one's substitutes begin."""

    starts: list[int] = field(default_factory=list)
    nodes: list[NodeProto | None] = field(default_factory=list)
    """The original node if it is substituted; None if it stays."""
    inner: list[list["Standing"]] = field(default_factory=list)
    """The same for each node's bodies."""


class StandIns:
    """Substitute nodes for a model's unsupported operators during type inference."""

    def __init__(
        self, graph: GraphProto, opset: int, *, of_onnx: bool = False, sliced: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        """Insert the substitutes in `graph` and its nested bodies; `of_onnx`: also for operators of ONNX itself.

        `sliced`: axes of Slice outputs whose extents must not be inferred.
        """
        self.opset = opset
        self.sliced = sliced or {}
        self.of_onnx = of_onnx
        self.weights: dict[str, tuple[int, tuple[int | None, ...]]] = {}
        self.ranks = {i.name: len(i.type.tensor_type.shape.dim) for i in graph.input}
        self.ranks |= {t.name: len(t.dims) for t in graph.initializer}
        """Of the weights and inputs of the main graph."""
        self._count = 0
        self.doubted: set[str] = set()
        """Values whose extents ONNX's inference, or a file with types from it, may have wrong."""
        needed = any((n.domain, n.op_type) in _ENTRIES for n in nodes_of(graph))
        self._standing = self._put(graph) if needed else None
        if self.doubted:
            _forget_extents(graph, self.doubted)
        for name, (dtype, shape) in self.weights.items():
            graph.input.append(helper.make_tensor_value_info(name, dtype, shape))

    def take_out(self, inferred: GraphProto) -> None:
        """Restore the original nodes in the inferred model; the types of their outputs stay."""
        for index in range(len(inferred.input) - 1, -1, -1):
            if inferred.input[index].name in self.weights:
                del inferred.input[index]
        if self._standing is not None:
            _restore(inferred, self._standing)

    def weight(self, *shape: int | None, dtype: int = TensorProto.FLOAT) -> str:
        """Return the name of a value of such a shape."""
        name = f"{PREFIX}{dtype}[{','.join('?' if d is None else str(d) for d in shape)}]"
        self.weights[name] = dtype, shape
        return name

    def fresh(self) -> str:
        """Return a name for a value between substitute nodes."""
        self._count += 1
        return f"{PREFIX}{self._count}"

    def _put(self, graph: GraphProto) -> Standing:
        standing, made, any_made = Standing(), list[NodeProto](), False
        for node in graph.node:
            standing.inner.append([self._put(body) for body in bodies(node)])
            nodes = self._for(node)
            standing.starts.append(len(made))
            own = NodeProto()
            own.CopyFrom(node)
            standing.nodes.append(own if nodes else None)
            any_made |= bool(nodes)
            made += nodes or [own]
        if any_made:
            del graph.node[:]
            graph.node.extend(made)
        return standing

    def _for(self, node: NodeProto) -> list[NodeProto]:
        since = TYPED_SINCE.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        entry = _ENTRIES.get((node.domain, node.op_type))
        if (
            entry is None
            or (self.of_onnx and (node.domain or not defs.has(node.op_type, self.opset)))
            or (since is not None and since <= self.opset)
            or not node.input
            or not node.input[0]
        ):
            return []
        return list(entry(self, node, {a.name: helper.get_attribute_value(a) for a in node.attribute}))


_POOLS = frozenset(str(e) for e in ops.with_traits(Trait.SLIDES) if e.shape is pooled)


def misjudged(node: NodeProto, opset: int) -> bool:
    """Return whether ONNX's inference may report another shape for a standard node than ONNX Runtime computes."""
    if node.op_type in _POOLS:
        known = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        return any(window.told_otherwise(opset) for window in pool_windows(known))
    return node.op_type == ops.PRelu or (node.op_type == ops.Slice and opset == KEEPS_NAMES)


def _forget_extents(graph: GraphProto, behind: set[str]) -> None:
    """Remove the extents that `graph` and its bodies declare for these values, and for all values computed from them.

    The latter are added to the values. Ranks stay.
    """
    for node in graph.node:
        read = not behind.isdisjoint((*node.input, *captured(node)))
        for body in bodies(node):
            if read:
                behind.update(i.name for i in body.input)
            _forget_extents(body, behind)
            read = read or any(o.name in behind for o in body.output)
        if read:
            behind.update(o for o in node.output if o)
    for value in (*graph.value_info, *graph.output):
        for dim in value.type.tensor_type.shape.dim if value.name in behind else ():
            dim.Clear()


def _restore(graph: GraphProto, standing: Standing) -> None:
    found = list[NodeProto]()
    for start, own, inner in zip(standing.starts, standing.nodes, standing.inner, strict=True):
        node = NodeProto()
        node.CopyFrom(graph.node[start] if own is None else own)
        if own is None:
            for body, below in zip(bodies(node), inner, strict=True):
                _restore(body, below)
        found.append(node)
    if any(own is not None for own in standing.nodes) or any(standing.inner):
        del graph.node[:]
        graph.node.extend(found)
    for index in range(len(graph.value_info) - 1, -1, -1):
        if graph.value_info[index].name.startswith(PREFIX):
            del graph.value_info[index]


# ---- substitutes by operator

Attributes = dict[str, Any]
Entry = Callable[[StandIns, NodeProto, Attributes], Iterator[NodeProto]]


def _same(*pairs: tuple[int, int]) -> Entry:
    """Return the entry of an operator whose outputs have the type of an input: (output, input)."""

    def nodes(_: StandIns, node: NodeProto, __: Attributes) -> Iterator[NodeProto]:
        for output, read in pairs:
            if len(node.output) > output and node.output[output] and len(node.input) > read and node.input[read]:
                yield helper.make_node(ops.Identity, [node.input[read]], [node.output[output]])

    return nodes


def _cast(made: StandIns, node: NodeProto, _: Attributes) -> Iterator[NodeProto]:
    yield helper.make_node(ops.Cast, node.input[:1], node.output[:1], to=TensorProto.FLOAT)


def _packed_product(made: StandIns, node: NodeProto, known: Attributes) -> Iterator[NodeProto]:
    """A product by a weight in a packed low-bit format: [..., K] becomes [..., N]."""
    yield helper.make_node(
        ops.MatMul, [node.input[0], made.weight(_number(known, "K"), _number(known, "N"))], node.output[:1]
    )


def _fused_product(made: StandIns, node: NodeProto, known: Attributes) -> Iterator[NodeProto]:
    """A product with optional transposes: with a transposed left factor or batch axes, only the type is inferred."""
    if any(known.get(k) for k in ("transA", "transBatchA", "transBatchB")):
        yield from _of_rank(0, None)(made, node, known)
    elif not known.get("transB"):
        yield helper.make_node(ops.MatMul, node.input[:2], node.output[:1])
    elif made.ranks.get(node.input[1]) == 2:
        yield from _last_axis_open(made, node, known)
    else:
        yield from _of_rank(0, None)(made, node, known)


def _sliced(made: StandIns, node: NodeProto, _: Attributes) -> Iterator[NodeProto]:
    """A Slice of operator set 10, for which ONNX's inference keeps symbolic extents unchanged."""
    axes = made.sliced.get(node.output[0])
    if axes:
        made.doubted.add(node.output[0])
        yield helper.make_node(ops.Slice, node.input, [value := made.fresh()])
        yield from _open_along(made, value, node.output[0], axes)


def _open_along(made: StandIns, value: str, output: str, axes: Sequence[int]) -> Iterator[NodeProto]:
    """Yield nodes with a value's type, and unknown extents along some axes."""
    some = made.weight(None, dtype=TensorProto.INT64)
    for count, axis in enumerate(axes, 1):
        name = output if count == len(axes) else made.fresh()
        yield helper.make_node(ops.Gather, [value, some], [name], axis=axis)
        value = name


def _sloped(made: StandIns, node: NodeProto, _: Attributes) -> Iterator[NodeProto]:
    """A PRelu: ONNX gives it the shape of its input, ONNX Runtime the broadcast shape of both operands."""
    if made.opset >= BROADCASTS_SINCE:
        yield helper.make_node(ops.Mul, node.input, node.output)


def put_in_functions(model: ModelProto) -> dict[int, FunctionProto]:
    """Put products in place of PRelus in functions, and return these as they were, by their index."""
    found = dict[int, FunctionProto]()
    for number, function in enumerate(model.functions):
        of_onnx = next((o.version for o in function.opset_import if o.domain in ("", "ai.onnx")), 0)
        sloped = [n for n in function.node if n.op_type == ops.PRelu and not n.domain]
        if sloped and of_onnx >= BROADCASTS_SINCE:
            found[number] = FunctionProto.FromString(function.SerializeToString())
            for node in sloped:
                node.op_type = ops.Mul
    return found


def _known_as(op: str, inputs: int, *attributes: str) -> Entry:
    """Return the entry of an operator like a standard one, with these inputs and attributes, and extra outputs."""

    def nodes(_: StandIns, node: NodeProto, known: Attributes) -> Iterator[NodeProto]:
        kept = {k: v for k, v in known.items() if k in attributes}
        yield helper.make_node(op, node.input[:inputs], node.output[:1], **kept)

    return nodes


def _scaled_product(made: StandIns, node: NodeProto, _: Attributes) -> Iterator[NodeProto]:
    """A product of 8-bit factors with a float result of its scales' type: a Where converts a factor to that type."""
    for factor, read in ((left := made.fresh(), node.input[0]), (right := made.fresh(), node.input[1])):
        yield from _with_type(made, read, node.input[2], factor)
    yield helper.make_node(ops.MatMul, [left, right], node.output[:1])


def _quantizing_product(made: StandIns, node: NodeProto, _: Attributes) -> Iterator[NodeProto]:
    """A product of floats by an 8-bit weight."""
    yield from _with_type(made, node.input[1], node.input[0], weight := made.fresh())
    yield helper.make_node(ops.MatMul, [node.input[0], weight], node.output[:1])


def _with_type(made: StandIns, value: str, like: str, output: str) -> Iterator[NodeProto]:
    """Yield nodes with the shape of one value and the type of another, at any operator set."""
    yield helper.make_node(ops.Reshape, [like, made.weight(0, dtype=TensorProto.INT64)], [scalar := made.fresh()])
    yield helper.make_node(ops.Shape, [value], [shape := made.fresh()])
    yield helper.make_node(ops.Expand, [scalar, shape], [output])


def _of_rank(read: int, rank: int | None) -> Entry:
    """Return the entry of an operator whose result has the type of an input, and a known rank only."""

    def nodes(made: StandIns, node: NodeProto, _: Attributes) -> Iterator[NodeProto]:
        shape = made.weight(rank, dtype=TensorProto.INT64)
        yield helper.make_node(ops.Reshape, [node.input[read], shape], node.output[:1])

    return nodes


def _pooled(made: StandIns, node: NodeProto, known: Attributes) -> Iterator[NodeProto]:
    """A pool for which ONNX infers other extents than ONNX Runtime along some axes: those are left unknown.

    With `ceil_mode`, ONNX's inference counts a last window that lies entirely in the padding, or beyond it, until
    operator set 22; for dilated windows with SAME padding ONNX Runtime pads as for the undilated window.
    """
    doubted = [axis for axis, window in enumerate(pool_windows(known)) if window.told_otherwise(made.opset)]
    if not doubted:
        return
    kept = {k: v for k, v in known.items() if k in defs.get_schema(node.op_type, made.opset).attributes}
    ends = [made.fresh() if o else "" for o in node.output]
    yield helper.make_node(node.op_type, node.input, ends, **kept)
    made.doubted.update(o for o in node.output if o)
    for value, own in zip(ends, node.output, strict=True):
        if own:
            yield from _open_along(made, value, own, [axis + 2 for axis in doubted])


def _multi_head_attention(made: StandIns, node: NodeProto, known: Attributes) -> Iterator[NodeProto]:
    """[batch, sequence, heads x value size]; queries packed with keys and values have five axes."""
    if len(node.input) > 1 and node.input[1]:
        yield from _last_axis_open(made, node, known)
    else:
        yield from _of_rank(0, 3)(made, node, known)


def _last_axis_open(made: StandIns, node: NodeProto, _: Attributes) -> Iterator[NodeProto]:
    """All axes of the first input but the last, which depends on a weight."""
    yield helper.make_node(ops.MatMul, [node.input[0], made.weight(None, None)], node.output[:1])


def _grouped_attention(made: StandIns, node: NodeProto, known: Attributes) -> Iterator[NodeProto]:
    """The result has the shape of the queries; caches have capacity for more positions."""
    if len(node.input) > 1 and node.input[1]:
        yield helper.make_node(ops.Identity, node.input[:1], node.output[:1])
    else:
        yield from _last_axis_open(made, node, known)
    for output, past in ((1, 3), (2, 4)):
        if len(node.output) > output and node.output[output] and len(node.input) > past and node.input[past]:
            more = made.weight(None, _number(known, "kv_num_heads"), None, None)
            yield helper.make_node(ops.Concat, [node.input[past], more], [node.output[output]], axis=2)


def _looked_up(_: StandIns, node: NodeProto, __: Attributes) -> Iterator[NodeProto]:
    yield helper.make_node(ops.Gather, [node.input[2], node.input[0]], node.output[:1], axis=0)


def _dequantized(_: StandIns, node: NodeProto, known: Attributes) -> Iterator[NodeProto]:
    yield helper.make_node(ops.DequantizeLinear, node.input, node.output, axis=_number(known, "axis") or 0)


def _scores(targets: Callable[[Attributes], int | None], label: bool = False) -> Entry:
    """Return the entry of an ai.onnx.ml operator that maps each row to a float32 row of scores."""

    def nodes(made: StandIns, node: NodeProto, known: Attributes) -> Iterator[NodeProto]:
        scores = node.output[1] if label and len(node.output) > 1 else "" if label else node.output[0]
        rows, flat, scored = made.fresh(), made.fresh(), scores or made.fresh()
        # [n, features], or [features] as one row: the number of rows is unknown in either case.
        yield helper.make_node(ops.Cast, node.input[:1], [flat], to=TensorProto.FLOAT)
        yield helper.make_node(ops.Reshape, [flat, made.weight(2, dtype=TensorProto.INT64)], [rows])
        yield helper.make_node(ops.MatMul, [rows, made.weight(None, targets(known))], [scored])
        if label and node.output[0] and known.get("classlabels_int64s"):
            yield helper.make_node(ops.ArgMax, [scored], [node.output[0]], axis=1, keepdims=0)

    return nodes


def _number(known: Attributes, name: str, default: int | None = None) -> int | None:
    value = known.get(name, default)
    return value if isinstance(value, int) else None


def _classes(known: Attributes) -> int | None:
    labels = known.get("classlabels_int64s") or known.get("classlabels_strings")
    return len(labels) if isinstance(labels, list) else None


_BEFORE_ONNX = (
    ops.GroupNormalization, ops.MeanVarianceNormalization, ops.LayerNormalization, ops.SimplifiedLayerNormalization,
)  # fmt: skip
"""Operators of the default domain that ONNX Runtime supported before ONNX did. They keep the type of their input."""

_KEEPS: Sequence[tuple[str, str]] = (
    *(("", name) for name in _BEFORE_ONNX),
    *(key for key, one in ENTRIES.items() if key[0] and Trait.KEEPS_TYPE in one.traits),
)
"""Operators whose first output has the type of the first input, which ONNX's inference does not know of them."""

_ENTRIES: dict[tuple[str, str], Entry] = {
    **dict.fromkeys(_KEEPS, _same((0, 0))),
    **dict.fromkeys([("", op) for op in _POOLS], _pooled),
    ("", ops.PRelu): _sloped,
    ("", ops.Slice): _sliced,
    ("com.microsoft", ops.SkipLayerNormalization): _same((0, 0), (3, 0)),
    ("com.microsoft", ops.SkipSimplifiedLayerNormalization): _same((0, 0), (3, 0)),
    **dict.fromkeys([("com.microsoft", op) for op in (ops.MatMulNBits, "MatMulBnb4")], _packed_product),
    ("com.microsoft", ops.FusedMatMul): _fused_product,
    ("com.microsoft", "FusedGemm"): _known_as(ops.Gemm, 3, "alpha", "beta", "transA", "transB"),
    ("com.microsoft", ops.FusedConv): _known_as(
        ops.Conv, 3, "auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"
    ),
    ("com.microsoft", "MatMulIntegerToFloat"): _scaled_product,
    ("com.microsoft", "DynamicQuantizeMatMul"): _quantizing_product,
    ("com.microsoft", ops.GatherBlockQuantized): _of_rank(2, None),
    ("com.microsoft", ops.CropAndResize): _of_rank(0, 4),
    ("com.microsoft", ops.MultiHeadAttention): _multi_head_attention,
    ("com.microsoft", ops.GroupQueryAttention): _grouped_attention,
    ("com.microsoft", ops.Attention): _last_axis_open,
    ("com.microsoft", ops.EmbedLayerNormalization): _looked_up,
    ("com.microsoft", ops.DequantizeLinear): _dequantized,
    ("ai.onnx.ml", "FeatureVectorizer"): _scores(lambda _: None),
    ("ai.onnx.ml", "Scaler"): _cast,
    ("ai.onnx.ml", "Normalizer"): _cast,
    ("ai.onnx.ml", "LinearRegressor"): _scores(lambda known: _number(known, "targets", 1)),
    ("ai.onnx.ml", "SVMRegressor"): _scores(lambda _: 1),
    ("ai.onnx.ml", "TreeEnsembleRegressor"): _scores(lambda known: _number(known, "n_targets")),
    ("ai.onnx.ml", "TreeEnsembleClassifier"): _scores(_classes, label=True),
}  # fmt: skip
