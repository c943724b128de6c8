"""Dynamic quantization, run by the host's compiler: the range of a value and its elements in 8 bits, as
DynamicQuantizeLinear gives them, of inputs and of what rows, products and attention write."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from onnxfuse import cuda
from onnxfuse.cuda import LaunchPlan
from onnxfuse.cuda.build import nvrtc
from onnxfuse.cuda.planning.arch import A100, H200, SUPPORTED, Arch
from onnxfuse.model.fused import FusedOp, fused_ops
from onnxfuse.passes import pipeline
from onnxfuse.rules.language import rule_file
from tests.emulator import emulate
from tests.support.small import parse

SHAPES = [(1,), (3,), (4, 1), (1, 7), (3, 5, 4), (2, 33), (5, 1025), (40, 33, 7), (0, 4)]
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
    pipeline.run(
        made := onnx.ModelProto.FromString(model.SerializeToString()), rule_file.by_default(rule_file.shipped())
    )
    (node,), (op,) = made.graph.node, fused_ops(made).values()
    values = inputs | {w.name: numpy_helper.to_array(w) for w in made.graph.initializer}
    return op, [values[name] for name in node.input]


def alone(x: np.ndarray) -> tuple[FusedOp, list[np.ndarray]]:
    axes = ",".join("NMKL"[: x.ndim])
    text = f"g (float[{axes}] x) => (uint8[{axes}] y, float s, uint8 z) {{ y, s, z = DynamicQuantizeLinear (x) }}"
    return case(text, {"x": x})


def drawn(shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(np.random.default_rng(sum(shape)).standard_normal(shape), np.float32)


def quantizes(op: FusedOp, inputs: list[np.ndarray], aligned: bool, arch: Arch = H200) -> LaunchPlan:
    """Run an op, whose last outputs must be those of DynamicQuantizeLinear of its first one, or of its input.

    Return its plan.
    """
    plan = cuda.plan(op, tuple(a.shape for a in inputs), aligned, arch)
    types = [onnx.helper.tensor_dtype_to_np_dtype(t) for t in op.outputs]
    *others, s, z, y = emulate.run(plan, inputs, types, aligned)
    for got, expected in zip((y, s, z), reference((others or inputs)[0]), strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)
    return plan


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("aligned", [True, False])
def test_a_value(shape: tuple[int, ...], values: str, aligned: bool) -> None:
    """Equal to the last bit, also without an element, with one, and where the range is one point."""
    op, inputs = alone(np.asarray(VALUES[values](drawn(shape)), np.float32))
    assert op.template == "quantize"
    assert len(quantizes(op, inputs, aligned).then) == 1


def test_nan() -> None:
    """An element that is no number makes the scale none, wherever it lies."""
    for place in ((0, 0), (4, 77), (8, 129)):
        x = drawn((9, 130))
        x[place] = np.nan
        op, inputs = alone(x)
        s, *_ = emulate.run(cuda.plan(op, (x.shape,), True, H200), inputs, [np.float32, np.uint8, np.uint8], True)
        assert np.isnan(s)


NORM = """g (float[N,@] x, float[N,@] r) => (float[N,@] n, uint8[N,@] y, float s, uint8 z) {
  a = Add (x, r)
  n = LayerNormalization (a, scale, bias)
  y, s, z = DynamicQuantizeLinear (n)
}"""


@pytest.mark.parametrize("columns", [4, 31, 197, 768, 1025, 5000])
@pytest.mark.parametrize("rows", [1, 3, 70])
@pytest.mark.parametrize("aligned", [True, False])
def test_rows(rows: int, columns: int, aligned: bool) -> None:
    """A norm leaves the extremes of its rows, also of several rows of a warp and of rows that blocks share."""
    rng = np.random.default_rng(rows)
    weights = {n: rng.standard_normal(columns).astype(np.float32) for n in ("scale", "bias")}
    values = {n: rng.standard_normal((rows, columns)).astype(np.float32) for n in ("x", "r")}
    op, inputs = case(NORM.replace("@", str(columns)), values, **weights)
    assert op.template == "quantize_output"
    assert len(quantizes(op, inputs, aligned).then) == 1


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


@pytest.mark.parametrize(("rows", "columns"), [(130, 64), (64, 72), (33, 16), (1, 48)])
@pytest.mark.parametrize("arch", [H200, A100], ids=lambda arch: arch.name)
def test_products(rows: int, columns: int, arch: Arch) -> None:
    """Where the product's kernel is not Hopper's a launch between finds the extremes of what it has written."""
    op, inputs = product(rows, columns)
    assert len(quantizes(op, inputs, arch is A100 and rows > 1, arch).then) == 2


@pytest.mark.parametrize(("rows", "columns"), [(1024, 3072), (1024, 768), (200, 320), (4096, 3072)])
def test_hoppers_product_compiles(rows: int, columns: int) -> None:
    """It leaves the extremes of what its warps store, a part of each; tests/gpu runs it."""
    op, inputs = product(rows, columns)
    plan = cuda.plan(op, tuple(a.shape for a in inputs), True, H200)
    assert len(plan.then) == 1
    warps = plan.block[0] // 32 - 4
    assert plan.scratch_bytes >= 8 * plan.grid[0] * warps
    cubin, log = nvrtc.build(plan.kernel, H200, ("-Xptxas=-v",))
    assert cubin
    assert "serialized" not in log
    assert "0 bytes spill stores" in log


@pytest.mark.parametrize("arch", SUPPORTED, ids=lambda arch: arch.name)
def test_the_launches_compile(arch: Arch) -> None:
    op, inputs = alone(drawn((64, 768)))
    plan = cuda.plan(op, tuple(a.shape for a in inputs), True, arch)
    for launch in (plan, *plan.then):
        cubin, log = nvrtc.build(launch.kernel, arch, ("-Xptxas=-v",))
        assert cubin
        assert "0 bytes spill stores" in log


ATTENTION = """g (float[N,S,64] q, float[N,T,64] k, float[N,T,64] v, float[N,1,1,T] mask) => (float[N,S,64] h, uint8[N,S,64] y, float s, uint8 z)
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


@pytest.mark.parametrize(("queries", "keys"), [(17, 33), (100, 100), (1, 70), (130, 8)])
@pytest.mark.parametrize("arch", [H200, A100], ids=lambda arch: arch.name)
def test_attention(queries: int, keys: int, arch: Arch) -> None:
    """Each warp leaves the extremes of its queries' results, none of queries that there are not."""
    op, inputs = attention(3, queries, keys)
    assert op.template == "quantize_output"
    assert op.library is not None
    assert len(quantizes(op, inputs, True, arch).then) == 1


def test_many_parts() -> None:
    """More parts than a block combines by itself become few by a launch of their own."""
    weights = {n: np.ones(4, np.float32) for n in ("scale", "bias")}
    values = {n: drawn((2100, 4)) for n in ("x", "r")}
    op, inputs = case(NORM.replace("@", "4"), values, **weights)
    assert len(quantizes(op, inputs, True).then) == 2
