"""GELU spelled with erf is one operation, in whatever order its factors stand; what is nearly one stays as it is."""

import math

import numpy as np
import pytest

from bench.cases import ops
from bench.cases.ops import FLOAT
from onnxfuse.codegen.operators import read
from onnxfuse.codegen.operators.erf_gelu import PRODUCT, QUOTIENT
from onnxfuse.codegen.program.program import Apply, BodyProgram, Constant
from onnxfuse.ops import scalar
from onnxfuse.ops.arrays import Values

CONSTANTS = """c = Constant <value = float {1.5}> () k = Constant <value = float {1.0}> ()
h = Constant <value = float {0.5}> ()"""


def program(nodes: str, constants: str = CONSTANTS) -> BodyProgram:
    """Return the program of a body of x and z with these nodes."""
    text = f"(x, z) => (y) {{ {constants} {nodes} }}"
    return read.program(ops.op(text, (FLOAT, FLOAT), (FLOAT,)))


def result(nodes: str, constants: str = CONSTANTS) -> Apply:
    """Return the operation that computes the body's output."""
    made = program(nodes, constants)
    value = made.values[made.outputs[0].value]
    assert isinstance(value, Apply)
    return value


@pytest.mark.parametrize(
    "nodes",
    [
        "d = Mul (x, c) e = Erf (d) p = Add (e, k) m = Mul (x, p) y = Mul (m, h)",
        "d = Mul (c, x) e = Erf (d) p = Add (k, e) m = Mul (p, x) y = Mul (h, m)",
        "d = Mul (x, c) e = Erf (d) p = Add (e, k) m = Mul (h, x) y = Mul (m, p)",
        "d = Mul (x, c) e = Erf (d) p = Add (e, k) m = Mul (p, h) y = Mul (x, m)",
        "d = Div (x, c) e = Erf (d) p = Add (e, k) m = Mul (x, p) y = Mul (m, h)",
    ],
)
def test_factors_in_any_order_are_one_operation(nodes: str) -> None:
    """Its operands are x, the scale, the one and the half: the constants take part in broadcasting."""
    made = program(nodes)
    value = made.values[made.outputs[0].value]
    assert isinstance(value, Apply)
    assert value.op == (QUOTIENT if "Div" in nodes else PRODUCT)
    x, *constants = (made.values[i] for i in value.args)
    assert x == made.values[0]
    assert [c.value for c in constants if isinstance(c, Constant)] == [1.5, 1.0, 0.5]


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ("d = Div (c, x) e = Erf (d) p = Add (e, k) m = Mul (x, p) y = Mul (m, h)", CONSTANTS),
        ("d = Mul (x, z) e = Erf (d) p = Add (e, k) m = Mul (x, p) y = Mul (m, h)", CONSTANTS),
        ("d = Mul (x, c) e = Erf (d) p = Add (e, k) m = Mul (z, p) y = Mul (m, h)", CONSTANTS),
        ("d = Add (x, c) e = Erf (d) p = Add (e, k) m = Mul (x, p) y = Mul (m, h)", CONSTANTS),
        ("d = Mul (x, c) e = Erf (d) p = Add (e, k) m = Mul (x, p) n = Mul (m, h) y = Mul (n, z)", CONSTANTS),
        ("d = Mul (x, c) e = Erf (d) p = Add (e, k) y = Mul (x, p)", CONSTANTS),
        ("d = Mul (x, c) e = Erf (d) p = Add (e, k) m = Mul (x, p) y = Mul (m, h)", CONSTANTS.replace("1.5", "-1.5")),
        ("d = Mul (x, c) e = Erf (d) p = Add (e, k) m = Mul (x, p) y = Mul (m, h)", CONSTANTS.replace("1.5", "0.0")),
        ("d = Mul (x, c) e = Erf (d) p = Add (e, k) m = Mul (x, p) y = Mul (m, h)", CONSTANTS.replace("0.5", "0.25")),
        ("d = Mul (x, c) e = Erf (d) p = Add (e, k) m = Mul (x, p) y = Mul (m, h)", CONSTANTS.replace("1.0", "2.0")),
    ],
)
def test_what_is_nearly_a_gelu_stays_a_product(nodes: str, constants: str) -> None:
    """Another argument of erf, another number of factors, another constant."""
    assert result(nodes, constants).op == scalar.mul


def test_a_fourth_factor_takes_the_product_before_it() -> None:
    """The GELU inside stays one: only its product with a fourth factor is a product."""
    made = program("d = Mul (x, c) e = Erf (d) p = Add (e, k) m = Mul (x, p) n = Mul (m, h) y = Mul (n, z)")
    assert PRODUCT in [v.op for v in made.values if isinstance(v, Apply)]


def test_the_operation_is_the_formula() -> None:
    """x Phi(x), as NumPy computes it from its parts; in half precision, too, the kernel computes it in float32."""
    x, scale = np.array([-6.0, -0.5, 0.0, 2.0]), np.array(1.25)
    for function, argument in ((PRODUCT, x * scale), (QUOTIENT, x / scale)):
        made = function(Values(x, FLOAT), Values(scale, FLOAT))
        expected = [0.5 * one * math.erfc(-other) for one, other in zip(x, argument, strict=True)]
        np.testing.assert_allclose(made.array, expected, rtol=1e-15)
        assert function.half


@pytest.mark.parametrize("nodes", ["e = Erf (x) y = Add (e, k)", "e = Erf (x) y = Add (k, e)"])
def test_erf_and_one_are_one_operation(nodes: str) -> None:
    """Without the cancellation that is left of 1 + erf near -1."""
    value = result(nodes)
    assert value.op == scalar.one_plus_erf


@pytest.mark.parametrize(
    "nodes", ["e = Erf (x) y = Add (e, c)", "e = Erf (x) y = Add (e, z)", "e = Tanh (x) y = Add (e, k)"]
)
def test_another_sum_stays_one(nodes: str) -> None:
    """Of another constant, of another operand, of another function."""
    assert result(nodes).op == scalar.add
