"""An initializer that is a graph input, too, is a default: what was made computes with what a caller gives."""

import numpy as np
import onnx
import onnx.parser
import pytest

import onnxfuse
from onnxfuse.model.overridable import keep_initializers, overridable
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import value_types
from tests.support.extents import extents
from tests.support.small import run

X = np.random.default_rng(0).standard_normal((2, 4, 6)).astype(np.float32)


def model(body: str, inputs: str, weights: str) -> onnx.ModelProto:
    """Return `x[N, 4, 6], inputs -> y` of a shape that nobody declares."""
    graph = f"g (float[N,4,6] x, {inputs}) => (float[] y) <{weights}> {{ {body} }}"
    made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {graph}')
    made.graph.output[0].type.tensor_type.ClearField("shape")
    return made


def numbers(*values: int) -> np.ndarray:
    """Return integers as a caller gives them."""
    return np.array(values, np.int64)


FORMS = {
    "Reshape": ("a = Relu(x) b = Reshape(a, k) y = Exp(b)", "int64[R] k", "int64[1] k = {-1}", numbers(8, 6)),
    "Reshape through Identity": (
        "i = Identity(k) a = Relu(x) b = Reshape(a, i) y = Exp(b)", "int64[R] k", "int64[1] k = {-1}", numbers(3, -1),
    ),
    "Reshape through Concat": (
        "t = Concat <axis = 0> (m, k) a = Relu(x) b = Reshape(a, t) y = Exp(b)", "int64[1] k",
        "int64[1] k = {6}, int64[1] m = {-1}", numbers(3),
    ),
    "Reshape in a branch": (
        "s = ReduceMax <keepdims = 0> (x) z = Constant <value_float = -9.0> () c = Greater(s, z) y = If (c) "
        "<then_branch = t () => (float[R1] p) { a = Relu(x) p = Reshape(a, k) }, "
        "else_branch = e () => (float[R2] q) { d = Neg(x) q = Reshape(d, k) }>",
        "int64[1] k", "int64[1] k = {48}", numbers(-1),
    ),
    "Expand": ("a = Expand(x, k) y = Relu(a)", "int64[4] k", "int64[4] k = {1, 1, 1, 1}", numbers(3, 1, 1, 1)),
    "ConstantOfShape": ("z = ConstantOfShape(k) y = Add(z, x)", "int64[R] k", "int64[3] k = {1, 1, 1}",
                        numbers(3, 1, 1, 1)),
    "Slice": (
        "a = Relu(x) b = Slice(a, s, k, d) y = Exp(b)", "int64[1] k",
        "int64[1] k = {6}, int64[1] s = {0}, int64[1] d = {2}", numbers(3),
    ),
    "Pad": ("a = Relu(x) b = Pad(a, k) y = Exp(b)", "int64[6] k", "int64[6] k = {0, 0, 0, 0, 0, 0}",
            numbers(0, 0, 1, 0, 0, 2)),
    "Tile": ("a = Relu(x) b = Tile(a, k) y = Exp(b)", "int64[3] k", "int64[3] k = {1, 1, 1}", numbers(1, 2, 1)),
    "Unsqueeze": ("a = Relu(x) b = Unsqueeze(a, k) y = Exp(b)", "int64[R] k", "int64[1] k = {0}", numbers(0, 1)),
    "ReduceSum": ("a = Relu(x) b = ReduceSum <keepdims = 0> (a, k) y = Exp(b)", "int64[R] k", "int64[1] k = {1}",
                  numbers(1, 2)),
    "Gather": ("a = Relu(x) b = Gather <axis = 1> (a, k) y = Exp(b)", "int64[R] k", "int64[1] k = {1}",
               numbers(0, 2, 3)),
    "Split": (
        "a, b = Split <axis = 2> (x, k) c = Relu(a) d = Exp(b) y = Concat <axis = 2> (d, c)", "int64[2] k",
        "int64[2] k = {3, 3}", numbers(2, 4),
    ),
    "TopK": ("a = Relu(x) b, i = TopK(a, k) y = Exp(b)", "int64[1] k", "int64[1] k = {3}", numbers(2)),
    "If": (
        "y = If (k) <then_branch = t () => (float[a, b, c] p) { p = Relu(x) }, "
        "else_branch = e () => (float[d, f, g] q) { q = Neg(x) }>",
        "bool k", "bool k = {1}", np.array(False),
    ),
    "Loop": (
        "y = Loop (k, c, x) <body = b (int64 i, bool d, float[p, q, r] v) => (bool d, float[s, t, u] w) "
        "{ w = Neg(v) }>",
        "int64 k", "int64 k = {2}, bool c = {1}", np.array(3),
    ),
    "Mul": ("a = Relu(x) b = Mul(a, k) y = Exp(b)", "float[R] k", "float[1] k = {1}", np.full(6, 2, np.float32)),
    "MatMul": ("a = Relu(x) b = MatMul(a, k) y = Exp(b)", "float[p, q] k", "float[6, 1] k = {1, 2, 3, 4, 5, 6}",
               np.full((6, 3), 0.1, np.float32)),
    "BatchNormalization": (
        "a = Conv(x, w) y = BatchNormalization(a, k, z, z, v)", "float[4] k",
        "float[4] k = {1, 1, 1, 1}, float[4] z = {0, 0, 0, 0}, float[4] v = {1, 1, 1, 1}, "
        "float[4, 4, 1] w = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}",
        np.array([1, 2, 3, 4], np.float32),
    ),
    "Dropout": ("a = Relu(x) b = Dropout(a, r, k) y = Exp(b)", "bool k", "bool k = {0}, float r = {0}", np.array(True)),
}  # fmt: skip


