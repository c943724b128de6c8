"""The families of reductions, as bodies with their shapes: for the emulation, the GPU tests and the bandwidth table."""

from collections.abc import Callable
from dataclasses import dataclass

from bench.cases import ops
from bench.cases.ops import BOOL, INT32, INT64
from onnxfuse.model.fused import FusedOp

Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Rows:
    """A body that reduces, and the shapes that it meets."""

    text: str
    small: Shapes
    """Odd extents, for tests."""
    large: Callable[[int], Shapes]
    """Of so many elements in the full tensor, for the bandwidth."""
    inputs: tuple[int, ...] = (0,)
    """Element types; 0 = that of the family's member."""
    outputs: tuple[int, ...] = (0,)
    opset: int = 23

    def op(self, dtype: int) -> FusedOp:
        """Return the fused op with this element type."""
        of = tuple(t or dtype for t in self.inputs)
        return ops.op(self.text, of, tuple(t or dtype for t in self.outputs), "row", self.opset)


def axes(*numbers: int) -> str:
    """Return a Constant node `a` with these axes."""
    return f"a = Constant <value_ints = [{', '.join(map(str, numbers))}]> ()"


NORM_NCHW = f"""(x, g, b) => (y) {{ {axes(1)} e = Constant <value = float {{1e-6}}> () f = CastLike (e, x)
  m = ReduceMean (x, a) d = Sub (x, m) s = Mul (d, d) v = ReduceMean (s, a) t = Add (v, f) r = Sqrt (t) n = Div (d, r)
  k = Mul (n, g) y = Add (k, b) }}"""
GROUPED = """(x, i, z, g, b) => (y) { s = Constant <value_ints = [0, 32, -1]> () o = Shape (x)
  r = Reshape (x, s) n = InstanceNormalization (r, i, z) t = Reshape (n, o) k = Mul (t, g) c = Add (k, b)
  q = Sigmoid (c) y = Mul (c, q) }"""
STEP = f"""(h, u) => (d, y) {{ {axes(0)} z = Constant <value = float {{0}}> () f = CastLike (z, h)
  m = LessOrEqual (h, f) d = Where (m, f, u) y = ReduceSum <keepdims = 0> (d, a) }}"""
CAUSAL = """(x, q, k) => (y) { c = LessOrEqual (k, q) l = Constant <value = float {-10000}> () f = CastLike (l, x)
  w = Where (c, x, f) y = Softmax <axis = -1> (w) }"""

EMBEDDED = """(w, i, p, j, g, b) => (s, y) { u = Gather (w, i) v = Gather (p, j) s = Add (u, v)
  y = LayerNormalization (s, g, b) }"""


