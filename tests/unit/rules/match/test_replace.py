"""What folding does to the numbers, and when it must not be done."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxfuse.graph.constant_folding import SMALL
from onnxfuse.passes import pipeline
from onnxfuse.rules.language import rule_file
from tests.support.small import (
    assert_same_numbers,
    doubled,
    evaluate,
    fuses,
    halved,
    ops,
    optimize,
    parse,
    reasons,
    run,
)


def conv_batchnorm(dtype: type[Any], w: np.ndarray, scale: Any, var: Any, mean: float = 0.0) -> onnx.ModelProto:
    """Return Conv and BatchNormalization over one input channel, every channel with the same statistics."""
    channels = w.shape[0]
    weights = {
        "w": w.reshape(channels, -1, 1, 1),
        "scale": np.full(channels, scale),
        "shift": np.zeros(channels),
        "mean": np.full(channels, mean),
        "var": np.full(channels, var),
    }
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "scale", "shift", "mean", "var"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, ["N", w.size // channels, 2, 2])],
        [helper.make_tensor_value_info("y", kind, ["N", channels, 2, 2])],
        [numpy_helper.from_array(a.astype(dtype), name) for name, a in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def folded_weight(model: onnx.ModelProto) -> np.ndarray:
    """Return the weight of the one Conv that is left."""
    made, _ = optimize(model, "batchnorm")
    (conv,) = made.graph.node
    return next(numpy_helper.to_array(t) for t in made.graph.initializer if t.name == conv.input[1])


def test_a_folded_weight_is_rounded_once() -> None:
    """w * scale / sqrt(var + epsilon) in float64, then one rounding: half an ulp, where float32 steps lose more."""
    random = np.random.default_rng(1)
    w = random.normal(size=(1, 512)).astype(np.float32)
    scale, var, epsilon = np.float32(0.7), np.float32(3e-5), np.float32(1e-5)
    truth = w.astype(np.float64) * (np.float64(scale) / np.sqrt(np.float64(var) + np.float64(epsilon)))
    folded = folded_weight(conv_batchnorm(np.float32, w, scale, var)).reshape(1, -1)
    half_ulp = np.spacing(np.abs(truth.astype(np.float32))) / 2
    assert (np.abs(folded - truth) <= half_ulp).all()
    naive = w * (scale / np.sqrt(var + epsilon))
    assert not (np.abs(naive - truth) <= half_ulp).all()


def test_folding_a_large_mean_keeps_the_digits() -> None:
    """(0 - mean) * k + shift for a mean of ten thousand: a float32 chain would drop the digits that matter."""
    w = np.random.default_rng(2).normal(size=(4, 8)).astype(np.float32)
    model = conv_batchnorm(np.float32, w, scale=1.37, var=1e-3, mean=10_000.1)
    made, _ = optimize(model, "batchnorm")
    assert ops(made) == ["Conv"]
    assert_same_numbers(model, made)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_a_folded_weight_keeps_the_element_type(dtype: type[Any]) -> None:
    """A float16 model stays a float16 model."""
    w = np.array([[1, -2], [0.5, 3]])
    folded = folded_weight(conv_batchnorm(dtype, w, scale=2.0, var=4.0))
    assert folded.dtype == dtype
    expected = w * 2 / np.sqrt(4 + np.float64(np.float32(1e-5)))
    np.testing.assert_array_equal(folded.reshape(2, 2), expected.astype(dtype))


def test_a_folded_weight_that_overflows_is_a_refusal() -> None:
    """300 * 500 does not fit float16, though the model itself never holds that number: it stays as it is."""
    model = conv_batchnorm(np.float16, np.array([[300.0], [2.0]]), scale=500.0, var=1.0)
    told = reasons(model, "batchnorm")
    assert "too large for float16" in told
    assert "149999" in told


def test_a_weight_that_was_infinite_stays_so() -> None:
    """Only a number that folding itself makes too large is a reason to refuse."""
    model = conv_batchnorm(np.float16, np.array([[np.inf], [2.0]]), scale=0.5, var=1.0)
    assert np.isinf(folded_weight(model)).any()


def test_folding_leaves_a_shared_weight_to_its_other_reader() -> None:
    """Two Convs over one weight, one of them with a BatchNormalization: the other still reads the original."""
    text = """g (float[N,1,2,2] x) => (float[N,2,2,2] y, float[N,2,2,2] z)
    <float[2,1,1,1] w = {1,-2}, float[2] scale = {2,3}, float[2] shift = {0.1,0.2}, float[2] mean = {0.3,-0.1},
     float[2] var = {1,4}> {
      c = Conv (x, w) y = BatchNormalization (c, scale, shift, mean, var) z = Conv (x, w)
    }"""
    made, _ = optimize(parse(text), "batchnorm")
    assert ops(made) == ["Conv", "Conv"]
    assert "w" in {t.name for t in made.graph.initializer}
    assert_same_numbers(parse(text), made)


def test_weights_that_only_a_folded_node_read_go() -> None:
    """The file gets smaller: the old weight and the statistics are not kept."""
    model = conv_batchnorm(np.float32, np.array([[1.0], [2.0]]), scale=0.5, var=1.0)
    made, _ = optimize(model, "batchnorm")
    assert len(made.graph.initializer) == 2
    assert "w" not in {t.name for t in made.graph.initializer}


@pytest.mark.parametrize("training", ["training_mode = 1"])
def test_a_batchnorm_in_training_mode_is_left_alone(training: str) -> None:
    """It normalizes by the batch, not by its statistics."""
    text = f"""g (float[N,1,2,2] x) => (float[N,2,2,2] y)
    <float[2,1,1,1] w = {{1,-2}}, float[2] s = {{2,3}}, float[2] b = {{0.1,0.2}}, float[2] m = {{0.3,-0.1}},
     float[2] v = {{1,4}}> {{ c = Conv (x, w) y, m2, v2 = BatchNormalization <{training}> (c, s, b, m, v) }}"""
    made, report = optimize(parse(text), "batchnorm")
    assert "BatchNormalization" in ops(made)
    assert report.applied == []


@pytest.mark.parametrize(
    ("attributes", "x", "y"),
    [
        ("<auto_pad = \"SAME_UPPER\", strides = [2,2]>", "1,4,5,5", "1,4,3,3"),
        ("<dilations = [2,2], pads = [2,2,2,2]>", "1,4,5,5", "1,4,5,5"),
        ("<group = 2>", "1,8,3,3", "1,4,3,3"),
        ("<group = 4>", "1,16,3,3", "1,4,3,3"),
    ],
)  # fmt: skip
def test_every_kind_of_convolution_folds(attributes: str, x: str, y: str) -> None:
    """Padding, strides, dilations and groups are carried over as they are."""
    kernel = 3 if "dilations" in attributes else 1
    values = ",".join(str((i * 7 % 11 - 5) / 4) for i in range(16 * kernel * kernel))
    text = f"""g (float[{x}] x) => (float[{y}] y)
    <float[4,4,{kernel},{kernel}] w = {{{values}}}, float[4] s = {{2,3,-1,0.5}}, float[4] b = {{0.1,0.2,0.3,-0.4}},
     float[4] m = {{0.3,-0.1,0,2}}, float[4] v = {{1,4,0.5,2}}> {{
      c = Conv {attributes} (x, w) y = BatchNormalization <epsilon = 0.01> (c, s, b, m, v)
    }}"""
    assert fuses(text, "batchnorm") == ["Conv"]


@pytest.mark.parametrize("op", ["Mul", "Add"])
def test_a_constant_that_makes_more_channels_is_not_folded(op: str) -> None:
    """One channel times [1,2,1,1] is two channels: that is no longer a convolution with this weight."""
    text = f"""g (float[1,1,2,2] x) => (float[1,2,2,2] y) <float[1,1,1,1] w = {{1}}, float[1,2,1,1] k = {{3,4}}> {{
      c = Conv (x, w) y = {op} (c, k)
    }}"""
    assert " is 2 and dim(c, 1) is 1; the rule wants size(" in reasons(text, "channel_scale")
    assert fuses(text) == ["Conv", op]


# ---- constants


def test_what_depends_on_weights_alone_is_computed_once() -> None:
    """Exporters leave Transpose, Cast, Unsqueeze and arithmetic on weights in the graph."""
    text = """g (float[N,2] x) => (float[N,3] y)
    <float[3,2] w = {1,-2,3,-4,5,-6}, float16[3] b = {15360,49152,16384}, float two = {2}> {
      t = Transpose <perm = [1,0]> (w) m = MatMul (x, t) f = Cast <to = 1> (b) k = Div (f, two) y = Sub (m, k)
    }"""
    assert fuses(text, "bias_sink") == ["MatMul", "Sub"]


def test_a_folded_constant_is_what_the_model_would_have_computed() -> None:
    """Arithmetic between weights keeps the model's precision: folding changes no bit."""
    text = """g (float[4] x) => (float[4] y) <float[4] a = {0.1,0.2,0.3,1e10}, float[4] b = {3,7,0.7,1}> {
      c = Div (a, b) d = Mul (c, b) e = Sub (d, a) y = Add (x, e)
    }"""
    made, _ = optimize(parse(text), "bias_sink")
    assert ops(made) == ["Add"]
    inputs = {"x": np.zeros(4, np.float32)}
    np.testing.assert_array_equal(run(made, inputs)[0], run(parse(text), inputs)[0])


