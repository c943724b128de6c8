"""Lines: what a DequantizeLinear, a Relu and a QuantizeLinear make of each of 256 numbers, by one multiplication."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto

from bench.cases import ops
from onnxfuse.codegen.operators import read
from onnxfuse.codegen.program.lines import Line, line_through
from onnxfuse.codegen.program.program import Apply, BodyProgram, Constant
from onnxfuse.ops import scalar

FLOAT, INT8, UINT8 = TensorProto.FLOAT, TensorProto.INT8, TensorProto.UINT8
LINES = {scalar.line, scalar.line_inside}
SCALE = st.floats(2.0**-12, 8, width=32)


def program(text: str, inputs: tuple[int, ...], output: int = INT8) -> BodyProgram:
    names = ", ".join("qrs"[: len(inputs)])
    return read.program(ops.op(f"({names}) => (y) {{ {text} }}", inputs, (output,), "pointwise"))


def applied(of: BodyProgram) -> list[str]:
    live = of.live()
    return [str(v.op) for i, v in enumerate(of.values) if i in live and isinstance(v, Apply)]


def numbers(of: BodyProgram, value: Apply) -> list[float]:
    return [float(c.value) for a in value.args[1:] if isinstance(c := of.values[a], Constant)]


def requantized(s: Any, z: int, t: Any, y: int, kind: str = "int8") -> str:
    """The text of DequantizeLinear, Relu and QuantizeLinear."""
    return (
        f"s = Constant <value = float {{{s}}}> () z = Constant <value = {kind} {{{z}}}> ()"
        f" t = Constant <value = float {{{t}}}> () v = Constant <value = {kind} {{{y}}}> ()"
        " f = DequantizeLinear (q, s, z) g = Relu (f) y = QuantizeLinear (g, t, v)"
    )


@given(SCALE, st.integers(-128, 127), SCALE, st.integers(-128, 127))
def test_a_line_gives_the_numbers_of_the_nodes(s: float, z: int, t: float, y: int) -> None:
    """Of all 256 numbers, whatever the scales and zero points; where no line does, the nodes stay."""
    made = program(requantized(s, z, t, y), (INT8,))
    n = np.arange(-128, 128)
    real = np.maximum((n - z).astype(np.float32) * np.float32(s), np.float32(0))
    expected = np.clip(np.rint(real / np.float32(t)) + y, -128, 127)
    for value in made.values:
        if isinstance(value, Apply) and value.op in LINES:
            line = Line(*numbers(made, value))
            np.testing.assert_array_equal(line.within(n), expected)
            assert value.op == scalar.line or np.array_equal(line.at(n), expected)
            assert len(applied(made)) == 3  # beside it the conversions of the input and of the result
            return
    if applied(made):
        assert "steps" in applied(made)
    else:
        np.testing.assert_array_equal(n, expected)


def test_a_relu_between_two_scales_is_one_multiplication() -> None:
    made = program(requantized(0.1, 0, 0.07, 0), (INT8,))
    assert applied(made) == ["cast", "line", "cast"]


def test_bounds_of_the_steps_before_it_make_those_of_the_line_unneeded() -> None:
    """A Relu, and a scale at which the last numbers saturate: the steps are clipped there, once."""
    text = (
        "c = Constant <value = int8 {0}> () a = Constant <value = float {0.1}> () p = QuantizeLinear (q, a, c)"
        + requantized(0.1, 0, 0.07, 0).replace("(q,", "(p,")
    )
    made = program(text, (FLOAT,))
    assert applied(made) == ["steps", "line_inside", "cast"]
    (steps,) = (v for v in made.values if isinstance(v, Apply) and v.op == scalar.steps)
    assert numbers(made, steps)[1:] == [0, 89]  # 89 * 0.1 / 0.07 is 127.1


def test_a_value_that_others_read_keeps_its_bounds() -> None:
    text = (
        "c = Constant <value = int8 {0}> () a = Constant <value = float {0.1}> () p = QuantizeLinear (q, a, c)"
        + requantized(0.1, 0, 0.07, 0).replace("(q,", "(p,").replace(" y =", " w =")
        + " u = Cast <to = 1> (p) x = Cast <to = 1> (w) j = Mul (u, r) k = Add (j, x) y = QuantizeLinear (k, a, c)"
    )
    made = program(text, (FLOAT, FLOAT))
    first = next(v for v in made.values if isinstance(v, Apply) and v.op == scalar.steps)
    assert numbers(made, first)[1:] == [-128, 127]


def test_the_same_scale_twice_is_no_work() -> None:
    made = program(requantized(0.1, 0, 0.1, 0).replace("Relu", "Identity"), (INT8,))
    assert applied(made) == []


@pytest.mark.parametrize("bend", [0, 40, 100])
def test_what_is_no_line_is_none(bend: int) -> None:
    """One result beside it is enough."""
    n = np.arange(-128, 128)
    quotients = n * 0.7071
    results = np.clip(np.rint(quotients), -50, 80)
    assert line_through(n, results, quotients) == Line(float(np.float32(0.7071)), 0.0, -50.0, 80.0)
    results[128 + bend] -= 1
    assert line_through(n, results, quotients) is None
