"""Products and convolutions of 8-bit integers that are quantized again, with what they should give."""

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from bench.cases import ops
from onnxfuse.model.fused import FusedOp
from tests.support import small

FLOAT, INT8, UINT8 = TensorProto.FLOAT, TensorProto.INT8, TensorProto.UINT8

BEHIND = """f = Cast <to = 1> (m) g = Mul (f, s) h = Add (g, b) d = DequantizeLinear (r, t, u) e = Add (h, d)
  i = Relu (e) y = QuantizeLinear (i, q, z)"""
PRODUCT = (
    f"(x, w, s, b, r, t, u, q, z) => (y) {{ v = Transpose <perm = [1, 0]> (w) m = MatMulInteger (x, v) {BEHIND} }}"
)
WINDOW = f"""(x, w, s, b, r, t, u, q, z) => (y) {{ a = Transpose <perm = [0, 3, 1, 2]> (x)
  v = Transpose <perm = [0, 3, 1, 2]> (w) c = ConvInteger <ATTRIBUTES> (a, v) m = Transpose <perm = [0, 2, 3, 1]> (c)
  {BEHIND} }}"""
"""A residual in 8 bits; of channels-last images."""


def case(
    text: str, rows: tuple[int, ...], n: int, terms: tuple[int, ...], to: int = INT8, attributes: str = ""
) -> tuple[FusedOp, list[tuple[int, ...]]]:
    """Return the fused op and its inputs' shapes; `terms` are those of a row of the weight, `rows` the input's shape
    without its terms, of images their batch and size."""
    text = text.replace("<ATTRIBUTES>", f"<{attributes}>")
    types = (UINT8, INT8, FLOAT, FLOAT, INT8, FLOAT, INT8, FLOAT, to)
    places = _places(rows, terms, attributes) if "ConvInteger" in text else rows
    shapes = [(*rows, terms[-1]), (n, *terms), (n,), (n,), (*places, n), (), (), (), ()]
    return ops.op(text, types, (to,), "gemm"), shapes