def test_folding_does_not_make_the_file_bigger() -> None:
    """Expand and ConstantOfShape of a few bytes into many stay nodes."""
    side = SMALL // 4
    text = f"""g (float[2,{side}] x) => (float[2,{side}] y) <float one = {{1}}, int64[2] shape = {{2,{side}}}> {{
      big = Expand (one, shape) y = Max (x, big)
    }}"""
    made, _ = optimize(parse(text), "bias_sink")
    assert "Expand" in ops(made)


def test_a_graph_output_that_is_constant_stays_computed() -> None:
    """An output needs a node; its value stays."""
    text = """g (float[2] x) => (float[2] y, float[2] k) <float[2] a = {1,2}> { k = Neg (a) y = Add (x, k) }"""
    made, _ = optimize(parse(text))
    assert [o.name for o in made.graph.output] == ["y", "k"]
    assert_same_numbers(parse(text), made)


def test_the_shape_of_a_static_value_is_a_constant() -> None:
    """Reshape targets computed from static shapes leave the graph; those that depend on dynamic ones stay."""
    text = """g (float[2,6] x) => (float[3,4] y) <int64[2] target = {3,4}> {
      s = Shape (x) z = Sub (s, s) t = Add (z, target) y = Reshape (x, t)
    }"""
    assert fuses(text, "bias_sink") == ["Reshape"]
    dynamic = text.replace("float[2,6]", "float[A,B]").replace("float[3,4]", "float[C,D]")
    assert ops(optimize(parse(dynamic), "bias_sink")[0]) == ["Reshape"]
    made, _ = optimize(parse(dynamic.replace("Sub (s, s)", "Div (s, target)")), "bias_sink")
    assert "Shape" in ops(made)


