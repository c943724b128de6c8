"""Standard nodes with the types and shapes of operators that ONNX's inference does not know, or misjudges.

They stand in for these while inference runs, and compute nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from onnx import NodeProto, TensorProto, defs, helper

from onnxfuse.ops.shapes.windows import pool_windows

BROADCASTS_SINCE = 7
"""First operator set with numpy-style broadcasting of two operands."""
SPLIT_SAYS_HOW_MANY = 18
"""First operator set in which a Split into equal parts says how many."""


class Made(Protocol):
    """What the nodes that stand in are written with."""

    opset: int
    """Version of the default operator set."""
    ranks: Mapping[str, int]
    """Of the weights and inputs of the main graph."""
    sliced: Mapping[str, Sequence[int]]
    """Axes of Slice outputs whose extents must not be inferred."""
    doubted: set[str]
    """Values whose extents ONNX's inference, or a file with types from it, may have wrong."""

    def weight(self, *shape: int | None, dtype: int = TensorProto.FLOAT) -> str:
        """Return the name of a value of such a shape."""

    def fresh(self) -> str:
        """Return a name for a value between nodes."""


Attributes = dict[str, Any]

Alike = Callable[[Made, NodeProto, Attributes], Iterator[NodeProto]]
"""Yields nodes with the types and shapes of a node's outputs, as far as they are determined; none if ONNX's inference
knows them."""


def kept(made: Made, node: NodeProto, _: Attributes) -> Iterator[NodeProto]:
    """The first output has the type of the first input; in later operator sets ONNX's inference may know it."""
    known = not node.domain and defs.has(node.op_type, made.opset)
    if not known or not defs.get_schema(node.op_type, made.opset).has_type_and_shape_inference_function:
        yield from same((0, 0))(made, node, {})


def same(*pairs: tuple[int, int]) -> Alike:
    """Return the entry of an operator whose outputs have the type of an input: (output, input)."""

    def nodes(_: Made, node: NodeProto, __: Attributes) -> Iterator[NodeProto]:
        for output, read in pairs:
            if len(node.output) > output and node.output[output] and len(node.input) > read and node.input[read]:
                yield helper.make_node("Identity", [node.input[read]], [node.output[output]])

    return nodes


def as_float(made: Made, node: NodeProto, _: Attributes) -> Iterator[NodeProto]:
    yield helper.make_node("Cast", node.input[:1], node.output[:1], to=TensorProto.FLOAT)


def packed_product(made: Made, node: NodeProto, known: Attributes) -> Iterator[NodeProto]:
    """A product by a weight in a packed low-bit format: [..., K] becomes [..., N]."""
    yield helper.make_node(
        "MatMul", [node.input[0], made.weight(number(known, "K"), number(known, "N"))], node.output[:1]
    )


def fused_product(made: Made, node: NodeProto, known: Attributes) -> Iterator[NodeProto]:
    """A product with optional transposes: with a transposed left factor or batch axes, only the type is inferred."""
    if any(known.get(k) for k in ("transA", "transBatchA", "transBatchB")):
        yield from of_rank(0, None)(made, node, known)
    elif not known.get("transB"):
        yield helper.make_node("MatMul", node.input[:2], node.output[:1])
    elif made.ranks.get(node.input[1]) == 2:
        yield from last_axis_open(made, node, known)
    else:
        yield from of_rank(0, None)(made, node, known)


def sliced(made: Made, node: NodeProto, _: Attributes) -> Iterator[NodeProto]:
    """A Slice of operator set 10, for which ONNX's inference keeps symbolic extents unchanged."""
    axes = made.sliced.get(node.output[0])
    if axes:
        made.doubted.add(node.output[0])
        yield helper.make_node("Slice", node.input, [value := made.fresh()])
        yield from _open_along(made, value, node.output[0], axes)


def _open_along(made: Made, value: str, output: str, axes: Sequence[int]) -> Iterator[NodeProto]:
    """Yield nodes with a value's type, and unknown extents along some axes."""
    some = made.weight(None, dtype=TensorProto.INT64)
    for count, axis in enumerate(axes, 1):
        name = output if count == len(axes) else made.fresh()
        yield helper.make_node("Gather", [value, some], [name], axis=axis)
        value = name