def images(channels: int, *pixels: int) -> Callable[[int], Shapes]:
    """Return [images, channels, pixels] for so many elements."""

    def shapes(elements: int) -> Shapes:
        size = channels
        for n in pixels:
            size *= n
        return ((elements // size, channels, *pixels),)

    return shapes


def matrix(columns: int, *more: tuple[int, ...]) -> Callable[[int], Shapes]:
    """Return [rows, columns] for so many elements, and further operands."""
    return lambda elements: ((elements // columns, columns), *more)


def topk(k: int, dtype: int, attributes: str = "") -> FusedOp:
    """Return a TopK along rows."""
    text = f"(x) => (v, i) {{ k = Constant <value_ints = [{k}]> () v, i = TopK {attributes} (x, k) }}"
    return ops.op(text, (dtype,), (dtype, INT64), "topk")


TEMPLATES = {
    "log softmax": Rows("(x) => (y) { y = LogSoftmax <axis = -1> (x) }", ((5, 197),), matrix(1024)),
    "scale + bool mask + softmax": Rows(
        """(x, k) => (y) { c = Constant <value = float {0.125}> () f = CastLike (c, x) s = Mul (x, f)
        l = Constant <value = float {-10000}> () g = CastLike (l, x) w = Where (k, s, g)
        y = Softmax <axis = -1> (w) }""",
        ((2, 3, 5, 40), (2, 1, 1, 40)), lambda n: ((n // 2**20 // 4, 4, 1024, 1024), (n // 2**20 // 4, 1, 1, 1024)),
        (0, BOOL),
    ),
    "causal softmax": Rows(
        CAUSAL, ((2, 3, 5, 40), (5, 1), (1, 40)),
        lambda n: ((n // 2**20 // 4, 4, 1024, 1024), (1024, 1), (1, 1024)), (0, INT64, INT64),
    ),
    "softmax over channels": Rows("(x) => (y) { y = Softmax <axis = 1> (x) }", ((2, 21, 7, 8),), images(21, 512, 512)),
    "layer norm of NCHW": Rows(
        NORM_NCHW, ((2, 12, 7, 8), (12, 1, 1), (12, 1, 1)),
        lambda n: (images(96, 56, 56)(n)[0], (96, 1, 1), (96, 1, 1)),
        (0, 0, 0),
    ),
    "layer norm of 3 axes": Rows(
        "(x, g, b) => (y) { y = LayerNormalization <axis = 1> (x, g, b) }", ((3, 4, 5, 7),) * 1 + ((4, 5, 7),) * 2,
        lambda n: ((n // 12544, 64, 14, 14), (64, 14, 14), (64, 14, 14)), (0, 0, 0),
    ),
    "instance norm + relu": Rows(
        "(x, g, b) => (y) { n = InstanceNormalization (x, g, b) y = Relu (n) }", ((2, 12, 7, 9), (12,), (12,)),
        lambda n: (images(64, 128, 128)(n)[0], (64,), (64,)), (0, 0, 0),
    ),
    "group norm + silu": Rows(
        """(x, g, b) => (y) { n = GroupNormalization <num_groups = 4, stash_type = 1> (x, g, b)
        s = Sigmoid (n) y = Mul (n, s) }""",
        ((2, 12, 7, 9), (12,), (12,)), lambda n: (images(128, 32, 32)(n)[0], (128,), (128,)), (0, 0, 0),
    ),
    "group norm of 320 channels + silu": Rows(
        """(x, g, b) => (y) { n = GroupNormalization <num_groups = 32, stash_type = 1> (x, g, b)
        s = Sigmoid (n) y = Mul (n, s) }""",
        ((2, 64, 3, 5), (64,), (64,)), lambda n: (images(320, 64, 64)(n)[0], (320,), (320,)), (0, 0, 0),
    ),
    "group norm as instance norm + silu": Rows(
        GROUPED, ((2, 64, 5, 3), (32,), (32,), (64, 1, 1), (64, 1, 1)),
        lambda n: (images(320, 64, 64)(n)[0], (32,), (32,), (320, 1, 1), (320, 1, 1)), (0,) * 5,
    ),
    "group norm of NHWC + silu": Rows(
        """(x, g, b) => (y) { f = Transpose <perm = [0, 3, 1, 2]> (x)
        n = GroupNormalization <num_groups = 32, stash_type = 1> (f, g, b) l = Transpose <perm = [0, 2, 3, 1]> (n)
        s = Sigmoid (l) y = Mul (l, s) }""",
        ((2, 3, 5, 192), (192,), (192,)), lambda n: ((n // (64 * 64 * 320), 64, 64, 320), (320,), (320,)), (0, 0, 0),
    ),
    "embedding + group norm of NHWC + silu": Rows(
        """(x, a, t, g, b) => (y) { u = Add (x, a) w = Add (u, t) f = Transpose <perm = [0, 3, 1, 2]> (w)
        n = GroupNormalization <num_groups = 32, stash_type = 1> (f, g, b) l = Transpose <perm = [0, 2, 3, 1]> (n)
        s = Sigmoid (l) y = Mul (l, s) }""",
        ((2, 3, 5, 192), (192,), (2, 1, 1, 192), (192,), (192,)),
        lambda n: ((m := n // (64 * 64 * 320), 64, 64, 320), (320,), (m, 1, 1, 320), (320,), (320,)), (0,) * 5,
    ),
    "layer norm into windows": Rows(
        """(x, g, b) => (y) { s = Constant <value_ints = [-1, 2, 7, 2, 7, 96]> () n = LayerNormalization (x, g, b)
        r = Reshape (n, s) y = Transpose <perm = [0, 1, 3, 2, 4, 5]> (r) }""",
        ((1, 14, 14, 96), (96,), (96,)), lambda n: ((n // (14 * 14 * 96), 14, 14, 96), (96,), (96,)), (0, 0, 0),
    ),
    "layer norm of merged patches": Rows(
        """(x, g, b) => (y) { s = Constant <value_ints = [-1, 28, 2, 28, 2, 96]> () r = Reshape (x, s)
        t = Transpose <perm = [0, 1, 3, 4, 2, 5]> (r) f = Constant <value_ints = [-1, 28, 28, 384]> ()
        m = Reshape (t, f) y = LayerNormalization (m, g, b) }""",
        ((1, 56, 56, 96), (384,), (384,)), lambda n: ((n // (56 * 56 * 96), 56, 56, 96), (384,), (384,)), (0, 0, 0),
    ),
    "l2 norm": Rows(
        f"(x) => (y) {{ {axes(-1)} n = ReduceL2 (x, a) y = Div (x, n) }}", ((5, 197),), matrix(1024)
    ),
    "l2 norm over channels": Rows(
        f"(x) => (y) {{ {axes(1)} n = ReduceL2 (x, a) y = Div (x, n) }}", ((2, 12, 7, 8),), images(128, 32, 32)
    ),
    "batch statistics": Rows(
        f"""(x) => (m, v) {{ {axes(0, 2, 3)} m = ReduceMean (x, a) d = Sub (x, m) s = Mul (d, d)
        v = ReduceMean <keepdims = 0> (s, a) }}""",
        ((3, 5, 7, 4),), images(256, 28, 28), outputs=(0, 0),
    ),
    "pool NCHW": Rows("(x) => (y) { r = Relu (x) y = GlobalAveragePool (r) }", ((2, 5, 7, 7),), images(256, 56, 56)),
    "pool NCHW 7x7": Rows("(x) => (y) { r = Relu (x) y = GlobalAveragePool (r) }", ((2, 5, 7, 7),), images(2048, 7, 7)),
    "pool NHWC": Rows(
        f"(x) => (y) {{ {axes(1, 2)} r = Relu (x) y = ReduceMean <keepdims = 0> (r, a) }}", ((2, 7, 7, 24),),
        lambda n: ((n // (56 * 56 * 256), 56, 56, 256),),
    ),
    "mean of rows": Rows(
        f"(x) => (y) {{ {axes(-1)} s = Sigmoid (x) y = ReduceMean (s, a) }}", ((9, 197),), matrix(1024)
    ),
    "mean of the middle": Rows(
        f"(x) => (y) {{ {axes(1)} s = Mul (x, x) y = ReduceMean <keepdims = 0> (s, a) }}", ((3, 33, 40),),
        lambda n: ((n // (512 * 768), 512, 768),),
    ),
    "sum over the batch": Rows(
        f"(x) => (y) {{ {axes(0)} s = Relu (x) y = ReduceSum <keepdims = 0> (s, a) }}", ((133, 40),), matrix(1024)
    ),
    "sum over a long batch": Rows(
        f"(x) => (y) {{ {axes(0)} s = Relu (x) y = ReduceSum <keepdims = 0> (s, a) }}", ((400, 8),), matrix(64)
    ),
    "relu backward + bias gradient": Rows(
        STEP, ((133, 40), (133, 40)), lambda n: ((n // 1024, 1024),) * 2, (0, 0), (0, 0)
    ),
    "max over the last two": Rows(
        f"(x) => (y) {{ {axes(-2, -1)} b = Abs (x) y = ReduceMax <keepdims = 0> (b, a) }}", ((5, 7, 9),),
        lambda n: ((n // (64 * 128), 64, 128),),
    ),
    "arg max of rows": Rows(
        "(x) => (y) { s = Neg (x) y = ArgMax <axis = -1, keepdims = 0> (s) }", ((7, 197),), matrix(32000),
        outputs=(INT64,),
    ),
    "arg max over channels": Rows(
        "(x) => (y) { s = Neg (x) y = ArgMax <axis = 1, keepdims = 0> (s) }", ((2, 21, 7, 8),), images(21, 512, 512),
        outputs=(INT64,),
    ),
    # Whole numbers are drawn from -50 to 99: numbers of the tables' rows.
    "embeddings + layer norm": Rows(
        EMBEDDED, ((100, 40), (3, 5), (100, 40), (1, 5), (40,), (40,)),
        lambda n: ((30522, 768), (n // 2**19, 512), (512, 768), (1, 512), (768,), (768,)),
        (0, INT64, 0, INT32, 0, 0), (0, 0),
    ),
    "embeddings of odd width + layer norm": Rows(
        EMBEDDED, ((100, 197), (3, 5), (128, 197), (1, 5), (197,), (197,)),
        lambda n: ((30522, 767), (n // 2**19, 512), (512, 767), (1, 512), (767,), (767,)),
        (0, INT32, 0, INT64, 0, 0), (0, 0),
    ),
    "norm in float": Rows(
        """(x, g) => (y) { w = Cast <to = 1> (x)
        s = Mul (w, w) a = Constant <value_ints = [-1]> ()
        m = ReduceMean (s, a) e = Constant <value = float {1e-6}> () t = Add (m, e) r = Sqrt (t)
        o = Constant <value = float {1}> ()
        f = Div (o, r) n = Mul (w, f) c = CastLike (n, g) y = Mul (c, g) }""",
        ((5, 40), (40,)), matrix(4096, (4096,)), (0, 0),
    ),
}  # fmt: skip
