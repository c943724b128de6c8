"""The converted model: what has which type, where Casts stand, and that it fuses as the native float16 file does."""

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto

import models
import onnxfuse
from onnxfuse.model.nested import nodes_of
from onnxfuse.precision.plan import converted, float_nodes, opsets_of
from onnxfuse.precision.scopes import scopes_of
from onnxfuse.precision.write import PrecisionWriter
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import value_types
from tests.support.precision import model_of, normalized

FLOAT16, FLOAT = TensorProto.FLOAT16, TensorProto.FLOAT


def written(
    model: onnx.ModelProto, kept: dict[str, int] | None = None, low: int = FLOAT16, io: int = FLOAT
) -> tuple[onnx.ModelProto, PrecisionWriter]:
    """Return the model in `low`, without any measuring."""
    normalized(model)
    main = scopes_of(model)
    every = float_nodes(main, opsets_of(model))
    writer = PrecisionWriter(model, main, every, converted(every, kept or {}, low))
    writer.run(io)
    onnx.checker.check_model(model, full_check=True)
    return model, writer


def types(model: onnx.ModelProto) -> dict[str, int]:
    """Return the element type of each value of the main graph."""
    return {n: t.dtype for n, t in value_types(infer(model).graph).items()}


def casts(model: onnx.ModelProto) -> list[tuple[str, str]]:
    """Return what each Cast reads and gives."""
    return [(n.input[0], n.output[0]) for n in nodes_of(model.graph) if n.op_type == "Cast"]


@pytest.mark.parametrize(
    ("name", "sizes", "casts_alone"),
    [
        ("resnet50", {"stages": (1, 1), "image": 64}, 1),
        ("convnext_tiny", {"stages": (1, 1), "image": 64}, 1),
        ("bert_base", {"layers": 1, "vocabulary": 97}, 0),
        ("vit_b_16", {"layers": 1, "image": 64}, 0),
        ("gpt2", {"layers": 1, "vocabulary": 97}, 0),
    ],
)
def test_a_converted_model_fuses_as_the_native_one(name: str, sizes: dict[str, Any], casts_alone: int) -> None:
    """The same fused ops, by the hash of their bodies, but for those that take a border's Cast in."""
    native = onnxfuse.optimize(models.build(name, dtype="float16", batch=2, sequence=16, **sizes))
    ours = onnxfuse.optimize(written(models.build(name, batch=2, sequence=16, **sizes))[0])
    found = [[n.op_type for n in m.graph.node if n.domain] for m in (native, ours)]
    same = set(found[0]) & set(found[1])
    borders = [op for op in found[1] if op not in same]
    assert len(borders) <= 3, borders
    assert len(same) >= 0.5 * len(set(found[0])), found
    assert len(ours.graph.node) <= len(native.graph.node) + casts_alone
    assert sum(n.op_type == "Cast" for n in ours.graph.node) <= casts_alone


def test_inputs_and_outputs_keep_their_types_unless_asked() -> None:
    """A border is a Cast; with --io-precision there is none."""
    text = "g (float[2,3] x) => (float[2,3] y) { a = Relu(x) y = Sqrt(a) }"
    model, _ = written(model_of(text))
    assert casts(model) == [("x", "x.float16"), ("y.float16", "y")]
    assert {n: t for n, t in types(model).items() if n in "xay"} == {"x": FLOAT, "a": FLOAT16, "y": FLOAT}
    model, _ = written(model_of(text), io=FLOAT16)
    assert casts(model) == []
    assert model.graph.input[0].type.tensor_type.elem_type == FLOAT16