def sloped(made: Made, node: NodeProto, _: Attributes) -> Iterator[NodeProto]:
    """A PRelu: ONNX gives it the shape of its input, ONNX Runtime the broadcast shape of both operands."""
    if made.opset >= BROADCASTS_SINCE:
        yield helper.make_node("Mul", node.input, node.output)


def known_as(op: str, inputs: int, *attributes: str) -> Alike:
    """Return the entry of an operator like a standard one, with these inputs and attributes, and extra outputs."""

    def nodes(_: Made, node: NodeProto, known: Attributes) -> Iterator[NodeProto]:
        kept = {k: v for k, v in known.items() if k in attributes}
        yield helper.make_node(op, node.input[:inputs], node.output[:1], **kept)

    return nodes


def scaled_product(made: Made, node: NodeProto, _: Attributes) -> Iterator[NodeProto]:
    """A product of 8-bit factors with a float result of its scales' type: a Where converts a factor to that type."""
    for factor, read in ((left := made.fresh(), node.input[0]), (right := made.fresh(), node.input[1])):
        yield from _with_type(made, read, node.input[2], factor)
    yield helper.make_node("MatMul", [left, right], node.output[:1])


def quantizing_product(made: Made, node: NodeProto, _: Attributes) -> Iterator[NodeProto]:
    """A product of floats by an 8-bit weight."""
    yield from _with_type(made, node.input[1], node.input[0], weight := made.fresh())
    yield helper.make_node("MatMul", [node.input[0], weight], node.output[:1])


def _with_type(made: Made, value: str, like: str, output: str) -> Iterator[NodeProto]:
    """Yield nodes with the shape of one value and the type of another, at any operator set."""
    yield helper.make_node("Reshape", [like, made.weight(0, dtype=TensorProto.INT64)], [scalar := made.fresh()])
    yield helper.make_node("Shape", [value], [shape := made.fresh()])
    yield helper.make_node("Expand", [scalar, shape], [output])


def of_rank(read: int, rank: int | None) -> Alike:
    """Return the entry of an operator whose result has the type of an input, and a known rank only."""

    def nodes(made: Made, node: NodeProto, _: Attributes) -> Iterator[NodeProto]:
        shape = made.weight(rank, dtype=TensorProto.INT64)
        yield helper.make_node("Reshape", [node.input[read], shape], node.output[:1])

    return nodes


def pooled(made: Made, node: NodeProto, known: Attributes) -> Iterator[NodeProto]:
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


def multi_head_attention(made: Made, node: NodeProto, known: Attributes) -> Iterator[NodeProto]:
    """[batch, sequence, heads x value size]; queries packed with keys and values have five axes."""
    if len(node.input) > 1 and node.input[1]:
        yield from last_axis_open(made, node, known)
    else:
        yield from of_rank(0, 3)(made, node, known)
    yield from _grown(made, node, ((1, 6), (2, 7)), number(known, "num_heads"))


def packed_attention(made: Made, node: NodeProto, known: Attributes) -> Iterator[NodeProto]:
    """The result has the rows of the input; keys and values are one cache, [2, batch, heads, sequence, size]."""
    yield from last_axis_open(made, node, known)
    if _has(node.output, 1) and _has(node.input, 4):
        more = made.weight(2, None, number(known, "num_heads"), None, None)
        yield helper.make_node("Concat", [node.input[4], more], [node.output[1]], axis=3)


def halved(made: Made, node: NodeProto, _: Attributes) -> Iterator[NodeProto]:
    """The last axis of three is half as long."""
    yield from _split(made, node.input[0], [node.output[0], made.fresh()])


def _split(made: Made, value: str, parts: Sequence[str]) -> Iterator[NodeProto]:
    """Yield equal parts of the last of three axes."""
    attributes: Attributes = {"axis": 2} | ({"num_outputs": len(parts)} if made.opset >= SPLIT_SAYS_HOW_MANY else {})
    yield helper.make_node("Split", [value], parts, **attributes)


