"""Normalizations with what stands before them: residuals, biases, embeddings."""

from collections.abc import Sequence

from onnx import TensorProto

from onnxfuse.ops.definitions.writer import HALVES, Defined

FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, *HALVES)
SINCE_LAYER_NORM, SINCE_RMS_NORM = 17, 23
"""Operator sets from which on ONNX has LayerNormalization and RMSNormalization."""


def skip_layer_normalization(node: Defined) -> Sequence[str] | None:
    """LayerNormalization of x + skip + bias, and the sum."""
    x, skip, scale, shift, bias = (node.read(i) for i in range(5))
    if not node.wants_only(0, 3) or not _fits(node, x, skip, scale):
        return None
    total = _sum(node, x, skip, bias)
    y = layer_normalization(node, total, x, scale, shift, 1e-12) if node.wants(0) else ""
    return y, "", "", total


def skip_simplified_layer_normalization(node: Defined) -> Sequence[str] | None:
    """RMSNormalization of x + skip + bias, and the sum."""
    x, skip, scale, bias = (node.read(i) for i in range(4))
    if not node.wants_only(0, 3) or not _fits(node, x, skip, scale):
        return None
    total = _sum(node, x, skip, bias)
    y = rms_normalization(node, total, x, scale, 1e-12) if node.wants(0) else ""
    return y, "", "", total


def simplified_layer_normalization(node: Defined) -> Sequence[str] | None:
    """RMSNormalization along the last axis."""
    x, scale = node.read(0), node.read(1)
    rank = node.rank(x)
    last = (-1,) if rank is None else (-1, rank - 1)
    if not node.wants_only(0) or node.integer("axis", -1) not in last or node.integer("stash_type", 1) != 1:
        return None
    return (rms_normalization(node, x, x, scale, 1e-5),) if _fits(node, x, x, scale) else None


def gated_rms_norm(node: Defined) -> Sequence[str] | None:
    """RMSNormalization, of heads where the scale is as long as one, times an activation of a gate; all in float32."""
    x, scale, gate, to = node.read(0), node.read(1), node.read(2), node.to
    dtype, columns, size = to.dtype(x), node.extent(x, -1), node.extent(scale, -1)
    activation = node.text("activation") or "silu"
    if dtype not in FLOATS or columns is None or size is None or activation not in ("silu", "swish", "sigmoid"):
        return None
    by_heads = columns != size
    if by_heads and (node.rank(x) != 3 or columns % size):
        return None
    wide, narrow = _computed_in(node, dtype)
    parts = [to.add("Reshape", v, shape=[0, 0, columns // size, size]) if by_heads else v for v in (x, gate)]
    x, gate, scale = (to.add("Cast", v, to=wide) if narrow else v for v in (*parts, scale))
    y = to.add("Mul", _divided(node, x, wide, node.number("epsilon", 1e-5)), scale)
    opened = to.add("Sigmoid", gate)
    y = to.add("Mul", y, opened if activation == "sigmoid" else to.add("Mul", gate, opened))
    y = to.add("Cast", y, to=dtype) if narrow else y
    return (to.add("Reshape", y, shape=[0, 0, -1]) if by_heads else y,)


def gated_add(node: Defined) -> Sequence[str] | None:
    """x + y * gate."""
    return (node.to.add("Add", node.read(0), node.to.add("Mul", node.read(1), node.read(2))),)


def embed_layer_normalization(node: Defined) -> Sequence[str] | None:
    """LayerNormalization of the sum of word, position and segment embeddings; the number of words that a mask keeps;
    the sum."""
    ids, segments, words, positions, of_segments, scale, shift, mask, at = (node.read(i) for i in range(9))
    if node.wants(1) and (not mask or node.integer("mask_index_type", 1) != 1):
        return None
    if not _fits(node, words, positions, scale):
        return None
    total = node.to.add("Gather", words, ids, axis=0)
    if at:
        here = node.to.add("Gather", positions, at, axis=0)
    else:
        zero = node.to.constant([0])
        here = node.to.add("Slice", positions, zero, node.length(ids, 1), axes=[0])
    total = node.to.add("Add", total, here)
    if segments:
        total = node.to.add("Add", total, node.to.add("Gather", of_segments, segments, axis=0))
    y = layer_normalization(node, total, words, scale, shift, 1e-12)
    count = node.to.add("ReduceSum", mask, axes=[1], keepdims=0) if node.wants(1) else ""
    return y, count, total


def _fits(node: Defined, x: str, skip: str, scale: str) -> bool:
    """Return whether the operands have one known element type, and the skip is added element by element, or repeated
    for each row of the batch."""
    kinds = {node.to.dtype(v) for v in (x, skip, scale)}
    return len(kinds) == 1 and kinds <= {*FLOATS}


def _sum(node: Defined, x: str, skip: str, bias: str) -> str:
    total = node.to.add("Add", x, skip)
    return node.to.add("Add", total, bias) if bias else total


def layer_normalization(node: Defined, x: str, like: str, scale: str, shift: str, epsilon: float) -> str:
    """Write LayerNormalization along the last axis; `like` is a value of the graph that has the type of x."""
    to, epsilon = node.to, node.number("epsilon", epsilon)
    if to.opset >= SINCE_LAYER_NORM:
        return to.add("LayerNormalization", x, scale, *([shift] if shift else []), axis=-1, epsilon=epsilon)
    dtype = to.dtype(like)
    wide, narrow = _computed_in(node, dtype)
    x = to.add("Cast", x, to=wide) if narrow else x
    centered = to.add("Sub", x, to.add("ReduceMean", x, axes=[-1]))
    y = _divided(node, centered, wide, epsilon)
    y = to.add("Cast", y, to=dtype) if narrow else y
    y = to.add("Mul", y, scale)
    return to.add("Add", y, shift) if shift else y


def rms_normalization(node: Defined, x: str, like: str, scale: str, epsilon: float) -> str:
    """Write x / sqrt(mean(x^2) + epsilon) * scale, in float32 but for the last product."""
    to, epsilon = node.to, node.number("epsilon", epsilon)
    if to.opset >= SINCE_RMS_NORM:
        return to.add("RMSNormalization", x, scale, axis=-1, epsilon=epsilon)
    dtype = to.dtype(like)
    wide, narrow = _computed_in(node, dtype)
    y = _divided(node, to.add("Cast", x, to=wide) if narrow else x, wide, epsilon)
    return to.add("Mul", to.add("Cast", y, to=dtype) if narrow else y, scale)


def _computed_in(node: Defined, dtype: int) -> tuple[int, bool]:
    """Return the type in which a norm is computed, and whether its operand is narrower."""
    return (TensorProto.FLOAT, True) if dtype in HALVES else (dtype, False)


def _divided(node: Defined, x: str, dtype: int, epsilon: float) -> str:
    """Write x / sqrt(mean(x^2) + epsilon)."""
    to = node.to
    mean = to.add("ReduceMean", to.add("Pow", x, node.scalar(2.0, dtype)), axes=[-1])
    return to.add("Div", x, to.add("Sqrt", to.add("Add", mean, node.scalar(epsilon, dtype))))
