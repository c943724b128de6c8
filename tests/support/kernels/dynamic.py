"""Fused ops of dynamic quantization with what they read: of an input, and of what rows, products, attention compute."""

import numpy as np
import onnxruntime as ort
from onnx import ModelProto, numpy_helper

from onnxfuse.model.fused import FusedOp, fused_ops
from onnxfuse.passes import pipeline
from onnxfuse.rules.language import rule_file
from tests.support.small import parse

VALUES = {
    "normal": lambda x: x,
    "shifted": lambda x: x * 3 + 40,
    "negative": lambda x: -abs(x) - 1,
    "zeros": lambda x: x * 0,
    "negative zeros": lambda x: -abs(x) * 0,
    "constant": lambda x: x * 0 + 2.5,
    "tiny": lambda x: x * np.float32(1e-30),
    "huge": lambda x: x * np.float32(2e37),
}


"""Inputs by what is made of normally distributed numbers."""


def reference(x: np.ndarray) -> list[np.ndarray]:
    """Return what ONNX Runtime's CPU provider gives: elements, scale, zero point."""
    model = parse("g (float[] x) => (uint8[] y, float s, uint8 z) { y, s, z = DynamicQuantizeLinear (x) }")
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.ClearField("shape")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, {"x": x}))


def case(text: str, inputs: dict[str, np.ndarray], **weights: np.ndarray) -> tuple[FusedOp, list[np.ndarray]]:
    """Return the only fused op of a model, and what it reads: `inputs` of the model, and weights."""
    model = parse(text)
    model.graph.initializer.extend(numpy_helper.from_array(w, name) for name, w in weights.items())
    made = ModelProto.FromString(model.SerializeToString())
    pipeline.run(made, rule_file.by_default(rule_file.shipped()))
    (node,), (op,) = made.graph.node, fused_ops(made).values()
    values = inputs | {w.name: numpy_helper.to_array(w) for w in made.graph.initializer}
    return op, [values[name] for name in node.input]


def alone(x: np.ndarray) -> tuple[FusedOp, list[np.ndarray]]:
    axes = ",".join("NMKL"[: x.ndim])
    text = f"g (float[{axes}] x) => (uint8[{axes}] y, float s, uint8 z) {{ y, s, z = DynamicQuantizeLinear (x) }}"
    return case(text, {"x": x})


def drawn(shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(np.random.default_rng(sum(shape)).standard_normal(shape), np.float32)


NORM = """g (float[N,@] x, float[N,@] r) => (float[N,@] n, uint8[N,@] y, float s, uint8 z) {
  a = Add (x, r)
  n = LayerNormalization (a, scale, bias)
  y, s, z = DynamicQuantizeLinear (n)
}"""


def norm(rows: int, columns: int) -> tuple[FusedOp, list[np.ndarray]]:
    """Return a residual sum with its norm, and what it reads."""
    rng = np.random.default_rng(rows)
    weights = {n: rng.standard_normal(columns).astype(np.float32) for n in ("scale", "bias")}
    values = {n: rng.standard_normal((rows, columns)).astype(np.float32) for n in ("x", "r")}
    return case(NORM.replace("@", str(columns)), values, **weights)


PRODUCT = """g (uint8[N,64] x, int32[1,@] shift, float t) => (float[N,@] h, uint8[N,@] y, float s, uint8 z) {
  m = MatMulInteger (x, w)
  d = Sub (m, shift)
  f = Cast <to = 1> (d)
  g = Mul (f, t)
  a = Add (g, b)
  h = Relu (a)
  y, s, z = DynamicQuantizeLinear (h)
}"""


def product(rows: int, columns: int) -> tuple[FusedOp, list[np.ndarray]]:
    """Return a product and what it reads. Beside its output is no number but the bias, the greatest one of all then."""
    rng, k = np.random.default_rng(rows), 64
    w = rng.integers(-128, 128, (k, columns)).astype(np.int8)
    b = (rng.standard_normal(columns) + 500).astype(np.float32)
    x = rng.integers(0, 256, (rows, k)).astype(np.uint8)
    values: dict[str, np.ndarray] = {
        "x": x,
        "shift": rng.integers(-9, 9, (1, columns)).astype(np.int32),
        "t": np.array(-0.01, np.float32),
    }
    return case(PRODUCT.replace("@", str(columns)), values, w=w, b=b)


ATTENTION = """g (float[N,S,64] q, float[N,T,64] k, float[N,T,64] v, float[N,1,1,T] mask)
=> (float[N,S,64] h, uint8[N,S,64] y, float s, uint8 z)
<int64[4] heads = {0, 0, 2, 32}, int64[3] flat = {0, 0, 64}, float root = {5.6568}> {
  a = Reshape (q, heads)
  b = Reshape (k, heads)
  c = Reshape (v, heads)
  d = Transpose <perm = [0,2,1,3]> (a)
  e = Transpose <perm = [0,2,3,1]> (b)
  f = Transpose <perm = [0,2,1,3]> (c)
  m = MatMul (d, e)
  o = Div (m, root)
  p = Add (o, mask)
  r = Softmax (p)
  t = MatMul (r, f)
  u = Transpose <perm = [0,2,1,3]> (t)
  h = Reshape (u, flat)
  y, s, z = DynamicQuantizeLinear (h)
}"""


def attention(batch: int, queries: int, keys: int) -> tuple[FusedOp, list[np.ndarray]]:
    rng = np.random.default_rng(queries)
    values = {n: rng.standard_normal((batch, queries if n == "q" else keys, 64)).astype(np.float32) for n in "qkv"}
    values["mask"] = np.where(rng.random((batch, 1, 1, keys)) < 0.3, -1e4, 0).astype(np.float32)
    return case(ATTENTION, values)
