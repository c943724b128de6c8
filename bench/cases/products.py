"""Bodies and sizes that the tests of the gemm template share, on the host and on the GPU."""

from collections.abc import Mapping, Sequence

from onnx import TensorProto

from bench.cases import ops
from onnxfuse.cuda.templates.gemm import body as gemm_body
from onnxfuse.model.fused import FusedOp

PLAIN = "(x, w) => (y) { y = MatMul(x, w) }"
GELU = "(x, w, b) => (y) { m = MatMul(x, w) a = Add(m, b) y = Gelu(a) }"
TRANSPOSED = "(x, w, b) => (y) { m = Gemm <transB = 1> (x, w) y = Add(m, b) }"
TRANSPOSED_GELU = "(x, w, b) => (y) { m = Gemm <transB = 1> (x, w) a = Add(m, b) y = Gelu(a) }"
RESIDUAL = "(x, w, b, r, s) => (y) { m = MatMul(x, w) a = Add(b, m) c = Mul(a, s) y = Add(c, r) }"
TRANSPOSED_RESIDUAL = "(x, w, b, r) => (y) { m = Gemm <transB = 1> (x, w) a = Add(m, b) y = Add(a, r) }"
SWIGLU = "(x, g, u) => (y) { m = MatMul(x, g) n = MatMul(x, u) s = Sigmoid(m) t = Mul(m, s) y = Mul(t, n) }"
QKV = """(x, q, k, v, a, b, c) => (y, z, t) { m = MatMul(x, q) n = MatMul(x, k) o = MatMul(x, v)
  y = Add(m, a) z = Add(b, n) t = Add(o, c) }"""
SEVERAL = "(x, w, b) => (y, z) { m = MatMul(x, w) y = Add(m, b) z = Cast <to = 1> (y) }"
PREACTIVATED = """(x, w, r, s, b) => (y, z) { m = MatMul(x, w) y = Add(m, r) c = Mul(y, s) d = Add(c, b) e = Sigmoid(d)
  z = Mul(d, e) }"""
"""A residual sum, and what the next block's norm and activation make of it, both of one size."""

BATCHED = "(x, w, r) => (y) { m = MatMul(x, w) s = Add(m, r) y = Relu(s) }"
TOKENS = """(w, x, b, r) => (y) {
  first = Constant <value = int64[1] {0}> () last = Constant <value = int64[1] {TERMS}> ()
  axis = Constant <value = int64[1] {-1}> () c = Slice(w, first, last, axis)
  m = MatMul(c, x) h = Add(m, b) g = Gelu(h) y = Add(g, r) }"""
"""A product along the other axis, by a weight whose rows hold more than its terms."""
STORED = """(w, x, b, r) => (y) { t = Transpose <perm = [1, 0]> (w) m = MatMul(x, t) a = Add(m, b) g = Gelu(a)
  y = Add(g, r) }"""
"""By a weight that is read as it is stored [n, k], as embeddings are: a head that shares it."""
HEADS = """(x, q, k, v, a, b, c) => (y, z, t) { m = MatMul(x, q) n = MatMul(x, k) o = MatMul(x, v)
  d = Add(m, a) e = Add(b, n) f = Add(o, c) s = Constant <value = int64[4] {0, 0, 3, 16}> ()
  g = Reshape(d, s) h = Reshape(e, s)
  y = Transpose <perm = [0, 2, 1, 3]> (g) z = Transpose <perm = [0, 2, 3, 1]> (h)
  t = Transpose <perm = [2, 0, 1]> (f) }"""
"""Queries and keys of each head by itself, keys turned over; of values a column at a time."""
UNEVEN = """(x, q, k, v, a, b, c) => (y, z, t) { m = MatMul(x, q) n = MatMul(x, k) o = MatMul(x, v)
  y = Add(m, a) z = Add(b, n) t = Add(o, c) }"""
"""Products side by side, each of columns of its own."""
UNEVEN_HEADS = HEADS.replace("f = Add(o, c)", "f = Add(o, c) u = Constant <value = int64[4] {0, 0, 1, 16}> ()").replace(
    "t = Transpose <perm = [2, 0, 1]> (f)", "i = Reshape(f, u) t = Transpose <perm = [0, 2, 1, 3]> (i)"
)
WINDOWS = """(x, w, r) => (y) { m = MatMul(x, w) a = Add(m, r) s = Constant <value = int64[6] {-1, 4, 3, 3, 2, 20}> ()
  g = Reshape(a, s) y = Transpose <perm = [4, 0, 2, 3, 1, 5]> (g) }"""
"""As Swin writes it: rows of three digits, columns of two."""

