"""Parts side by side in one output that the tests share, on the host and on the GPU."""

from collections.abc import Sequence

import numpy as np

from bench.cases import ops
from onnxfuse.model.fused import FusedOp

TEXT = """(x, w, b, v, c, k, d) => (y) {
  m = MatMul(x, w) h = Add(m, b) p = Relu(h)
  i = Transpose <perm = [0,3,1,2]> (x) f = Transpose <perm = [0,3,1,2]> (v) e = Conv <pads = [1,1,1,1]> (i, f)
  l = Transpose <perm = [0,2,3,1]> (e) n = Add(l, c) q = Relu(n)
  j = Transpose <perm = [0,3,1,2]> (x) z = MaxPool <kernel_shape = [3,3], pads = [1,1,1,1]> (j)
  r = Transpose <perm = [0,2,3,1]> (z)
  o = Transpose <perm = [0,3,1,2]> (x) g = Transpose <perm = [0,3,1,2]> (k)
  s = Conv <pads = [1,1,1,1], group = 2> (o, g) t = Transpose <perm = [0,2,3,1]> (s) u = Add(t, d)
  y = Concat <axis = 3> (p, q, x, r, u)
}"""
"""A product, a convolution, an input as it is, a pooling and a convolution in groups."""


def case(
    dtype: int, images: int = 2, size: tuple[int, int] = (7, 6), channels: int = 16
) -> tuple[FusedOp, list[tuple[int, ...]]]:
    """Return the op and the shapes of its inputs."""
    op = ops.op(TEXT, (dtype,) * 7, (dtype,), "concat")
    weights = [(channels, 24), (24,), (40, 3, 3, channels), (40,), (16, 3, 3, channels // 2), (16,)]
    return op, [(images, *size, channels), *weights]


def inputs(op: FusedOp, shapes: Sequence[tuple[int, ...]], rng: np.random.Generator) -> list[np.ndarray]:
    """Return random inputs: sums of order one, and of float32 the bits alone that the tensor cores read."""
    found = [ops.random(rng, t, s) for t, s in zip(op.inputs, shapes, strict=True)]
    for i in (1, 3, 5):
        found[i] = (found[i].astype(np.float32) * 0.1).astype(found[i].dtype)
    if op.inputs[0] == ops.FLOAT:
        for i in (0, 1, 3, 5):
            found[i] = (found[i].view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return found
