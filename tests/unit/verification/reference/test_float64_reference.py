"""The truth is more exact than what it judges, says what it is, and frees what it no longer needs."""

import math
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from threadpoolctl import threadpool_info, threadpool_limits

from onnxfuse.support.errors import UsageError
from onnxfuse.verification import verify
from onnxfuse.verification.reference import float64_reference, operators
from onnxfuse.verification.reference.promoted import promoted
from onnxfuse.verification.reference.reference import Float64, float64_evaluator
from onnxfuse.verification.reference.windows import AveragePool, MaxPool
from onnxfuse.verification.run import sessions
from tests.support.verification.small_models import model, text_model
from tests.unit.verification.reference.test_windows import WINDOWS, agree

RNG = np.random.default_rng(0)

X = RNG.standard_normal((2, 6, 11, 9))


@pytest.mark.parametrize("op", ["Erf", "Gelu", "Relu", "Sigmoid", "Tanh", "HardSwish", "Mish", "Softplus", "Selu"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_operators_do_not_round_on_the_way(op: str, dtype: str) -> None:
    """The truth of a float16 or float32 model has the digits of float64, also inside operators made of others."""
    rng = np.random.default_rng(0)
    made = float64_reference.reference_for(model(f"y = {op}(x)", dtype, opset=22), "float64", [])
    x = rng.standard_normal((4, 32)).astype(dtype)
    got = made.evaluate({"x": x})["y"]
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, EXACT[op](x.astype(np.float64)), rtol=1e-14, atol=1e-15)


def test_a_sigmoid_is_exact_far_from_zero() -> None:
    """In both tails, where one of its forms would leave the range of float64."""
    x = np.array([-1000.0, -700, -40, -1e-9, 40, 800])
    exact = [0.0, math.exp(-700), math.exp(-40), 0.5 - 0.25e-9, 1 - math.exp(-40), 1.0]
    made = float64_reference.reference_for(
        text_model("g (double[n] x) => (double[n] y) { y = Sigmoid(x) }"), "float64", []
    )
    np.testing.assert_allclose(made.evaluate({"x": x})["y"], exact, rtol=1e-15)


def _each(function: Any) -> Any:
    return np.vectorize(function, otypes=[np.float64])


SELU_ALPHA, SELU_GAMMA = float(np.float32(1.67326319217681884765625)), float(np.float32(1.05070102214813232421875))

EXACT = {
    "Erf": _each(math.erf),
    "Gelu": _each(lambda v: v * 0.5 * (1 + math.erf(v / math.sqrt(2)))),
    "Relu": lambda x: np.maximum(x, 0),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Tanh": np.tanh,
    "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "Mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "Softplus": lambda x: np.log1p(np.exp(x)),
    "Selu": lambda x: SELU_GAMMA * np.where(x > 0, x, SELU_ALPHA * np.expm1(x)),
}


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("ceil_mode", [0, 1])
def test_pools_are_those_of_onnx(window: dict[str, Any], ceil_mode: int) -> None:
    """The same for the pools, whatever hangs over the end, with padding counted and not."""
    agree(MaxPool, [X], kernel_shape=[3, 2], ceil_mode=ceil_mode, **window)
    for counted in (0, 1):
        agree(AveragePool, [X], kernel_shape=[3, 2], ceil_mode=ceil_mode, count_include_pad=counted, **window)


@pytest.mark.parametrize("center", [0, 1])
@pytest.mark.parametrize(("most", "overlap", "least"), [(50, 0.3, 0.2), (2, 0.5, -1.0), (50, 0.0, 0.0), (0, 0.5, 0.0)])
def test_the_boxes_kept_are_those_of_onnx(center: int, most: int, overlap: float, least: float) -> None:
    """In the order of classes and scores; corners in either order, boxes without an area, and equal scores."""
    rng = np.random.default_rng(0)
    first = rng.uniform(0, 1, (2, 40, 2))
    boxes = np.concatenate(
        [first, rng.uniform(0, 1, (2, 40, 2)) if center else first + rng.uniform(-1, 1, (2, 40, 2))], -1
    )
    boxes[:, 3, 2:] = 0 if center else boxes[:, 3, :2]
    scores = rng.uniform(0, 1, (2, 3, 40)).round(1 if most == 2 else 9)
    graph = "g (float[2, 40, 4] b, float[2, 3, 40] s) => (int64[n, 3] y) "
    made = text_model(
        graph + f"{{ y = NonMaxSuppression <center_point_box = {center}> (b, s, m, o, l) }}",
        m=np.array([most]), o=np.array([overlap], np.float32), l=np.array([least], np.float32),
    )  # fmt: skip
    feed = {"b": boxes.astype(np.float32), "s": scores.astype(np.float32)}
    (ours,) = float64_evaluator(made).run(None, {n: x.astype(np.float64) for n, x in feed.items()})
    np.testing.assert_array_equal(ours, sessions.run(sessions.unoptimized(made), feed)["y"])


def test_a_cast_between_floats_rounds_nothing() -> None:
    """Casts to a narrower float, float constants in every form and declared types become the wider type."""
    rng = np.random.default_rng(0)
    made = model(
        "h = Cast <to = 10> (x)  c = Constant <value_float = 0.1> ()  d = CastLike(c, h)  e = Add(h, d)"
        "  z = Cast <to = 1> (e)  i = Cast <to = 7> (z)  f = Cast <to = 1> (i)  y = Add(z, f)"
    )
    x = rng.standard_normal((3, 32)).astype(np.float32)
    got = float64_reference.reference_for(made, "float64", []).evaluate({"x": x})["y"]
    exact = x.astype(np.float64) + np.float64(np.float32(0.1))
    np.testing.assert_array_equal(got, exact + np.trunc(exact))


def test_a_type_that_is_not_written_is_widened_too() -> None:
    """A window is float32 where nothing is said; its truth has the digits of float64."""
    made = text_model("g (int64 size) => (float[n] y) { y = HannWindow(size) }")
    got = float64_reference.reference_for(made, "float64", []).evaluate({"size": np.array(8)})["y"]
    np.testing.assert_allclose(got, 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(8) / 8), rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    "node", ["HannWindow (size)", "MelWeightMatrix (size, size, size, low, low)", "RandomNormal <shape = [3]> ()"]
)
def test_an_operator_that_gives_float32_by_default_says_the_wide_type(node: str) -> None:
    """Whichever operator has such a default, by its schema."""
    made = text_model(f"g (int64 size, float low) => (float[n] y) {{ y = {node} }}")
    attributes = promoted(made, TensorProto.DOUBLE).graph.node[0].attribute
    assert TensorProto.DOUBLE in [a.i for a in attributes if a.name in ("dtype", "output_datatype")]