def test_the_truth_of_these_tests_is_in_double_precision() -> None:
    """The oracle itself: every float of the model and of its constants is float64."""
    text = """g (float16[2] x) => (float16[2] y) <float16[2] b = {15360,16384}> {
      c = Cast <to = 1> (x) d = Cast <to = 10> (c) y = Add (d, b)
    }"""
    (y,) = evaluate(doubled(parse(text)), {"x": np.array([1e-9, 1.0])})
    assert y.dtype == np.float64
    assert y[0] - 1 == pytest.approx(1e-9, rel=1e-6)


def test_a_name_of_the_model_goes_on_meaning_what_it_meant(tmp_path: Path) -> None:
    """What a rewrite computes inside gets names of its own, also where pattern and replacement call it alike."""
    (tmp_path / "halves.toml").write_text(
        'summary = "Add before the product instead of after."\n[[rewrite]]\n'
        'from = "(x, w, b) => (y) { m = Mul (x, w)  y = Add (m, b) }"\n'
        'to = "(x, w, b) => (y) { q = Div (b, w)  m = Add (x, q)  y = Mul (m, w) }"\n'
        'where = ["const(w, b)"]\n'
    )
    model = parse(
        "g (float[4] x) => (float[4] out) <float[4] w = {1,2,3,4}, float[4] b = {4,3,2,1}> "
        "{ product = Mul (x, w)  sum = Add (product, b)  out = Relu (sum) }"
    )
    pipeline.run(model, rule_file.load(tmp_path))
    assert [n.op_type for n in model.graph.node] == ["Add", "Mul", "Relu"]
    assert "product" not in {o for n in model.graph.node for o in n.output}
    assert "sum" in {o for n in model.graph.node for o in n.output}


