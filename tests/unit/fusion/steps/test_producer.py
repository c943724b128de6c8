"""An op that quantizes joins the fused op that computes its input: nothing is lost, and what stays says why."""

import numpy as np
import onnx
import onnxruntime as ort

import onnxfuse
from onnxfuse.model.fused import fused_ops
from onnxfuse.rules.match.hint import hint
from tests.support.small import assert_same_numbers, ops, optimize, parse

QUANTIZES = "{ReduceMax ReduceMin Max Min Sub Div Equal Where Neg Div Round Clip Cast QuantizeLinear}"
NORM = """g (float[N,S,8] x) => (float[N,S,8] n, uint8[N,S,8] y, float s, uint8 z)
<float[8] scale = {1,2,3,4,5,6,7,8}> {
  n = LayerNormalization (x, scale)
  y, s, z = DynamicQuantizeLinear (n)
}"""


def run(model: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, {"x": x}))


def test_a_value_is_quantized_by_the_op_that_computes_it() -> None:
    """The value stays an output for its other readers; the bodies compute the same, and undone they are nodes again."""
    model = parse(NORM)
    made, report = optimize(model)
    joined = f"{{LayerNormalization {QUANTIZES[1:]}"
    assert [op for op in ops(made) if op.startswith("{")] == [joined]
    assert report.by_rule()["quantized_output"] == 1
    (op,) = fused_ops(made).values()
    assert len(op.outputs) == 4
    x = np.random.default_rng(0).standard_normal((2, 3, 8)).astype(np.float32)
    for other in (made, onnxfuse.unfuse(made)):
        for got, expected in zip(run(other, x), run(model, x), strict=True):
            np.testing.assert_array_equal(got, expected)
    again, _ = optimize(made)
    assert again == made


def test_what_no_kernel_computes_is_quantized_alone() -> None:
    """An input of the model, and what a kernel computes that leaves no range."""
    for text, reason in (
        ("(float[N,S,8] x) => (uint8[N,S,8] y, float s, uint8 z) {", "'x' is not what a kernel computes"),
        (
            "(float[N,S,8] a) => (uint8[N,S,8] y, float s, uint8 z) { b = Relu (a) c = Exp (b) x = Neg (c)",
            "the kernel that computes 'x' leaves no range of it",
        ),
    ):
        made, report = optimize(parse(f"g {text} y, s, z = DynamicQuantizeLinear (x) }}"))
        assert ops(made)[-1] == QUANTIZES
        assert reason in "\n".join(near.refusal.reason for near in report.near)


STEP = """g (float16[ROWS,16] x, float16[ROWS,16] r) => (float16[ROWS,16] s, float16[ROWS,8] y, float16[ROWS,8] z)
<float16[16] scale = {SCALE}, float16[16,8] w = {WEIGHT}, float16[16,8] v = {OTHER}> {
  s = Add (x, r)
  n = RMSNormalization (s, scale)
  y = MatMul (n, w)
  z = MatMul (n, v)
}""".replace("SCALE", "15360," * 15 + "16384").replace("WEIGHT", ",".join(str(13312 + i) for i in range(128))).replace(
    "OTHER", ",".join(str(14336 + i) for i in range(128)))  # fmt: skip


def test_a_norm_joins_the_products_that_read_it() -> None:
    """Of one row; the sum and the norm stay outputs, the numbers are the same, and nothing happens twice."""
    model = parse(STEP.replace("ROWS", "1"), opset=23)
    made, report = optimize(model)
    assert ops(made) == ["{Add RMSNormalization Transpose MatMul Transpose MatMul}"]
    assert report.by_rule()["row_product"] == 1
    (op,) = fused_ops(made).values()
    assert len(op.outputs) == 4
    assert_same_numbers(model, made)
    assert sorted(ops(onnxfuse.unfuse(made))) == sorted(ops(model))
    again, _ = optimize(made)
    assert again == made


def test_a_norm_of_more_rows_keeps_a_launch_of_its_own() -> None:
    """Of nine, and of any number: two launches in one op save nothing."""
    for rows in ("9", "N"):
        made, report = optimize(parse(STEP.replace("ROWS", rows), opset=23))
        assert report.by_rule()["row_product"] == 0
        assert len(ops(made)) == 2
        (refusal,) = {n.refusal for n in report.near if "it would save no launch" in n.refusal.reason}
        assert hint(refusal.cause) == "nothing is lost here: they take as many launches by themselves"


def test_a_norm_of_open_rows_joins_where_the_graph_keeps_a_cache() -> None:
    """A step of decoding has one row, of which the op takes one launch."""
    text = STEP.replace("ROWS", "N").replace("float16[N,8] z)", "float16[N,8] z, float16[N,2,T,8] present)", 1)
    text = text.replace("float16[N,16] r)", "float16[N,16] r, float16[N,2,P,8] past, float16[N,2,1,8] new)")
    model = parse(text.replace("z = MatMul", "present = Concat <axis = 2> (past, new)\n  z = MatMul"), opset=23)
    made, report = optimize(model)
    assert report.by_rule()["row_product"] == 1
    assert "{Add RMSNormalization Transpose MatMul Transpose MatMul}" in ops(made)
    again, _ = optimize(made)
    assert again == made