def test_a_value_that_several_read_is_cast_once() -> None:
    """Beside the node that gives it, for bodies too."""
    model, _ = written(model_of("""
        g (float[2,3] x, bool c) => (float[2,3] y) {
            a = Exp(x)
            b = Relu(a) d = Sqrt(a)
            e = If(c) <then_branch = t () => (float[2,3] p) { p = Add(a, b) },
                       else_branch = f () => (float[2,3] q) { q = Add(a, d) }>
            y = Add(e, b)
        }"""), {"a": FLOAT})  # fmt: skip
    assert sorted(casts(model)) == [
        ("a", "a.float16"), ("e", "e.float16"), ("p.float16", "p"), ("q.float16", "q"), ("y.float16", "y"),
    ]  # fmt: skip


def test_a_weight_that_both_types_read_is_told() -> None:
    """It is there twice, and the writer says so; one that one type reads is there once."""
    model, writer = written(model_of("""
        g (float[3] x) => (float[3] y) <float[3] w = {1, 2, 3}, float[3] v = {1, 2, 3}> {
            a = Mul(x, w) b = Mul(a, w) y = Mul(b, v)
        }"""), {"a": FLOAT})  # fmt: skip
    assert writer.doubled == ["w"]
    assert {t.name: t.data_type for t in model.graph.initializer} == {"w": FLOAT, "w.float16": FLOAT16, "v": FLOAT16}


def test_a_weight_that_half_types_read_first_is_there_in_float32_too() -> None:
    """Whichever type is read first has the name; the other one is beside it, and the model opens."""
    model, writer = written(
        model_of("""
        g (float[3] x) => (float[3] y) <float[3] w = {1, 2, 3}> { a = Mul(x, w) y = Mul(a, w) }"""),
        {"y": FLOAT},
    )
    assert writer.doubled == ["w"]
    assert {t.name: t.data_type for t in model.graph.initializer} == {"w": FLOAT16, "w.float32": FLOAT}
    ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def test_shapes_scales_and_ranges_stay() -> None:
    """What Resize, Range and shapes are made of keeps its digits: 2049 is no number of float16."""
    model, _ = written(model_of("""
        g (float[1,1,N,N] x) => (float[1,1,?,?] y, float[?] r)
        <float[4] scales = {1, 1, 2.5, 2.5}, float one = {1}, float zero = {0}> {
            s = Shape(x) n = Constant<value_int = 2>() k = Gather(s, n)
            f = Cast<to = 1>(k) half = Constant<value_float = 0.5>() g0 = Mul(f, half)
            r = Range(zero, g0, one)
            a = Relu(x)
            y = Resize<mode = "linear">(a, "", scales)
        }"""))  # fmt: skip
    known = types(model)
    assert known["f"] == known["g0"] == known["r"] == known["scales"] == FLOAT
    assert known["a"] == FLOAT16


def test_lengths_of_sequences_stay() -> None:
    """Whatever input holds a number of things, in any operator: what it is made of keeps its digits."""
    model, _ = written(model_of("""
        g (float[N,4] a, float[T,2,4] x) => (float[T,2,4] y) <float[2] half = {0.5, 0.5}> {
            s = Shape(a) f = Cast<to = 1>(s) h = Mul(f, half) l = Cast<to = 7>(h)
            b = Relu(x) y = ReverseSequence<batch_axis = 1, time_axis = 0>(b, l)
        }"""))  # fmt: skip
    known = types(model)
    assert known["f"] == known["h"] == FLOAT
    assert known["b"] == FLOAT16


def test_a_cast_like_an_integer_reads_all_digits() -> None:
    """As a Cast does: its first input has any type, and the result the other one's."""
    model, _ = written(model_of("""
        g (float[4] x, int64[1] i) => (int64[4] y, float[4] z) {
            y = CastLike(x, i) z = Sqrt(x)
        }"""))  # fmt: skip
    assert [(n.op_type, n.input[0]) for n in nodes_of(model.graph) if n.op_type == "CastLike"] == [("CastLike", "x")]


