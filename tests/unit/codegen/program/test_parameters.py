"""Programs that differ in constants alone become one program, and what they differ in its parameters."""

import pytest
from onnx import TensorProto

from bench.cases import ops
from onnxfuse.codegen.operators import read
from onnxfuse.codegen.program.parameters import parametric
from onnxfuse.codegen.program.program import BodyProgram, Input
from onnxfuse.codegen.program.whole_numbers import fits

FLOAT, INT8 = TensorProto.FLOAT, TensorProto.INT8


def program(scale: float, zero: int, more: str = "Relu (d)") -> BodyProgram:
    """Return x, quantized and dequantized, plus b, and quantized again by another scale."""
    # A zero point of 0 is left out of a DequantizeLinear.
    back = ", z" if zero else ""
    text = f"""(x, b) => (y) {{ s = Constant <value = float {{{scale}}}> () z = Constant <value = int8 {{{zero}}}> ()
      t = Constant <value = float {{0.5}}> () q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s{back})
      r = {more} a = Add (r, b) y = QuantizeLinear (a, t, z) }}"""
    return read.program(ops.op(text, (FLOAT, FLOAT), (INT8,)))


def test_what_differs_is_a_parameter_and_the_rest_is_not() -> None:
    """The scale, its bounds and the zero point of the result; not the other scale, nor the bounds of that one."""
    found = parametric([program(0.25, 3), program(0.125, -9)])
    assert found is not None
    assert found.numbers == ((0.25, -131.0, 124.0, 3.0), (0.125, -119.0, 136.0, -9.0))
    assert found.program.inputs == (FLOAT, FLOAT, FLOAT, FLOAT, FLOAT, FLOAT)
    quantized = next(v for v in found.program.values if getattr(v, "op", "") == "shifted_steps")
    index = found.program.values.index(quantized)
    assert fits(found.program.values, index, INT8)


def test_a_zero_point_of_0_is_a_number_as_others_are() -> None:
    found = parametric([program(0.25, 0), program(0.25, 5), program(0.125, 5)])
    assert found is not None
    assert [n[-1] for n in found.numbers] == [0.0, 5.0, 5.0]
    assert found.program.outputs[0].dtype == INT8


def test_equal_programs_have_no_parameters() -> None:
    found = parametric([program(0.25, 3)] * 2)
    assert found is not None
    assert found.numbers == ((), ())
    assert {v for v in found.program.values if isinstance(v, Input)} == {Input(0, FLOAT), Input(1, FLOAT)}


@pytest.mark.parametrize("other", ["Neg (d)", "Abs (d)", "Mul (d, d)"])
def test_another_operation_is_another_program(other: str) -> None:
    assert parametric([program(0.25, 3), program(0.25, 3, other)]) is None


def test_other_inputs_are_another_program() -> None:
    text = "(x, b) => (y) { y = Add (x, b) }"
    one, other = (read.program(ops.op(text, (t, t), (t,))) for t in (FLOAT, TensorProto.FLOAT16))
    assert parametric([one, other]) is None
