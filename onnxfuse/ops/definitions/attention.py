"""Attention and rotary position embeddings, in the form in which exporters write them out."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from onnx import TensorProto

from onnxfuse.ops.definitions.writer import Defined

MICROSOFT = "com.microsoft"
MASK_FILTER = -10000.0
"""Added to the scores of masked keys where a node does not say another number."""
LOWEST = -3.4028234663852886e38
BY_HEADS, MERGED = (0, 2, 1, 3), (0, 0, -1)


# ---- com.microsoft.Attention: the projection, and MultiHeadAttention


def packed_attention(node: Defined) -> Sequence[str] | None:
    """MultiHeadAttention of a packed projection of the input to queries, keys and values."""
    x, weight, bias, mask, past, scores = (node.read(i) for i in range(6))
    columns = node.extent(weight, 1)
    if node.rank(x) != 3 or columns is None or node.integer("do_rotary") or not node.reads_only(0, 1, 2, 3, 4, 5):
        return None
    if not _masks(node, mask):
        return None
    sizes = [int(n) for n in node.attributes.get("qkv_hidden_sizes", ())] or [columns // 3] * 3
    to = node.to
    y = to.add("MatMul", x, weight)
    y = to.add("Add", y, bias) if bias else y
    q, k, v = to.several(3, "Split", y, split=sizes, axis=2)
    caches = list[str]()
    if past:
        caches = [to.add("Squeeze", one, axes=[0]) for one in to.several(2, "Split", past, split=[1, 1], axis=0)]
    kept = {
        k: v for k, v in node.attributes.items() if k in ("num_heads", "unidirectional", "scale", "mask_filter_value")
    }
    reads = [q, k, v, "", mask, scores, *caches]
    while not reads[-1]:
        reads.pop()
    if not node.wants(1):
        return to.add("MultiHeadAttention", *reads, domain=MICROSOFT, **kept), ""
    y, *grown = to.several(3, "MultiHeadAttention", *reads, domain=MICROSOFT, **kept)
    return y, to.add("Concat", *(to.add("Unsqueeze", one, axes=[0]) for one in grown), axis=0)


# ---- com.microsoft.MultiHeadAttention


@dataclass(frozen=True)
class _Heads:
    """Queries, keys and values by heads, [batch, heads, sequence, size]; keys also transposed for the product."""

    q: str
    k: str
    transposed: str
    v: str


def multi_head_attention(node: Defined) -> Sequence[str] | None:
    """softmax(q k^T * scale + mask) v, head by head, behind caches that grow; the grown caches."""
    q, heads = node.read(0), node.integer("num_heads")
    columns, dtype = node.extent(q, -1), node.to.dtype(q)
    if not node.reads_only(0, 1, 2, 3, 4, 5, 6, 7) or not node.wants_only(0, 1, 2):
        return None
    if bool(node.read(6)) != bool(node.read(7)):
        return None
    if (
        node.rank(q) != 3
        or columns is None
        or not dtype
        or not heads
        or columns % heads
        or not _masks(node, node.read(4))
    ):
        return None
    parts = _heads(node, heads)
    if parts is None:
        return None
    scale = node.number("scale") or (columns // heads) ** -0.5
    y = _attended(node, parts, scale, dtype, _biases(node, parts, dtype))
    return _merged(node, y), parts.k, parts.v


def _attended(node: Defined, parts: _Heads, scale: float, dtype: int, biases: Sequence[str]) -> str:
    """Write softmax(q k^T * scale + biases) v, [batch, heads, sequence, size]."""
    to = node.to
    scores = to.add("Mul", to.add("MatMul", parts.q, parts.transposed), node.scalar(scale, dtype))
    for bias in biases:
        scores = to.add("Add", scores, bias)
    return to.add("MatMul", to.add("Softmax", scores, axis=-1), parts.v)


def _merged(node: Defined, y: str) -> str:
    return node.to.add("Reshape", node.to.add("Transpose", y, perm=[*BY_HEADS]), shape=[*MERGED])


def _masks(node: Defined, mask: str) -> bool:
    """Return whether the mask of keys is a number for each key, for each query and key, or the length of each row."""
    rank = node.rank(mask) if mask else 2
    if rank == 1:  # of three forms the one with a length for each row
        rows, lengths = node.to.shape(node.read(0)), node.to.shape(mask)
        return rows is not None and lengths is not None and rows[0] is not None and rows[0] == lengths[0]
    return rank in (2, 3)


def _heads(node: Defined, heads: int) -> _Heads | None:
    q, k, v, bias, to = node.read(0), node.read(1), node.read(2), node.read(3), node.to
    ranks = node.rank(k), node.rank(v)
    if ranks not in ((3, 3), (4, 4)) or (bias and ranks != (3, 3)):
        return None
    if bias:
        widths = [node.extent(x, -1) for x in (q, k, v)]
        if None in widths:
            return None
        ends = np.cumsum([0, *widths])
        parts = [to.add("Slice", bias, starts=[int(a)], ends=[int(b)], axes=[0]) for a, b in pairwise(ends)]
        q, k, v = (to.add("Add", x, part) for x, part in zip((q, k, v), parts, strict=True))
    sizes = node.extent(node.read(0), -1), node.extent(node.read(2), -1)
    if sizes[0] is None or sizes[1] is None:
        return None
    of_values = sizes[1] // heads if ranks == (3, 3) else sizes[1]
    by_heads = ranks == (4, 4)
    keys = k if by_heads else to.add("Reshape", k, shape=[0, 0, heads, sizes[0] // heads])
    v = v if by_heads else _by_heads(node, v, heads, of_values)
    q = _by_heads(node, q, heads, sizes[0] // heads)
    if not by_heads and not (node.read(6) or node.wants(1)):
        return _Heads(q, "", to.add("Transpose", keys, perm=[0, 2, 3, 1]), v)
    k = keys if by_heads else to.add("Transpose", keys, perm=[*BY_HEADS])
    if node.read(6):
        k, v = to.add("Concat", node.read(6), k, axis=2), to.add("Concat", node.read(7), v, axis=2)
    return _Heads(q, k, to.add("Transpose", k, perm=[0, 1, 3, 2]), v)


def _by_heads(node: Defined, x: str, heads: int, size: int) -> str:
    split = node.to.add("Reshape", x, shape=[0, 0, heads, size])
    return node.to.add("Transpose", split, perm=[*BY_HEADS])


def _biases(node: Defined, parts: _Heads, dtype: int) -> list[str]:
    """Write what is added to the scores [batch, heads, queries, keys]."""
    mask, found, to = node.read(4), list[str](), node.to
    if mask:
        filtered = node.number("mask_filter_value", MASK_FILTER)
        found.append(to.add("Where", _kept(node, mask, parts), node.scalar(0.0, dtype), node.scalar(filtered, dtype)))
    if node.read(5):
        found.append(node.read(5))
    if node.integer("unidirectional"):
        keys, queries = _count(node, parts.v, 2), node.length(node.read(0), 1)
        columns = _positions(node, None, keys)
        rows = _positions(node, to.add("Sub", keys, queries), keys)
        later = to.add("Less", to.add("Unsqueeze", rows, axes=[1]), columns)
        found.append(to.add("Where", later, node.scalar(LOWEST, dtype), node.scalar(0.0, dtype)))
    return found


def _kept(node: Defined, mask: str, parts: _Heads) -> str:
    """Write the condition that a key is not masked, broadcast to the scores."""
    rank, to = node.rank(mask), node.to
    if rank == 1:
        positions = _positions(node, None, _count(node, parts.v, 2))
        lengths = to.add("Cast", to.add("Unsqueeze", mask, axes=[1]), to=TensorProto.INT64)
        return to.add("Unsqueeze", to.add("Less", positions, lengths), axes=[1, 2])
    kept = to.add("Greater", mask, to.constant(np.zeros((), np.int32)))  # negative numbers mask, too
    return to.add("Unsqueeze", kept, axes=[1, 2] if rank == 2 else [1])


def _count(node: Defined, value: str, axis: int) -> str:
    return node.length(value, axis)


def _positions(node: Defined, first: str | None, end: str) -> str:
    """Write the integers from `first` up to `end`, both of shape [1]."""
    to, scalar = node.to, node.to.constant(np.asarray([], np.int64))
    begin = to.constant(np.asarray(0, np.int64)) if first is None else to.add("Reshape", first, scalar)
    return to.add("Range", begin, to.add("Reshape", end, scalar), to.constant(np.asarray(1, np.int64)))


# ---- RotaryEmbedding


def rotary_embedding(node: Defined) -> Sequence[str] | None:
    """x cos + (-right, left) sin for each head, by the row of each position in the tables."""
    x, positions, cos, sin = (node.read(i) for i in range(4))
    if node.rank(positions) != 2 or node.integer("interleaved") or node.integer("is_packed_batching"):
        return None
    if node.number("scale", 1.0) != 1.0:
        return None
    return _rotated(
        node, x, node.to.add("Gather", cos, positions, axis=0), node.to.add("Gather", sin, positions, axis=0)
    )


def onnx_rotary_embedding(node: Defined) -> Sequence[str] | None:
    """The same of ONNX's own operator, whose tables may have a row for each token."""
    x, cos, sin, positions = (node.read(i) for i in range(4))
    if node.integer("interleaved"):
        return None
    if positions:
        cos, sin = (node.to.add("Gather", table, positions, axis=0) for table in (cos, sin))
    return _rotated(node, x, cos, sin)