def test_a_loop_counts_and_adds_up_in_its_own_types() -> None:
    """State that goes round keeps float32; what the body computes between has the low type."""
    model, _ = written(model_of("""
        g (float[4] x) => (float[4] y) <int64 n = {5}, bool go = {1}> {
            y = Loop(n, go, x) <body = b (int64 i, bool c, float[4] s) => (bool d, float[4] t) {
                d = Identity(c) e = Sqrt(s) f = Exp(e) t = Add(s, f)
            }>
        }"""))  # fmt: skip
    (loop,) = (n for n in model.graph.node if n.op_type == "Loop")
    body = loop.attribute[0].g
    assert [i.type.tensor_type.elem_type for i in body.input] == [TensorProto.INT64, TensorProto.BOOL, FLOAT]
    assert [n.op_type for n in body.node] == ["Cast", "Identity", "Sqrt", "Exp", "Add", "Cast"]


def test_constants_keep_their_side_of_zero_and_of_the_range() -> None:
    """A bound beyond the range is the largest number, an epsilon below it the smallest."""
    model, _ = written(model_of("""
        g (float[3] x) => (float[3] y)
        <float low = {0}, float high = {3.4e38}, float eps = {1e-12}> {
            a = Clip(x, low, high) y = Add(a, eps)
        }"""))  # fmt: skip
    known = {t.name: float(onnx.numpy_helper.to_array(t)) for t in model.graph.initializer}
    assert known == {"low": 0.0, "high": 65504.0, "eps": float(np.float16(6e-8))}
    model, _ = written(
        model_of("g (float[3] x) => (float[3] y) <float eps = {1e-12}> { y = Add(x, eps) }"), low=TensorProto.BFLOAT16
    )
    assert model.graph.initializer[0].data_type == TensorProto.BFLOAT16


def test_a_norm_keeps_its_epsilon_in_onnx_runtime() -> None:
    """Where a square is spelled with Pow its optimizer would make a norm of its own, with an epsilon of 1e-5."""
    text = """
        g (float[4,8] x) => (float[4,8] y) <float two = {2}, float epsilon = {0.001}> {
            s = Pow(x, two) m = ReduceMean<axes = [-1]>(s) e = Add(m, epsilon) d = Sqrt(e) y = Div(x, d)
        }"""
    x = np.linspace(-0.01, 0.02, 32, dtype=np.float32).reshape(4, 8)
    model, _ = written(model_of(text))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x})
    exact = x / np.sqrt((x**2).mean(-1, keepdims=True) + 0.001)
    assert np.abs(y - exact).max() < 2**-9 * np.abs(exact).max()
    cubes, _ = written(model_of(text.replace("{2}", "{3}")))
    assert "Pow" in [n.op_type for n in cubes.graph.node]


def test_what_draws_quantizes_or_takes_float_alone_stays() -> None:
    """Each with the reason."""
    model = model_of("""
        g (float[4,4] x, float[1,6,4] boxes, float[1,2,6] scores) => (float[4,4] y, int64[k,3] z)
        <float scale = {0.1}, uint8 zero = {0}> {
            q = QuantizeLinear(x, scale, zero) d = DequantizeLinear(q, scale, zero)
            r = RandomNormalLike(d) y = Add(d, r)
            z = NonMaxSuppression(boxes, scores)
        }""")  # fmt: skip
    why = {name: p.why for name, p in float_nodes(scopes_of(model), opsets_of(model)).items() if p.why}
    assert why == {
        "q": "is quantized", "d": "is quantized", "r": "draws random numbers", "z": "has no form for lower precision",
    }  # fmt: skip


def test_weights_that_a_caller_may_replace_keep_their_type() -> None:
    """They are inputs, and stay what callers give."""
    model = model_of("g (float[3] x) => (float[3] y) <float[3] w = {1, 2, 3}> { y = Mul(x, w) }")
    model.graph.input.add().CopyFrom(onnx.helper.make_tensor_value_info("w", FLOAT, [3]))
    made, _ = written(model, io=FLOAT16)
    assert casts(made) == [("w", "w.float16")]
    assert [i.type.tensor_type.elem_type for i in made.graph.input] == [FLOAT16, FLOAT]