def _places(images: tuple[int, ...], kernel: tuple[int, ...], attributes: str) -> tuple[int, ...]:
    pad = 2 if "pads = [1,1,1,1]" in attributes else 0
    stride = 2 if "strides = [2,2]" in attributes else 1
    return (images[0], *((extent + pad - k) // stride + 1 for extent, k in zip(images[1:], kernel, strict=False)))


def drawn(shapes: Sequence[tuple[int, ...]], to: int) -> list[np.ndarray]:
    """Return inputs whose results use all numbers of the type, and saturate at both ends."""
    random = np.random.default_rng(0)
    x, w, _, _, r, *_ = shapes
    terms = int(np.prod(w[1:]))
    return [
        random.integers(0, 256, x).astype(np.uint8),
        random.integers(-128, 128, w).astype(np.int8),
        (random.uniform(0.5, 2, w[:1]) / (147 * 74 * np.sqrt(terms))).astype(np.float32),
        random.standard_normal(w[:1]).astype(np.float32),
        random.integers(-128, 128, r).astype(np.int8),
        np.float32(0.01),
        np.int8(7),
        np.float32(0.02),
        np.int8(-100) if to == INT8 else np.uint8(20),
    ]


def product(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the exact sums of the products of the rows of two matrices of integers [..., terms].

    They stay below 2^53, so they are exact in float64, which BLAS multiplies ten times faster than integers.
    """
    return np.asarray(x.astype(np.float64) @ w.astype(np.float64).T)


def convolved(inputs: Sequence[np.ndarray], attributes: str) -> np.ndarray:
    """Return the exact sums of windows over images, padded by one place."""
    x, w = (a.astype(np.float64) for a in inputs[:2])
    stride = 2 if "strides = [2,2]" in attributes else 1
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))), w.shape[1:3], (1, 2)
    )
    return np.asarray(np.einsum("nhwcrs,orsc->nhwo", windows[:, ::stride, ::stride], w, optimize=True))


def wanted(sums: np.ndarray, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Return what is written of exact sums, rounded once."""
    _, _, s, b, r, t, u, q, z = (np.asarray(a, np.float64) for a in inputs)
    numbers = np.maximum(sums * s + b + (r - u) * t, 0)
    limits = np.iinfo(inputs[-1].dtype)
    return np.asarray(np.clip(np.rint(numbers / q) + z, limits.min, limits.max))


def assert_same_steps(got: np.ndarray, wanted: np.ndarray) -> None:
    """Assert that integers are equal, but for one in a thousand that is a step aside: where rounding is a tie."""
    apart = np.abs(got.astype(np.int64) - wanted.astype(np.int64))
    assert apart.max(initial=0) <= 1
    assert (apart > 0).mean() <= 1e-3


GELU_SCALES = """sa = Constant <value = float {0.031}> () za = Constant <value = int8 {3}> ()
  se = Constant <value = float {0.0078}> () ze = Constant <value = int8 {0}> ()
  sp = Constant <value = float {0.0157}> () zp = Constant <value = int8 {-128}> ()
  sm = Constant <value = float {0.06}> () zm = Constant <value = int8 {-122}> ()
  so = Constant <value = float {0.03}> () zo = Constant <value = uint8 {8}> ()
  root = Constant <value = float {1.4142135}> () one = Constant <value = float {1.0}> ()
  half = Constant <value = float {0.5}> ()"""
GELU = """d = DequantizeLinear (q, sa, za) e = Div (d, root) r = Erf (e)
  qr = QuantizeLinear (r, se, ze) dr = DequantizeLinear (qr, se, ze) a = Add (dr, one)
  qa = QuantizeLinear (a, sp, zp) da = DequantizeLinear (qa, sp, zp) p = Mul (d, da)
  qp = QuantizeLinear (p, sm, zm) dp = DequantizeLinear (qp, sm, zm) o = Mul (dp, half)
  y = QuantizeLinear (o, so, zo)"""
"""What quantize_static writes of a GELU: int8 q to uint8 y."""
GELU_PRODUCT = f"""(x, w, s, b) => (y) {{ v = Transpose <perm = [1, 0]> (w) m = MatMulInteger (x, v)
  f = Cast <to = 1> (m) g = Mul (f, s) h = Add (g, b) {GELU_SCALES} q = QuantizeLinear (h, sa, za) {GELU} }}"""


def gelu_case(rows: tuple[int, ...], n: int, k: int) -> tuple[FusedOp, list[tuple[int, ...]]]:
    """Return a layer of a quantized model with its GELU, and its inputs' shapes."""
    fused = ops.op(GELU_PRODUCT, (UINT8, INT8, FLOAT, FLOAT), (UINT8,), "gemm")
    return fused, [(*rows, k), (n, k), (), (n,)]


def gelu_drawn(shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """Return inputs whose sums, scale and bias are exact in float32: nothing is rounded before the first Q."""
    random = np.random.default_rng(0)
    x, w, _, b = shapes
    scale = np.asarray(2.0 ** -np.round(np.log2(147 * 74 * np.sqrt(x[-1]) / 2)), np.float32)
    return [
        random.integers(0, 256, x).astype(np.uint8),
        random.integers(-128, 128, w).astype(np.int8),
        scale,
        random.integers(-1000, 1000, b).astype(np.float32) * scale,
    ]


def gelu_wanted(inputs: Sequence[np.ndarray]) -> np.ndarray:
    """Return what ONNX Runtime's own nodes make of the exact sums."""
    x, w, s, b = inputs
    h = (product(x, w) * s.astype(np.float64) + b).astype(np.float32)
    return by_nodes(f"q = QuantizeLinear (h, sa, za) {GELU}", "float", h=h)


def by_nodes(nodes: str, element: str, **read: np.ndarray) -> np.ndarray:
    """Return y, of uint8, of nodes beside the scales of a GELU, by ONNX Runtime without its optimizations."""
    ((name, array),) = read.items()
    extents = ",".join(map(str, array.shape))
    model = small.parse(f"g ({element}[{extents}] {name}) => (uint8[{extents}] y) {{ {GELU_SCALES} {nodes} }}")
    return small.run(model, read)[0]


THREE_SCALES = ((0.03, 3, 0.031, 5), (0.04, -9, 0.038, -9), (0.05, 0, 0.045, 0))
"""Of queries, keys and values: scale and zero point of the product, and of its sum with the bias."""


def _third(n: int, steps: tuple[float, int, float, int]) -> str:
    s, z, t, u = steps
    # A zero point of 0 is left out of a DequantizeLinear.
    zero = f", z{n}" if z else ""
    return f"""s{n} = Constant <value = float {{{s}}}> () z{n} = Constant <value = int8 {{{z}}}> ()
      t{n} = Constant <value = float {{{t}}}> () u{n} = Constant <value = int8 {{{u}}}> ()
      v{n} = Transpose <perm = [1, 0]> (w{n}) m{n} = MatMulInteger (x, v{n}) f{n} = Cast <to = 1> (m{n})
      g{n} = Mul (f{n}, c{n}) q{n} = QuantizeLinear (g{n}, s{n}, z{n}) d{n} = DequantizeLinear (q{n}, s{n}{zero})
      a{n} = Add (d{n}, b{n}) y{n} = QuantizeLinear (a{n}, t{n}, u{n})"""


def three_case(rows: tuple[int, ...], n: int, k: int) -> tuple[FusedOp, list[tuple[int, ...]]]:
    """Return products of one input as queries, keys and values of a static file, and the shapes of the inputs."""
    names = ", ".join(f"w{i}, c{i}, b{i}" for i in range(3))
    bodies = " ".join(_third(i, steps) for i, steps in enumerate(THREE_SCALES))
    text = f"(x, {names}) => (y0, y1, y2) {{ {bodies} }}"
    types = (INT8, *(INT8, FLOAT, FLOAT) * 3)
    return ops.op(text, types, (INT8,) * 3, "gemm"), [(*rows, k), *([(n, k), (n,), (n,)] * 3)]


def three_drawn(shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    """Return inputs whose results use all numbers of the type."""
    random = np.random.default_rng(0)
    inputs: list[np.ndarray] = [random.integers(-128, 128, shapes[0]).astype(np.int8)]
    for weight, *_ in zip(shapes[1::3], shapes[2::3], strict=True):
        inputs += [
            random.integers(-128, 128, weight).astype(np.int8),
            (random.uniform(0.5, 2, weight[:1]) / (74 * 74 * np.sqrt(weight[1]))).astype(np.float32) * 2,
            random.standard_normal(weight[:1]).astype(np.float32) / 4,
        ]
    return inputs


def three_wanted(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return what is written of exact sums."""
    x, *others = inputs
    results = []
    for (s, z, t, u), w, c, b in zip(THREE_SCALES, others[::3], others[1::3], others[2::3], strict=True):
        s, t = float(np.float32(s)), float(np.float32(t))
        sums = product(x, w) * c.astype(np.float64)
        numbers = (np.clip(np.rint(sums / s) + z, -128, 127) - z) * s + b
        results.append(np.clip(np.rint(numbers / t) + u, -128, 127))
    return results
