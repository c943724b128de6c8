"""An op that quantizes joins the fused op that computes its input: nothing is lost, and what stays says why."""

import numpy as np
import onnx
import onnxruntime as ort

import onnxfuse
from onnxfuse.model.fused import fused_ops
from tests.support.small import ops, optimize, parse

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