def test_widening_reaches_subgraphs_and_functions_and_leaves_the_original() -> None:
    """No narrower float is left anywhere; integers and wider floats stay."""
    made = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 20, "own": 1]>
        g (bool p, float16[n] x, double[n] d) => (float16[n] y, double[n] e) <float16[1] k = {16384}> {
          y = If (p) <
            then_branch = yes () => (float16[n] a) { c = Constant <value = float16[1] {16896}> ()  a = Mul(x, c) },
            else_branch = no () => (float16[n] b) { b = own.Half(x, k) }
          >
          e = Neg(d)
        }
        <domain: "own", opset_import: ["": 20]> Half (x, k) => (y) { c = Cast <to = 10> (k)  y = Div(x, c) }"""
    )
    before = made.SerializeToString(deterministic=True)
    text = str(promoted(made, TensorProto.FLOAT))
    assert made.SerializeToString(deterministic=True) == before
    for narrow in ("elem_type: 10", "data_type: 10", "i: 10"):
        assert narrow in str(made)
        assert narrow not in text
    assert "elem_type: 11" in text
    onnx.checker.check_model(promoted(made, TensorProto.FLOAT))
    evaluator = float64_evaluator(made)
    feed = {"x": np.array([4.0]), "d": np.array([1.0])}
    assert evaluator.run(["y"], {"p": np.array(True), **feed})[0] == 12
    assert evaluator.run(["y"], {"p": np.array(False), **feed})[0] == 2


def test_size_decides_between_float64_and_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many parameters or operations: float32, and the reason is told."""
    made = model("y = MatMul(x, w)")
    shapes: list[Mapping[str, tuple[int, ...]]] = [{"x": (5, 32)}]
    assert float64_reference.flops(made, shapes[0]) == 2 * 5 * 32 * 32
    assert float64_reference.reference_for(made, "auto", shapes).kind == "float64"
    monkeypatch.setattr(float64_reference, "FLOAT64_FLOPS", 1000)
    got = float64_reference.reference_for(made, "auto", shapes)
    assert (got.kind, got.why) == ("float32", "0 GFLOP in one run, float64 up to 0")
    assert float64_reference.reference_for(made, "float64", shapes).kind == "float64"
    monkeypatch.setattr(float64_reference, "FLOAT64_PARAMETERS", 1000)
    assert "0 M parameters" in float64_reference.reference_for(made, "auto", shapes).why


