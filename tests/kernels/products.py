"""Bodies and sizes that the tests of the gemm template share, on the host and on the GPU."""

from onnxfuse.kernels import anatomy
from onnxfuse.model.fused import FusedOp
from tests.kernels import ops

PLAIN = "(x, w) => (y) { y = MatMul(x, w) }"
GELU = "(x, w, b) => (y) { m = MatMul(x, w) a = Add(m, b) y = Gelu(a) }"
TRANSPOSED = "(x, w, b) => (y) { m = Gemm <transB = 1> (x, w) y = Add(m, b) }"
TRANSPOSED_GELU = "(x, w, b) => (y) { m = Gemm <transB = 1> (x, w) a = Add(m, b) y = Gelu(a) }"
RESIDUAL = "(x, w, b, r, s) => (y) { m = MatMul(x, w) a = Add(b, m) c = Mul(a, s) y = Add(c, r) }"
SWIGLU = "(x, g, u) => (y) { m = MatMul(x, g) n = MatMul(x, u) s = Sigmoid(m) t = Mul(m, s) y = Mul(t, n) }"
QKV = """(x, q, k, v, a, b, c) => (y, z, t) { m = MatMul(x, q) n = MatMul(x, k) o = MatMul(x, v)
  y = Add(m, a) z = Add(b, n) t = Add(o, c) }"""
SEVERAL = "(x, w, b) => (y, z) { m = MatMul(x, w) y = Add(m, b) z = Cast <to = 1> (y) }"

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


def window(
    dtype: int, images: tuple[int, int, int, int], filters: int, kernel: tuple[int, int], attributes: str = ""
) -> tuple[FusedOp, list[tuple[int, ...]]]:
    """Return the fused op and the shapes of its inputs: images [batch, height, width, channels]."""
    text = CONV.replace(" <ATTRIBUTES>", f" <{attributes}>" if attributes else "")
    fused = ops.op(text, (dtype,) * 4, (dtype,), "gemm")
    weights = (filters, *kernel, images[3])
    parts = anatomy.anatomy(fused)
    sliding = parts.products[0].sliding
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
        SWIGLU: [x, w, w],
        QKV: [x, w, w, w, b, b, b],
        SEVERAL: [x, w, b],
    }[text]
    outputs = {QKV: (dtype,) * 3, SEVERAL: (dtype, ops.FLOAT)}.get(text, (dtype,))
    return ops.op(text, (dtype,) * len(shapes), outputs, "gemm"), shapes
