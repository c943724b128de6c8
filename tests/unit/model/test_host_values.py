"""Which values a CUDA session leaves on the CPU, as ONNX Runtime places shape arithmetic."""

import pytest
from onnx import TensorProto

from onnxfuse.model.host_values import computed_on_host, has_cuda_kernel, leaves_on_host
from onnxfuse.ops import operator
from tests.support.small import parse

NEAR = frozenset({"x", "i", "h", "c"})
"""Graph inputs and a small constant."""


def on_host(nodes: str, **types: int) -> str:
    """Return the values that these nodes leave on the CPU; all are int64 but x, float32, and h, float16."""
    dtypes = {"x": TensorProto.FLOAT, "h": TensorProto.FLOAT16, **types}
    model = parse(f"g (float[N,4] x, int64[4] i, float16[4] h) => (float[N,4] y) {{ {nodes} }}")
    found = computed_on_host(model.graph.node, NEAR.__contains__, lambda v: dtypes.get(v, TensorProto.INT64))
    return " ".join(sorted(found))


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        ("s = Shape (x)", "s"),
        ("s = Size (x) t = Add (s, c)", "s t"),
        ("s = Shape (x) t = Mul (s, i)", "s t"),
        ("s = Shape (x) t = Gather (s, c) u = Concat <axis = 0> (t, i, s)", "s t u"),
        ("t = Add (i, c)", ""),
        ("t = Relu (x)", ""),
        ("s = Shape (x) w = Relu (x) t = Add (s, w)", "s"),
        ("s = Shape (x) t = Mul (s, h)", "s"),
    ],
    ids=[
        "a shape", "a constant with it", "an input with it", "a chain", "no shape", "a float", "a value on the GPU",
        "a half type",
    ],
)  # fmt: skip
def test_what_is_computed_from_a_shape_is_on_the_cpu(nodes: str, found: str) -> None:
    """As long as all else that a node reads is there, or an input or a small constant, and none is of a half type."""
    assert on_host(nodes) == found


def test_what_a_kernel_itself_reads_on_the_cpu_does_not_move_its_node() -> None:
    """The target of a Reshape, the shape of an Expand: their data stays on the GPU."""
    assert on_host("s = Shape (x) y = Reshape (x, s)") == "s"
    assert on_host("s = Shape (x) y = Expand (x, s)") == "s"
    assert on_host("s = Shape (x) y = Reshape (s, c)") == "s y"


def test_an_operator_without_a_kernel_for_the_type_runs_on_the_cpu() -> None:
    """A Pad of integers has none, so that its pads are a CPU value as any other."""
    pad = operator("Pad", "")
    assert pad is not None
    types = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.INT64
    assert [has_cuda_kernel(pad, dtype) for dtype in types] == [True, True, True, False]
    relu = operator("Relu", "")
    assert relu is not None
    assert has_cuda_kernel(relu, TensorProto.INT64)
    assert on_host("s = Shape (x) y = Pad (x, s)") == "s"
    assert on_host("s = Shape (x) y = Pad (i, s)") == "s y"


def test_a_shape_operator_of_another_library_is_not_onnx_s() -> None:
    def is_near(value: str) -> bool:
        return value == "x"

    def dtype(value: str) -> int:
        return TensorProto.FLOAT

    assert leaves_on_host("Shape", "", ["x"], (), is_near, dtype)
    assert not leaves_on_host("Shape", "other", ["x"], (), is_near, dtype)
    assert leaves_on_host("Shape", "other", ["x", "", "s"], ("s",), is_near, dtype)