@pytest.mark.parametrize("case", FORMS)
def test_a_default_is_no_constant(case: str) -> None:
    """With what a caller gives and without it, what was made computes what the original does, in the same shape."""
    body, inputs, weights, given = FORMS[case]
    original = model(body, inputs, weights)
    made = onnxfuse.optimize(original)
    for feeds in ({"x": X}, {"x": X, "k": given}):
        (wanted,), (computed,) = run(original, feeds), run(made, feeds)
        assert computed.shape == wanted.shape
        np.testing.assert_allclose(computed, wanted, rtol=1e-5, atol=1e-6)


def test_a_type_is_what_the_input_declares() -> None:
    """What is given need not have the default's shape."""
    typed = value_types(infer(model("a = Relu(x) y = Reshape(a, k)", "int64[R] k", "int64[1] k = {-1}")).graph)
    assert typed["k"].shape == extents("R")
    assert not typed["y"].shape


@pytest.mark.parametrize("ir", [3, 4])
def test_before_ir_4_every_initializer_is_listed_and_constant(ir: int) -> None:
    """A file of IR version 3 has to list its initializers as inputs: nobody may replace them, and they are folded."""
    old = onnx.parser.parse_model(
        f'<ir_version: {ir}, opset_import: ["": 11]> g (float[N,4,6] x, int64[2] k, float[4,4,1] w, float[4] s) '
        "=> (float[a,b] y) <int64[2] k = {-1, 6}, float[4,4,1] w = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}, "
        "float[4] s = {1, 2, 3, 4}> "
        "{ c = Conv(x, w) n = BatchNormalization(c, s, s, s, s) r = Reshape(n, k) y = Relu(r) }"
    )
    assert overridable(old) == ([] if ir == 3 else ["k", "w", "s"])
    made = onnxfuse.optimize(old)
    listed = [i.name for i in made.graph.input]
    assert listed == (["x"] if ir == 3 else ["x", "k", "w", "s"])
    assert ("BatchNormalization" in [n.op_type for n in made.graph.node]) is (ir == 4)
    np.testing.assert_allclose(run(made, {"x": X})[0], run(old, {"x": X})[0], rtol=1e-5, atol=1e-6)


def test_frozen_defaults_are_constants() -> None:
    """With freeze_initializers nobody gives others, and they are no inputs any more."""
    original = model("a = Relu(x) b = Reshape(a, k) y = Exp(b)", "int64[R] k", "int64[1] k = {-1}")
    frozen = onnxfuse.optimize(original, freeze_initializers=True)
    assert [i.name for i in frozen.graph.input] == ["x"]
    assert len(frozen.graph.node) == 1
    keep_initializers(original)
    assert not overridable(original)


def test_lower_precision_leaves_what_a_caller_gives() -> None:
    """A default stays an input of its type; it is cast behind it."""
    original = model("a = MatMul(x, k) y = Exp(a)", "float[6, 2] k", f"float[6, 2] k = {{{', '.join(['0.1'] * 12)}}}")
    made = onnxfuse.optimize(original, precision="float16")
    assert [i.name for i in made.graph.input] == ["x", "k"]
    given = {"x": X, "k": np.full((6, 2), 0.2, np.float32)}
    np.testing.assert_allclose(run(made, given)[0], run(original, given)[0], rtol=2e-2)