TABLE: Mapping[str, tuple[str, Sequence[tuple[int, ...]]]] = {
    "batched": (BATCHED, [(3, 20, 40), (3, 40, 24), (3, 20, 24)]),
    "batched twice": (BATCHED, [(2, 3, 20, 40), (2, 3, 40, 24), (24,)]),
    "batched, odd": (BATCHED, [(2, 3, 17, 5), (2, 3, 5, 19), (2, 3, 17, 1)]),
    "left factor shared": (BATCHED, [(20, 40), (3, 40, 24), ()]),
    "right factor shared by some": (BATCHED, [(3, 4, 20, 40), (3, 1, 40, 24), (3, 4, 20, 24)]),
    "left factor shared by some": (BATCHED, [(3, 1, 20, 40), (1, 4, 40, 24), (3, 4, 20, 1)]),
    "broadcast in three ways": (BATCHED, [(2, 1, 2, 9, 8), (1, 3, 2, 8, 16), (16,)]),
    "right factor of one batch": (BATCHED, [(3, 20, 40), (1, 40, 24), (3, 20, 24)]),
    "no products": (BATCHED, [(0, 20, 40), (0, 40, 24), (24,)]),
    "no terms in a batch": (BATCHED, [(3, 20, 0), (3, 0, 24), (3, 20, 24)]),
    "one column": (BATCHED, [(20, 40), (40, 1), (20, 1)]),
    "one of all": (BATCHED, [(1, 1), (1, 1), ()]),
    "no rows": (BATCHED, [(0, 40), (40, 24), (24,)]),
    "no columns": (BATCHED, [(20, 40), (40, 0), ()]),
    "no terms": (BATCHED, [(20, 0), (0, 24), (24,)]),
    "left factor turned": ("(x, w) => (y) { g = Gemm <transA = 1> (x, w) y = Relu(g) }", [(40, 72), (40, 24)]),
    "both turned, odd": ("(x, w) => (y) { g = Gemm <transA = 1, transB = 1> (x, w) y = Neg(g) }", [(33, 70), (7, 33)]),
    "alpha": ("(x, w) => (y) { g = Gemm <alpha = 0.3> (x, w) y = Relu(g) }", [(20, 40), (40, 24)]),
    "alpha, beta, bias": (
        "(x, w, c) => (y) { g = Gemm <alpha = 0.3, beta = -1.7> (x, w, c) y = Relu(g) }", [(20, 40), (40, 24), (24,)],
    ),
    "beta is 0": ("(x, w, c) => (y) { y = Gemm <beta = 0.0> (x, w, c) }", [(20, 40), (40, 24), (24,)]),
    "a bias of its own": ("(x, w, c) => (y) { y = Gemm <transB = 1> (x, w, c) }", [(20, 40), (24, 40), (20, 24)]),
    "a bias for each row": ("(x, w, c) => (y) { y = Gemm(x, w, c) }", [(20, 40), (40, 24), (20, 1)]),
    "by tokens": (TOKENS.replace("TERMS", "45"), [(20, 48), (3, 45, 24), (20, 1), (3, 20, 24)]),
    "by tokens, odd": (TOKENS.replace("TERMS", "45"), [(21, 46), (2, 45, 19), (21, 1), (2, 21, 19)]),
    "by tokens of one": (TOKENS.replace("TERMS", "45"), [(20, 48), (1, 45, 24), (20, 1), (1, 20, 24)]),
    "by more tokens than are stored": (TOKENS.replace("TERMS", "99"), [(20, 48), (3, 48, 24), (20, 1), (3, 20, 24)]),
    "by embeddings": (STORED, [(24, 40), (3, 20, 40), (24,), (3, 20, 24)]),
    "by embeddings, odd": (STORED, [(7, 19), (33, 19), (7,), (33, 1)]),
    "by embeddings, one row": (STORED, [(200, 40), (1, 40), (200,), (1, 200)]),
    "by embeddings, no rows": (STORED, [(200, 40), (2, 0, 40), (200,), (2, 0, 200)]),
    "a bias for each row of some": (BATCHED, [(2, 3, 20, 40), (40, 24), (20, 1)]),
    "a bias for each row of a batch": (BATCHED, [(2, 3, 20, 40), (3, 40, 24), (1, 20, 1)]),
    "written head by head": (HEADS, [(2, 40, 40), *[(40, 48)] * 3, *[(48,)] * 3]),
    "of different columns": (UNEVEN, [
        (2, 20, 40), (40, 200), (40, 8), (40, 72), (2, 20, 200), (2, 20, 8), (2, 20, 72),
    ]),
    "of different columns, odd": (UNEVEN, [(33, 19), (19, 7), (19, 70), (19, 3), (33, 1), (33, 1), (33, 1)]),
    "of different columns, some none": (UNEVEN, [(20, 40), (40, 0), (40, 24), (40, 8), (0,), (24,), (8,)]),
    "of different columns, head by head": (UNEVEN_HEADS, [
        (2, 40, 40), (40, 48), (40, 48), (40, 16), (48,), (48,), (16,),
    ]),
    "written by windows": (WINDOWS, [(72, 40), (40, 40), (72, 40)]),
}  # fmt: skip
"""Bodies and the shapes of their inputs: every layout, batch, scale and extreme of a product."""


