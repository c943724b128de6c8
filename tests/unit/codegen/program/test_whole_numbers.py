"""Whole numbers in programs: conversions that are sums, and those that are left out."""

from onnx import TensorProto

from bench.cases import ops
from onnxfuse.codegen.program.program import Apply
from onnxfuse.cuda.templates.memory_bound import schedule
from onnxfuse.ops import scalar

FLOAT, INT8, UINT8 = TensorProto.FLOAT, TensorProto.INT8, TensorProto.UINT8


def casts(text: str, types: tuple[int, ...], to: int) -> int:
    """Return how many conversions the program of a body has."""
    program = schedule.program(ops.op(text, types, (to,)))
    return sum(isinstance(v, Apply) and v.op == scalar.cast for v in program.values)


def test_quantized_and_dequantized_at_once_is_not_converted() -> None:
    """But for the zero point, twice."""
    text = "(x, s, z) => (y) { q = QuantizeLinear (x, s, z) y = DequantizeLinear (q, s, z) }"
    assert casts(text, (FLOAT, FLOAT, INT8), FLOAT) <= 2
