"""Which fused ops ONNX Runtime would put on the CPU, told from the graph alone (test_inference.py asks it)."""

import onnx
import pytest

from onnxfuse.runtime.sessions.shape_math import shape_math

HEAD = '<ir_version: 10, opset_import: ["" : 20, "onnxfuse" : 1]>'
BIG = ", ".join(["1"] * 101)


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ("s = Shape (x)  y = onnxfuse.F (s, s)", ""),
        ("s = Size (x)  y = onnxfuse.F (s, two)", "int64[1] two = {2}"),
        ("s = Shape (x)  c = Constant <value_ints = [1, 2]> ()  y = onnxfuse.F (c, s)", ""),
        ("s = Shape (x)  f = Cast <to = 1> (s)  y = onnxfuse.F (x, f)", ""),
        ("s = Shape (x)  a = onnxfuse.F (s, s)  y = Neg (a)", ""),
        ("s = Size (x)  a = Round (c)  y = onnxfuse.F (a, s)", "float[1] c = {1}"),
        ("s = Size (x)  a = ReduceSumSquare (c)  y = onnxfuse.F (a, s)", f"float[101] c = {{{BIG}}}"),
        (
            "a = Round (c)  y = If (b) <then_branch = t () => (int64 p) { s = Size (x)  p = onnxfuse.F (s, a) }>",
            "float[1] c = {1}",
        ),
        (
            "y = If (b) <then_branch = t () => (int64 p) { s = Size (x)  p = onnxfuse.F (s, two) }>",
            "int64[1] two = {2}",
        ),
    ],
)
def test_an_op_on_shapes_graph_inputs_and_small_constants_is_found(nodes: str, constants: str) -> None:
    """Such a node moves to the CPU: it reads a shape, and nothing else that lives on the device."""
    assert shape_math(model(nodes, constants)) == {"F"}


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ("y = onnxfuse.F (x, x)", ""),
        ("s = Size (x)  f = Cast <to = 1> (s)  a = Neg (x)  y = onnxfuse.F (a, f)", ""),
        ("s = Size (x)  y = onnxfuse.F (s, w)", f"int64[101] w = {{{BIG}}}"),
        (f"s = Size (x)  w = Constant <value = int64[101] {{{BIG}}}> ()  y = onnxfuse.F (s, w)", ""),
        (f"s = Size (x)  w = Constant <value_ints = [{BIG}]> ()  y = onnxfuse.F (s, w)", ""),
        ("y = onnxfuse.F (x, w)", "float[1] w = {1}"),
        (f"s = Size (x)  w = Constant <value_floats = [{BIG}]> ()  y = onnxfuse.F (s, w)", ""),
        ("s = Size (x)  a = RandomUniformLike (c)  y = onnxfuse.F (a, s)", "float[1] c = {1}"),
        ("s = Size (x)  p = Range (zero, s, zero)  y = onnxfuse.F (p, s)", "int64 zero = {0}"),
        ("s = Shape (x)  e = ConstantOfShape (s)  y = onnxfuse.F (x, e)", ""),
        ("s = Size (x)  f = Cast <to = 10> (s)  y = onnxfuse.F (h, f)", ""),
        ("s = Shape (x)  y = onnxfuse.G (s, s)  z = Neg (x)  v = onnxfuse.F (z, z)", ""),
    ],
)
def test_an_op_that_reads_a_device_value_is_not(nodes: str, constants: str) -> None:
    """A value computed on the device, or a weight of more than 100 elements, keeps the node on the GPU."""
    assert "F" not in shape_math(model(nodes, constants))


def model(nodes: str, constants: str) -> onnx.ModelProto:
    inputs = "bool b, float[N, 8] x, float16[N, 8] h"
    return onnx.parser.parse_model(f"{HEAD} g ({inputs}) => (float y) <{constants}> {{ {nodes} }}")