def _rotated(node: Defined, x: str, cos: str, sin: str) -> Sequence[str] | None:
    """Rotate [batch, sequence, heads * size], or heads first; cos and sin are [batch, sequence, half of the size]."""
    to, half = node.to, node.extent(node.read(2), -1)
    rank, columns = node.rank(x), node.extent(x, -1)
    turned = node.integer("rotary_embedding_dim") or (2 * half if half is not None else 0)
    heads = node.integer("num_heads")
    if half is None or rank not in (3, 4) or columns is None or turned != 2 * half:
        return None
    size = columns if rank == 4 else columns // heads if heads else turned
    if size != turned:  # a part of each head
        return None
    by_heads = rank == 4
    tables = [to.add("Unsqueeze", to.add("Concat", t, t, axis=-1), axes=[1 if by_heads else 2]) for t in (cos, sin)]
    value = x if by_heads else to.add("Reshape", x, shape=[0, 0, columns // size, size])
    straight = to.add("Mul", value, tables[0])
    left = to.add("Slice", value, starts=[0], ends=[half], axes=[3])
    right = to.add("Slice", value, starts=[half], ends=[size], axes=[3])
    across = to.add("Mul", to.add("Concat", to.add("Neg", right), left, axis=-1), tables[1])
    y = to.add("Add", straight, across)
    return (y if by_heads else to.add("Reshape", y, shape=[*MERGED]),)


# ---- ONNX's Attention


@dataclass(frozen=True)
class _Sizes:
    """Numbers of heads, and their sizes."""

    heads: int
    of_keys: int
    size: int
    of_values: int

    @property
    def repeats(self) -> int:
        """Heads of queries for each head of keys."""
        return self.heads // self.of_keys


def onnx_attention(node: Defined) -> Sequence[str] | None:
    """ONNX's Attention behind caches that grow, or of grouped queries: Concat, repeated heads, and attention of these.

    Of as many heads of keys as of queries the rest is Attention without caches.
    """
    q, k, v, mask, past_key, past_value = (node.read(i) for i in range(6))
    sizes, dtype = _sizes(node), node.to.dtype(q)
    has_caches = bool(past_key) or node.wants(1) or node.wants(2)
    if sizes is None or not dtype or not node.wants_only(0, 1, 2) or not node.reads_only(0, 1, 2, 3, 4, 5):
        return None
    causal, softcap = node.integer("is_causal"), node.number("softcap")
    if (sizes.repeats == 1 and not has_caches) or (causal and (past_key or sizes.repeats > 1)):
        return None
    if bool(past_key) != bool(past_value):
        return None
    if sizes.repeats > 1 and (softcap or node.to.dtype(mask) not in (0, dtype, TensorProto.BOOL)):
        return None
    to, flat = node.to, node.rank(q) == 3
    if flat:
        q = _by_heads(node, q, sizes.heads, sizes.size)
        k, v = (_by_heads(node, x, sizes.of_keys, n) for x, n in ((k, sizes.size), (v, sizes.of_values)))
    if past_key:
        k, v = to.add("Concat", past_key, k, axis=2), to.add("Concat", past_value, v, axis=2)
    if sizes.repeats == 1:
        kept = {name: x for name, x in node.attributes.items() if not name.endswith("_num_heads")}
        y = to.add("Attention", q, k, v, *([mask] if mask else []), **kept)
    else:
        keys, values = _repeated(node, k, sizes, sizes.size), _repeated(node, v, sizes, sizes.of_values)
        parts = _Heads(q, k, to.add("Transpose", keys, perm=[0, 1, 3, 2]), values)
        scale = node.number("scale") or sizes.size**-0.5
        y = _attended(node, parts, scale, dtype, [_added(node, mask, dtype)] if mask else [])
    return _merged(node, y) if flat else y, k, v


def _sizes(node: Defined) -> _Sizes | None:
    """Return the sizes of an Attention; None if one is unknown, or the operands have different ranks."""
    q, k, v = (node.read(i) for i in range(3))
    ranks = {node.rank(x) for x in (q, k, v)}
    last = [node.extent(x, -1) for x in (q, k, v)]
    if ranks == {3}:
        heads, of_keys = node.integer("q_num_heads"), node.integer("kv_num_heads")
        counts: tuple[int | None, ...] = (heads, of_keys, of_keys)
        last = [n // count if n and count else None for n, count in zip(last, counts, strict=True)]
    elif ranks == {4}:
        counts = tuple(node.extent(x, 1) for x in (q, k, v))
    else:
        return None
    numbers = [n for n in (*counts[:2], last[0], last[2]) if n]
    found = _Sizes(*numbers) if len(numbers) == 4 else None
    return found if found is not None and found.heads % found.of_keys == 0 else None


def _repeated(node: Defined, x: str, sizes: _Sizes, size: int) -> str:
    """Write each head as often as queries read it."""
    to = node.to
    group = to.add("Expand", to.add("Unsqueeze", x, axes=[2]), to.constant([1, 1, sizes.repeats, 1, 1]))
    return to.add("Reshape", group, shape=[0, sizes.heads, -1, size])


def _added(node: Defined, mask: str, dtype: int) -> str:
    """Write what a mask adds to the scores; where a condition does not hold the lowest number, as ONNX Runtime does."""
    if node.to.dtype(mask) != TensorProto.BOOL:
        return mask
    return node.to.add("Where", mask, node.scalar(0.0, dtype), node.scalar(LOWEST, dtype))