@pytest.mark.parametrize("shape", ["N,4", "N,4,3", "N,4,3,2"])
def test_a_batchnorm_of_halves_computes_in_float32(shape: str) -> None:
    """Factor, shift and centred value are kept in float32, as the operator does: one rounding at the end."""
    text = f"g (float[{shape}] x) => (float[{shape}] y)"
    text += """ <float[4] s = {1.3,0.7,-2.1,0.3}, float[4] b = {3.1,-2.3,0.9,5.7},
     float[4] m = {0.9,31.7,-2.3,7.1}, float[4] v = {0.011,3.3,0.7,0.0003}> {
      y = BatchNormalization (x, s, b, m, v)
    }"""
    model = halved(parse(text))
    made, _ = optimize(model, "batchnorm_alone")
    assert ops(made) == ["Cast", "Sub", "Mul", "Add", "Cast"]
    assert {t.data_type for t in made.graph.initializer} == {onnx.TensorProto.FLOAT}
    sizes = [64, 4, 3, 2][: shape.count(",") + 1]
    inputs = {"x": np.random.default_rng(4).normal(scale=4, size=sizes).astype(np.float16)}
    (truth,) = evaluate(doubled(model), {"x": inputs["x"].astype(np.float64)})
    (y,) = run(made, inputs)
    assert (np.abs(y - truth) <= 0.5001 * np.spacing(np.abs(truth.astype(np.float16))).astype(np.float64)).all()


def test_a_constant_that_is_asked_for_in_two_types_is_stored_in_both(tmp_path: Path) -> None:
    """Each node reads its own, rounded once; the weight of the model that fits is read as it is."""
    (tmp_path / "both.toml").write_text(
        'summary = "The sum in float32."\n[[rewrite]]\n'
        'from = "(x, w) => (y) { m = Mul (x, w)  y = Add (m, w) }"\n'
        'to = """(x, w) => (y) {\n'
        "  n = Cast <to = 1> (w)  k = Neg (n)  k2 = Neg (k)  m = Mul (x, w)  wide = Cast <to = 1> (m)\n"
        '  a = Add (wide, k2)  b = Sub (a, w)  c = Cast <to = 10> (b)  y = Add (c, k2)\n}"""\n'
        'where = ["const(w)", "dtype(x) == float16"]\n'
    )
    text = "g (float[4] x) => (float[4] y) <float[4] w = {0.1,0.2,0.3,0.4}> { m = Mul (x, w)  y = Add (m, w) }"
    made = halved(parse(text))
    pipeline.run(made, rule_file.load(tmp_path))
    types = {t.name: t.data_type for t in made.graph.initializer}
    reads = {n.op_type: [types[v] for v in n.input if v in types] for n in made.graph.node[:4]}
    half, single = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT
    assert reads == {"Mul": [half], "Cast": [], "Add": [single], "Sub": [single]}
    assert [types[v] for v in made.graph.node[-1].input if v in types] == [half]
    assert_same_numbers(halved(parse(text)), made)