def test_the_largest_inputs_decide_and_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verification of many cases does not infer the shapes of the model for each."""
    made, asked = model("y = MatMul(x, w)"), []

    def counted(model: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> int:
        asked.append(shapes)
        return 0

    monkeypatch.setattr(float64_reference, "flops", counted)
    float64_reference.reference_for(made, "auto", [{"x": (n, 32)} for n in (5, 7, 5, 1)])
    assert asked == [{"x": (7, 32)}]


def test_small_products_take_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pools of BLAS are one thread wide while the truth is evaluated, and then again as wide as they were."""
    made, seen = model("y = MatMul(x, w)"), []
    matmul = Float64.read

    def read(self: Float64, node: onnx.NodeProto, inputs: list[Any]) -> list[Any]:
        seen.append({pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"})
        return matmul(self, node, inputs)

    monkeypatch.setattr(Float64, "read", read)
    feed = {"x": np.ones((5, 32))}
    with threadpool_limits(limits=2, user_api="blas"):
        float64_reference.reference_for(made, "auto", [{"x": (5, 32)}]).evaluate(feed)
        monkeypatch.setattr(float64_reference, "ONE_THREAD_FLOPS", 10)
        float64_reference.reference_for(made, "auto", [{"x": (5, 32)}]).evaluate(feed)
        seen.append({pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"})
    assert seen == [{1}, {2}, {2}]


def test_activations_of_onnx_runtime_have_a_reference_in_float64() -> None:
    """onnx has none for them: it is what their entries say that they compute."""
    rng = np.random.default_rng(0)
    made = text_model("g (float16[n, 8] x) => (float16[n, 8] y) { y = com.microsoft.FastGelu(x) }")
    made.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    got = float64_reference.reference_for(made, "float64", [])
    x = rng.standard_normal((2, 8)).astype(np.float16)
    wide = x.astype(np.float64)
    exact = wide / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
    np.testing.assert_allclose(got.evaluate({"x": x})["y"], exact, rtol=1e-14)


def test_float32_is_the_fallback_and_says_why() -> None:
    """An operator that the reference lacks is no reason not to verify, and is named."""
    rng = np.random.default_rng(0)
    made = text_model("g (float16[4, 4] x) => (float16[4, 4] y) { y = com.microsoft.Inverse(x) }")
    made.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    got = float64_reference.reference_for(made, "auto", [])
    assert got.kind == "float32"
    assert "Inverse" in got.why
    x = (3 * np.eye(4) + rng.standard_normal((4, 4)) / 4).astype(np.float16)
    y = got.evaluate({"x": x})["y"]
    assert y.dtype == np.float32
    np.testing.assert_allclose(y, np.linalg.inv(x.astype(np.float64)), rtol=2e-5, atol=1e-6)
    with pytest.raises(UsageError, match="not possible in float64"):
        float64_reference.reference_for(made, "float64", [])


def test_a_gap_that_shows_only_when_run_ends_float64_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference operator finds out only when it runs that it does not know a form."""

    def gap(self: Any, x: np.ndarray) -> tuple[np.ndarray]:
        raise NotImplementedError("no such form")

    monkeypatch.setattr(operators.Softsign, "_run", gap)
    made = text_model("g (float[n, 8] x) => (float[n, 8] y) { y = Softsign(x) }")
    report = verify(made, made, providers=["CPUExecutionProvider"])
    assert report.ok
    assert report.truth == "float32"
    assert "not possible in float64" in report.truth_why


def test_a_case_that_takes_too_long_in_float64_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for loops in Python: float32 is the truth, and the report says why. Who asks for float64 waits."""
    made = model("y = Relu(x)")
    monkeypatch.setattr(float64_reference, "FLOAT64_SECONDS", -1.0)
    report = verify(made, made, providers=["CPUExecutionProvider"])
    assert (report.ok, report.truth) == (True, "float32")
    assert report.truth_why == "not possible in float64: a case takes more than -1 s, as far as Relu"
    assert verify(made, made, providers=["CPUExecutionProvider"], truth="float64").truth == "float64"


def test_bfloat16_becomes_float64() -> None:
    """NumPy does not know the type; the truth takes it all the same."""
    made = model("y = Exp(x)")
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.elem_type = TensorProto.BFLOAT16
    x = np.array([[1.0] * 32], ml_dtypes.bfloat16)
    assert float64_reference.reference_for(made, "float64", []).evaluate({"x": x})["y"][0, 0] == math.e


def test_weights_are_exact() -> None:
    """A float16 weight means the number that it holds."""
    made = model("y = Mul(x, g)", "float16")
    g = numpy_helper.to_array(next(t for t in made.graph.initializer if t.name == "g"))
    got = float64_reference.reference_for(made, "float64", []).evaluate({"x": np.ones((1, 32), np.float16)})["y"]
    np.testing.assert_array_equal(got[0], g.astype(np.float64))


def test_norms_of_onnx_runtime_have_a_reference_in_float64() -> None:
    """The statistics, too, which float32 keeps in its own type."""
    rng = np.random.default_rng(0)
    made = text_model(
        "g (float16[2, 8] x, float16[2, 8] r) => (float16[2, 8] y, float[2, 1] i, float16[2, 8] t) "
        "{ y, , i, t = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.01> (x, r, w) }",
        w=np.linspace(-1, 2, 8).astype(np.float16),
    )
    made.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    x, r = (rng.standard_normal((2, 8)).astype(np.float16) for _ in range(2))
    found = float64_reference.reference_for(made, "float64", []).evaluate({"x": x, "r": r})
    total = x.astype(np.float64) + r
    inverse = 1 / np.sqrt((total * total).mean(axis=-1, keepdims=True) + float(np.float32(0.01)))
    np.testing.assert_allclose(found["y"], total * inverse * np.linspace(-1, 2, 8).astype(np.float16), rtol=1e-14)
    np.testing.assert_allclose(found["i"], inverse, rtol=1e-14)
    np.testing.assert_array_equal(found["t"], total)