def _has(values: Sequence[str], position: int) -> bool:
    return len(values) > position and bool(values[position])


def _grown(made: Made, node: NodeProto, caches: Sequence[tuple[int, int]], heads: int | None) -> Iterator[NodeProto]:
    """Yield caches [batch, heads, sequence, size] with more positions than before: (output, input)."""
    for output, past in caches:
        if _has(node.output, output) and _has(node.input, past):
            more = made.weight(None, heads, None, None)
            yield helper.make_node("Concat", [node.input[past], more], [node.output[output]], axis=2)


def last_axis_open(made: Made, node: NodeProto, _: Attributes) -> Iterator[NodeProto]:
    """All axes of the first input but the last, which depends on a weight."""
    yield helper.make_node("MatMul", [node.input[0], made.weight(None, None)], node.output[:1])


def grouped_attention(made: Made, node: NodeProto, known: Attributes) -> Iterator[NodeProto]:
    """The result has the shape of the queries, which may be packed with keys and values; caches have capacity for more
    positions."""
    heads, of_keys = number(known, "num_heads"), number(known, "kv_num_heads")
    if _has(node.input, 1):
        yield helper.make_node("Identity", node.input[:1], node.output[:1])
    elif heads and of_keys:
        parts = [made.fresh() for _ in range(heads + 2 * of_keys)]
        yield from _split(made, node.input[0], parts)
        yield helper.make_node("Concat", parts[:heads], node.output[:1], axis=2)
    else:
        yield from last_axis_open(made, node, known)
    yield from _grown(made, node, ((1, 3), (2, 4)), of_keys)


def looked_up(made: Made, node: NodeProto, _: Attributes) -> Iterator[NodeProto]:
    """Rows of a table, normalized; a number for each row of the batch; the rows before they are normalized."""
    for output in (0, 2):
        if _has(node.output, output):
            yield helper.make_node("Gather", [node.input[2], node.input[0]], [node.output[output]], axis=0)
    if _has(node.output, 1):
        first = made.weight(dtype=TensorProto.INT64)
        yield helper.make_node("Gather", [node.input[0], first], [of_rows := made.fresh()], axis=1)
        yield helper.make_node("Cast", [of_rows], [node.output[1]], to=TensorProto.INT32)


def of_its_name(_: Made, node: NodeProto, known: Attributes) -> Iterator[NodeProto]:
    """The operator of ONNX that has the same name, scales along one axis included."""
    yield helper.make_node(node.op_type, node.input, node.output, axis=number(known, "axis") or 0)


def scores(targets: Callable[[Attributes], int | None], label: bool = False) -> Alike:
    """Return the entry of an ai.onnx.ml operator that maps each row to a float32 row of scores."""

    def nodes(made: Made, node: NodeProto, known: Attributes) -> Iterator[NodeProto]:
        scores = node.output[1] if label and len(node.output) > 1 else "" if label else node.output[0]
        rows, flat, scored = made.fresh(), made.fresh(), scores or made.fresh()
        # [n, features], or [features] as one row: the number of rows is unknown in either case.
        yield helper.make_node("Cast", node.input[:1], [flat], to=TensorProto.FLOAT)
        yield helper.make_node("Reshape", [flat, made.weight(2, dtype=TensorProto.INT64)], [rows])
        yield helper.make_node("MatMul", [rows, made.weight(None, targets(known))], [scored])
        if label and node.output[0] and known.get("classlabels_int64s"):
            yield helper.make_node("ArgMax", [scored], [node.output[0]], axis=1, keepdims=0)

    return nodes


def number(known: Attributes, name: str, default: int | None = None) -> int | None:
    """Return an integer attribute."""
    value = known.get(name, default)
    return value if isinstance(value, int) else None


def classes(known: Attributes) -> int | None:
    """Return how many classes a classifier of ai.onnx.ml knows."""
    labels = known.get("classlabels_int64s") or known.get("classlabels_strings")
    return len(labels) if isinstance(labels, list) else None