TWICE = """
summary = "The means of halves."
[[rewrite]]
from = '''(x, axes) => (y) { m = ReduceMean <keepdims = 1> (x, axes)  y = Neg (m) }'''
to = '''(x, axes) => (y) {
  a, b = Split <axis = 0, num_outputs = 2> (x)
  m = ReduceMean <keepdims = 1> (a, axes)
  n = ReduceMean <keepdims = 1> (b, axes)
  s = Concat <axis = 0> (m, n)
  y = Neg (s)
}'''
where = ["dim(x, 0) == 4"]
"""


@pytest.mark.parametrize("opset", [13, 17, 18, 21])
def test_what_a_rule_writes_is_of_the_operator_set_of_the_model(opset: int, tmp_path: Path) -> None:
    """A rule has the newest form; axes are an attribute before 18, and a Split's parts are not counted there."""
    (tmp_path / "twice.toml").write_text(TWICE)
    axes, given = (" <axes = [1]>", "") if opset < 18 else ("", ", axes")
    held = "<int64[1] axes = {1}>" if given else ""
    model = parse(
        f"g (float[4,6] x) => (float[4,1] y) {held} {{ m = ReduceMean{axes} (x{given})  y = Neg (m) }}", opset
    )
    made = onnx.ModelProto()
    made.CopyFrom(model)
    pipeline.run(made, rule_file.load(tmp_path))
    onnx.checker.check_model(made, full_check=True)
    assert ops(made) == ["Split", "ReduceMean", "ReduceMean", "Concat", "Neg"]
    assert_same_numbers(model, made)


def test_what_its_operator_set_cannot_say_is_refused(tmp_path: Path) -> None:
    """Axes that are computed are an input, or nothing."""
    computed = TWICE.replace(
        "m = ReduceMean <keepdims = 1> (x, axes)  y = Neg (m)", "m = ReduceSum (x, axes)  y = Neg (m)"
    )
    (tmp_path / "twice.toml").write_text(computed)
    text = """g (float[4,6] x, int64[1] axes) => (float[P,Q] y) { m = ReduceSum (x, axes)  y = Neg (m) }"""
    found = {}
    for opset in (17, 18):
        model = parse(text, opset)
        report = pipeline.run(model, rule_file.load(tmp_path))
        found[opset] = [*(near.refusal.reason for near in report.near), *("applied" for _ in report.applied)]
    assert found == {17: ["ReduceMean of opset 17 cannot compute its axes"], 18: ["applied"]}


PADDED = """
summary = "Pads one of two equal operands by nothing."
[[rewrite]]
from = '''(x) => (y) { y = Concat <axis = 0> (x, x) }'''
to = '''(x) => (y) {
  ends = Constant <value_ints = [0,0,0,0]> ()
  p = Pad (x, ends)
  y = Concat <axis = 0> (p, x)
}'''
"""


def test_what_its_operator_set_does_not_read_is_refused(tmp_path: Path) -> None:
    """Integers are padded from operator set 11 on."""
    (tmp_path / "padded.toml").write_text(PADDED)
    text = "g (uint8[2,3] x) => (uint8[4,3] y) { y = Concat <axis = 0> (x, x) }"
    found = {}
    for opset in (10, 11):
        report = pipeline.run(parse(text, opset), rule_file.load(tmp_path))
        found[opset] = "applied" if report.applied else report.near[0].refusal.reason
    assert found == {10: "Pad of opset 10 reads no UINT8", 11: "applied"}