def table(name: str, dtype: int) -> tuple[FusedOp, list[tuple[int, ...]]]:
    """Return a case of the table in this element type."""
    text, shapes = TABLE[name]
    outputs = text.split("=> (")[1].split(")")[0].count(",") + 1
    return ops.op(text, (dtype,) * len(shapes), (dtype,) * outputs, "gemm"), list(shapes)


def tokens(
    dtype: int, batch: tuple[int, ...], m: int, n: int, k: int, pitch: int | None = None
) -> tuple[FusedOp, list[tuple[int, ...]]]:
    """Return a weight [m, k] by [*batch, k, n], bias, GELU and residual; rows of the weight hold `pitch` elements."""
    text = TOKENS.replace("TERMS", str(k))
    shapes = [(m, -(-k // 8) * 8 if pitch is None else pitch), (*batch, k, n), (m, 1), (*batch, m, n)]
    return ops.op(text, (dtype,) * 4, (dtype,), "gemm"), shapes


PROLOGUES = {
    "silu and gate": (
        "(x, g, w, b) => (y) { s = Sigmoid(x) t = Mul(x, s) a = Mul(t, g) m = MatMul(a, w) h = Add(m, b) y = Gelu(h) }",
        ("m k", "m k", "k n", "n"),
    ),
    "scale, shift, relu": (
        "(x, s, t, w) => (y) { a = Mul(x, s) h = Add(a, t) r = Relu(h) y = MatMul(r, w) }", ("m k", "k", "k", "k n"),
    ),
    "row by row": (
        "(x, s, w, r) => (y) { a = Div(x, s) m = MatMul(a, w) y = Add(m, r) }", ("m k", "m 1", "k n", "m n"),
    ),
    "infinite at zero": ("(x, w) => (y) { a = Reciprocal(x) y = MatMul(a, w) }", ("m k", "k n")),
    "a number, and Gemm": (
        "(x, s, w, c) => (y) { a = Mul(x, s) y = Gemm <alpha = 0.5, transB = 1> (a, w, c) }", ("m k", "", "n k", "n"),
    ),
    "a gate": (
        "(x, u, g, w) => (y) { a = Max(x, u) m = MatMul(a, g) n = MatMul(a, w) s = Sigmoid(m) y = Mul(s, n) }",
        ("m k", "m k", "k n", "k n"),
    ),
    "side by side": (
        "(x, q, k) => (y, z) { a = Relu(x) y = MatMul(a, q) z = MatMul(a, k) }", ("m k", "k n", "k n"),
    ),
    "of a batch": ("(x, s, w) => (y) { a = Mul(x, s) y = MatMul(a, w) }", ("3 m k", "3 m 1", "3 k n")),
    "images and gates": (
        "(x, g, b, w) => (y) { a = Add(x, b) h = Mul(a, g) y = MatMul(h, w) }",
        ("2 m 3 k", "2 1 1 k", "2 1 1 k", "k n"),
    ),
    "the greater, and Gemm": (
        "(x, u, w) => (y) { a = Max(x, u) y = Gemm <transB = 1> (a, w) }", ("m k", "m k", "n k"),
    ),
    "of numbers": (
        "(q, s, w, b) => (y) { f = Cast <to = TYPE> (q) a = Mul(f, s) m = MatMul(a, w) y = Add(m, b) }",
        ("m k int8", "k", "k n", "n"),
    ),
    "in float32": (
        "(x, s, t, w) => (y) { f = Cast <to = 1> (x) a = Mul(f, s) b = Add(a, t) c = Cast <to = TYPE> (b) r = Relu(c) "
        "y = MatMul(r, w) }",
        ("m k", "k float", "k float", "k n"),
    ),
    "of wide numbers": (
        "(x, g, w) => (y) { f = Cast <to = TYPE> (x) a = Max(f, g) y = MatMul(a, w) }", ("m k float", "m k", "k n"),
    ),
}  # fmt: skip
"""Bodies whose left factor is computed, and the shapes of their inputs, with the type where it is not the factors'."""


def prologue(name: str, dtype: int, m: int, n: int, k: int) -> tuple[FusedOp, list[tuple[int, ...]]]:
    """Return a case of the prologues in this element type: [m, k] by [k, n]."""
    text, described = PROLOGUES[name]
    sizes = {"m": m, "n": n, "k": k}
    inputs = [[w for w in d.split() if w not in ("int8", "float")] for d in described]
    shapes = [tuple(sizes[w] if w in sizes else int(w) for w in words) for words in inputs]
    types = [next((t for w, t in KINDS.items() if d.endswith(w)), dtype) for d in described]
    outputs = (dtype,) * (text.split("=> (")[1].split(")")[0].count(",") + 1)
    return ops.op(text.replace("TYPE", str(dtype)), tuple(types), outputs, "gemm"), shapes


JOINED = """({NAMES}, s, t, w, b) => (y) {{
  c = Concat <axis = -1> ({NAMES}) a = Mul(c, s) d = Add(a, t) f = Relu(d) m = MatMul(f, w) h = Add(m, b) y = Relu(h)
}}"""


SIDE_BY_SIDE = "(NAMES, w, b) => (y) { c = Concat <axis = -1> (NAMES) m = MatMul(c, w) h = Add(m, b) y = Relu(h) }"
"""A product of matrices side by side as they are."""


def joined(
    dtype: int, rows: tuple[int, ...], n: int, terms: list[int], *, plain: bool = False
) -> tuple[FusedOp, list[tuple[int, ...]]]:
    """Return a product whose left factor is scale, shift and ReLU of matrices side by side, with so many terms each.

    `plain`: the matrices as they are.
    """
    names = ", ".join(f"p{i}" for i in range(len(terms)))
    k = sum(terms)
    shapes = [*((*rows, each) for each in terms), *([] if plain else [(k,), (k,)]), (k, n), (n,)]
    text = SIDE_BY_SIDE.replace("NAMES", names) if plain else JOINED.format(NAMES=names)
    return ops.op(text, (dtype,) * len(shapes), (dtype,), "gemm"), shapes


KINDS = {"int8": TensorProto.INT8, "float": TensorProto.FLOAT}


def multiplied(fused: FusedOp) -> set[int]:
    """Return the inputs that are factors, or that a factor is computed from: float32 rounds them to TF32."""
    parts = gemm_body.anatomy(fused)
    prologue = parts.prologue
    lefts = {parts.products[0].a} if prologue is None else {*prologue.inputs, *prologue.joined} - {gemm_body.JOINED}
    return {p.b for p in parts.products} | lefts


CONV = """(x, w, b, r) => (y) {
  a = Transpose <perm = [0, 3, 1, 2]> (x)
  v = Transpose <perm = [0, 3, 1, 2]> (w)
  c = Conv <ATTRIBUTES> (a, v)
  m = Transpose <perm = [0, 2, 3, 1]> (c)
  h = Add(m, b)
  s = Add(h, r)
  y = Relu(s)
}"""
"""A convolution over images with their channels last; `window` fills in how it slides."""
VOLUME = CONV.replace("[0, 3, 1, 2]", "[0, 4, 1, 2, 3]").replace("[0, 2, 3, 1]", "[0, 2, 3, 4, 1]")
"""The same over volumes."""


def window(
    dtype: int, images: tuple[int, ...], filters: int, kernel: tuple[int, ...], attributes: str = ""
) -> tuple[FusedOp, list[tuple[int, ...]]]:
    """Return the fused op and the shapes of its inputs: images [batch, height, width, channels], or volumes."""
    text = VOLUME if len(images) == 5 else CONV
    text = text.replace(" <ATTRIBUTES>", f" <{attributes}>" if attributes else "")
    fused = ops.op(text, (dtype,) * 4, (dtype,), "gemm")
    product = gemm_body.anatomy(fused).products[0]
    sliding, weights = product.sliding, (filters, *kernel, images[-1] // product.groups)
    assert sliding is not None
    out = (images[0], *sliding.over(images, kernel).out, filters)
    return fused, [images, weights, (filters,), out]


def case(text: str, dtype: int, rows: tuple[int, ...], n: int, k: int) -> tuple[FusedOp, list[tuple[int, ...]]]:
    """Return the fused op and the shapes of its inputs: [*rows, k] by [k, n]."""
    x, w, b = (*rows, k), (k, n), (n,)
    shapes = {
        PLAIN: [x, w],
        GELU: [x, w, b],
        TRANSPOSED: [x, (n, k), b],
        TRANSPOSED_GELU: [x, (n, k), b],
        RESIDUAL: [x, w, (1, n), (*rows, n), (*rows, 1)],
        TRANSPOSED_RESIDUAL: [x, (n, k), b, (*rows, n)],
        SWIGLU: [x, w, w],
        QKV: [x, w, w, w, b, b, b],
        SEVERAL: [x, w, b],
        PREACTIVATED: [x, w, (*rows, n), b, b],
    }[text]
    outputs = {QKV: (dtype,) * 3, SEVERAL: (dtype, ops.FLOAT), PREACTIVATED: (dtype,) * 2}.get(text, (dtype,))
    return ops.op(text, (dtype,) * len(shapes), outputs, "gemm"), shapes
