"""Generated functors, built by the host's compiler, against onnx.reference in float64: every pointwise op."""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from bench.cases import ops
from bench.cases.ops import BOOL, DOUBLE, FLOAT, HALF, INT32, INT64
from onnxfuse import cuda
from onnxfuse.codegen.emit import expressions
from onnxfuse.codegen.emit.source import template
from onnxfuse.cuda.templates.memory_bound import schedule
from onnxfuse.model.fused import FusedOp
from tests.emulator import emulate

ANY = np.concatenate([np.linspace(-9, 9, 181), [1e-3, -1e-3, 30, -30, 90, -90, 1e4, -1e4, 3e8, -3e8, 1e-30, -1e-30]])
EDGES = np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1e-40, -1e-40, 3e38, -3e38])
WIDE = np.concatenate([ANY, EDGES])
POSITIVE = np.concatenate([np.linspace(0.01, 9, 181), [1e-30, 1e-40, 1e4, 1e30, 0.0, np.inf, np.nan]])
UNIT = np.concatenate([np.linspace(-1, 1, 181), [1e-30, -1e-30, 0.0, np.nan]])
SMALL = np.concatenate([np.linspace(-9, 9, 181), [60, -60, 1e-3, 1e-30, 0.0, np.inf, -np.inf, np.nan]])

HALVES = [0.5, 1.5, 2.5, -0.5, -1.5]

# Body, input values, units in the last place of float32 that the result may be off besides what the unfused
# computation is. 4 where one library function is called; more where the comment says so.
UNARY = {
    "Exp": (ANY, 4), "Log": (POSITIVE, 4), "Sqrt": (POSITIVE, 4), "Erf": (WIDE, 4), "Sigmoid": (WIDE, 4),
    "Tanh": (WIDE, 4), "Softplus": (WIDE, 4), "Mish": (ANY, 6), "Reciprocal": (WIDE, 4), "Abs": (WIDE, 0),
    "Neg": (WIDE, 0), "Sign": (WIDE, 0), "Floor": (WIDE, 0), "Ceil": (WIDE, 0), "Round": (np.append(WIDE, HALVES), 0),
    "Sin": (SMALL, 4), "Cos": (SMALL, 4), "Tan": (SMALL, 4), "Asin": (UNIT, 4), "Acos": (UNIT, 4), "Atan": (WIDE, 4),
    "Sinh": (SMALL, 4), "Cosh": (SMALL, 4), "Asinh": (ANY, 4), "Acosh": (1 + POSITIVE, 4), "Atanh": (UNIT, 4),
    "Relu": (WIDE, 0), "LeakyRelu": (WIDE, 4), "LeakyRelu <alpha = 0.3>": (WIDE, 4), "Elu <alpha = 1.5>": (WIDE, 4),
    "Celu <alpha = 2.0>": (WIDE, 4), "Selu": (WIDE, 4), "ThresholdedRelu <alpha = 0.5>": (WIDE, 0),
    "HardSigmoid": (WIDE, 4), "HardSigmoid <alpha = 0.3, beta = 0.4>": (WIDE, 4), "HardSwish": (WIDE, 4),
    "Softsign": (WIDE, 4), "Shrink <lambd = 1.5, bias = 0.5>": (WIDE, 4), "Identity": (WIDE, 0), "Dropout": (WIDE, 0),
    # Far left GELU multiplies the rounding of its inner argument, by x^2 (erfc) or 3u (e^u): up to 81 and 200.
    "Gelu": (ANY, 81), 'Gelu <approximate = "tanh">': (ANY, 200),
}  # fmt: skip

LOW = "low = Constant <value = float {-1}> ()"
HIGH = "high = Constant <value = float {2}> ()"
SCALAR = "c = Constant <value = float {{{}}}> ()"
BODIES = {
    **{name: (f"(x) => (y) {{ y = {name}(x) }}", values, ulps) for name, (values, ulps) in UNARY.items()},
    **{
        f"Pow {e}": (f"(x) => (y) {{ {SCALAR.format(e)} y = Pow(x, c) }}", POSITIVE, 4)
        for e in ("2", "3", "0.5", "-0.5", "1", "-1", "2.5")
    },
    "Pow 2 signed": (f"(x) => (y) {{ {SCALAR.format(2)} y = Pow(x, c) }}", WIDE, 4),
    "Clip": (f"(x) => (y) {{ {LOW} {HIGH} y = Clip(x, low, high) }}", WIDE, 0),
    "Clip low": (f"(x) => (y) {{ {LOW} y = Clip(x, low) }}", WIDE, 0),
    "Clip high": (f"(x) => (y) {{ {HIGH} y = Clip(x, , high) }}", WIDE, 0),
    "Clip crossed": (f"(x) => (y) {{ {LOW} {HIGH} y = Clip(x, high, low) }}", ANY, 0),
    # Down to -5 only: further left float64 itself has no digits of 1 + erf.
    "GELU spelled out": (
        f"(x) => (y) {{ {SCALAR.format(1)} h = Constant <value = float {{0.5}}> () "
        "r = Constant <value = float {1.4142135}> () "
        "d = Div(x, r) e = Erf(d) a = Add(e, c) m = Mul(x, a) y = Mul(m, h) }",
        np.linspace(-5, 9, 181),
        25,
    ),
    "Swish spelled out": ("(x) => (y) { s = Sigmoid(x) y = Mul(x, s) }", ANY, 4),
    "Variadic": (
        "(x) => (y) { n = Neg(x) a = Abs(x) s = Sum(x, n, a) m = Mean(x, a, s) t = Max(m, n, x) y = Min(t, a) }",
        WIDE,
        4,
    ),
    "Where": (f"(x) => (y) {{ {SCALAR.format(0.5)} g = Greater(x, c) n = Neg(x) y = Where(g, x, n) }}", WIDE, 0),
    "IsNaN": ("(x) => (y) { b = IsNaN(x) y = Cast <to = 1> (b) }", WIDE, 0),
    "IsInf": ("(x) => (y) { b = IsInf(x) y = Cast <to = 1> (b) }", WIDE, 0),
    "IsInf negative": ("(x) => (y) { b = IsInf <detect_positive = 0> (x) y = Cast <to = 1> (b) }", WIDE, 0),
    "Cast to half": (
        "(x) => (y) { h = Cast <to = 10> (x) y = Cast <to = 1> (h) }",
        np.array([0.1, 1 / 3, 2049.0, 65519.0, -1e-7, 3e-8]),
        0,
    ),
    "Cast to integer": (
        "(x) => (y) { i = Cast <to = 7> (x) y = Cast <to = 1> (i) }",
        np.linspace(-9, 9, 37),
        0,
    ),
    "Cast to bool": ("(x) => (y) { i = Cast <to = 9> (x) y = Cast <to = 1> (i) }", WIDE, 0),
    "quantized and dequantized": (
        "(x) => (y) { s = Constant <value = float {0.3}> () z = Constant <value = uint8 {100}> () "
        "q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }",
        np.concatenate([np.linspace(-40, 60, 401), np.arange(-9, 9) * 0.15, [1e6, -1e6]]),
        1,
    ),
}


@cache
def compiled(
    text: str, inputs: tuple[int, ...], outputs: tuple[int, ...], opset: int = 23
) -> tuple[FusedOp, Callable[..., list[np.ndarray]]]:
    """Return (op, function) where function maps input arrays to output arrays through the functor."""
    fused = ops.op(text, inputs, outputs, opset=opset)
    program = schedule.program(fused)
    live = expressions.live_inputs(program)
    cpp = {t: kernels_type(t) for t in (*inputs, *outputs)}
    loads = ", ".join(f"(({cpp[inputs[i]]}*)pointers[{n}])[i]" for n, i in enumerate(live))
    stores = " ".join(f"(({cpp[t]}*)pointers[{len(live) + n}])[i] = y.b{n};" for n, t in enumerate(outputs))
    source = "\n".join(
        (
            '#include "host.hpp"',
            template("include/math.cuh").text,
            template("include/memory.cuh").text,
            expressions.source(program),
            'extern "C" void run(long long count, void** pointers) {',
            f"  for (long long i = 0; i < count; ++i) {{ const Result y = apply({{{loads}}}); {stores} }}",
            "}",
        )
    )
    emulate.folder()
    run = emulate.library(source).run

    def function(*arrays: np.ndarray) -> list[np.ndarray]:
        given = [np.ascontiguousarray(arrays[i], computed_type(inputs[i])) for i in live]
        results = [np.empty(arrays[0].shape, computed_type(t)) for t in outputs]
        pointers = (ctypes.c_void_p * (len(given) + len(results)))(*(a.ctypes.data for a in (*given, *results)))
        run(ctypes.c_longlong(arrays[0].size), pointers)
        return results

    return fused, function


def kernels_type(dtype: int) -> str:
    from onnxfuse.symbolic import element_types

    return element_types.computed(dtype)


def computed_type(dtype: int) -> Any:
    """Functors see 16-bit floats as float."""
    return np.float32 if dtype in (HALF, ops.BRAIN) else ops.NUMPY[dtype]


def assert_close(got: np.ndarray, exact: np.ndarray, plain: np.ndarray, ulps: float) -> None:
    """At most twice the unfused error plus `ulps` units in the last place; NaN and infinities as in the truth."""
    exact = np.asarray(exact, np.float64)
    with np.errstate(all="ignore"):
        stored = exact.astype(np.float32).astype(np.float64)
    got, plain = got.astype(np.float64), plain.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(exact))
    np.testing.assert_array_equal(got[np.isinf(stored)], stored[np.isinf(stored)])
    finite = np.isfinite(stored)
    error = np.where(np.isfinite(plain), np.abs(plain - exact), 0)[finite]
    allowed = 2 * error + ulps * 2.0**-23 * np.abs(exact[finite]) + 2.0**-24 * np.abs(exact[finite]) + 2.0**-149
    off = np.abs(got[finite] - exact[finite])
    worst = np.argmax(off - allowed)
    assert (off <= allowed).all(), (
        f"{got[finite][worst]} instead of {exact[finite][worst]}, may be {allowed[worst]} off"
    )


@pytest.mark.parametrize("name", BODIES)
def test_functor_computes_what_the_body_says(name: str) -> None:
    """Signed, wide-range and edge inputs; float32 against float64."""
    text, values, ulps = BODIES[name]
    fused, function = compiled(text, (FLOAT,), (FLOAT,))
    x = values.astype(np.float32)
    assert_close(function(x)[0], ops.truth(fused, [x])[0], ops.unfused(fused, [x])[0], ulps)


@pytest.mark.parametrize("activation", ["Exp", "Sigmoid", "Mish", "Gelu", 'Gelu <approximate = "tanh">'])
@pytest.mark.parametrize("dtype", [HALF, ops.BRAIN])
def test_shorter_forms_for_16_bits_lose_less_than_half_a_rounding(activation: str, dtype: int) -> None:
    """The relative error is below 2^-13, also left of 0, where 1 + erf has few digits left; where the value is less
    than a normal float16, the absolute one is below an eighth of the least float16."""
    fused, function = compiled(f"(x) => (y) {{ y = {activation}(x) }}", (dtype,), (dtype,))
    x = np.linspace(-12, 12, 6001).astype(ops.NUMPY[dtype])
    exact = ops.truth(fused, [x])[0]
    off = np.abs(function(x.astype(np.float32))[0] - exact)
    assert (off <= 2.0**-13 * np.abs(exact) + 2.0**-27).all()
    for edge in (np.inf, -np.inf, np.nan, 0.0, -0.0):
        one = np.full(1, edge, np.float32)
        np.testing.assert_array_equal(function(one)[0], ops.truth(fused, [one.astype(x.dtype)])[0].astype(np.float32))


BINARY = {
    "Add": (FLOAT, FLOAT), "Sub": (FLOAT, FLOAT), "Mul": (FLOAT, FLOAT), "Div": (FLOAT, FLOAT), "Max": (FLOAT, FLOAT),
    "Min": (FLOAT, FLOAT), "PRelu": (FLOAT, FLOAT), "Mod <fmod = 1>": (FLOAT, FLOAT), "Equal": (FLOAT, BOOL),
    "Less": (FLOAT, BOOL), "Greater": (FLOAT, BOOL), "LessOrEqual": (FLOAT, BOOL), "GreaterOrEqual": (FLOAT, BOOL),
    "And": (BOOL, BOOL), "Or": (BOOL, BOOL), "Xor": (BOOL, BOOL),
    "BitwiseAnd": (INT32, INT32), "BitwiseOr": (INT32, INT32), "BitwiseXor": (INT32, INT32),
}  # fmt: skip


@pytest.mark.parametrize("name", BINARY)
def test_binary_functors_on_all_pairs_of_edges(name: str) -> None:
    """Every edge value against every other one: NaN, infinities, signed zeros, the denormal."""
    dtype, result = BINARY[name]
    fused, function = compiled(f"(a, b) => (y) {{ y = {name}(a, b) }}", (dtype, dtype), (result,))
    if dtype == FLOAT:
        few = np.concatenate([EDGES, [1.5, -1.5, 2.0, 7.25, 1e-3]]).astype(np.float32)
    else:
        few = np.arange(-5, 6).astype(ops.NUMPY[dtype])
    a, b = (v.ravel() for v in np.meshgrid(few, few))
    if result == FLOAT:
        assert_close(function(a, b)[0], ops.truth(fused, [a, b])[0], ops.unfused(fused, [a, b])[0], 0)
    else:
        np.testing.assert_array_equal(function(a, b)[0], ops.unfused(fused, [a, b])[0])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Div(a, b)", [3, -3, -3, 3, 0, 2]),
        ("Mod(a, b)", [1, 1, -1, -1, 0, 1]),
        ("Mod <fmod = 1> (a, b)", [1, -1, 1, -1, 0, 1]),
    ],
)
def test_integer_division_truncates_and_mod_follows_its_rule(text: str, expected: list[int]) -> None:
    """Div goes towards 0; Mod takes the sign of the divisor, with fmod=1 that of the dividend."""
    _, function = compiled(f"(a, b) => (y) {{ y = {text} }}", (INT32, INT32), (INT32,))
    a, b = np.array([7, -7, 7, -7, 0, 5], np.int32), np.array([2, 2, -2, -2, 3, 2], np.int32)
    np.testing.assert_array_equal(function(a, b)[0], expected)


def test_a_cast_to_half_rounds_to_even_and_overflows_to_infinity() -> None:
    """Just as numpy does; the bound is 65520, half a step above the greatest finite value."""
    _, function = compiled("(x) => (y) { h = Cast <to = 10> (x) y = Cast <to = 1> (h) }", (FLOAT,), (FLOAT,))
    x = np.array([2049, 2051, 65519.9, 65520, -65521, 3e-8, 2e-8, 6.1e-5, np.inf, np.nan, 0.1], np.float32)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(function(x)[0], x.astype(np.float16).astype(np.float32))


def test_small_integers_wrap_around_in_their_own_type() -> None:
    """200 + 100 is 44 in uint8, although C++ adds in int."""
    uint8 = 2
    _, function = compiled("(a, b) => (y) { y = Add(a, b) }", (uint8, uint8), (uint8,))
    np.testing.assert_array_equal(function(np.array([200], np.uint8), np.array([100], np.uint8))[0], [44])


def test_power_of_unlike_types_has_the_type_of_the_base() -> None:
    _, real = compiled("(a, b) => (y) { y = Pow(a, b) }", (FLOAT, INT64), (FLOAT,))
    np.testing.assert_allclose(real(np.array([2.0, -3.0], np.float32), np.array([-2, 3]))[0], [0.25, -27], rtol=1e-6)
    _, whole = compiled("(a, b) => (y) { y = Pow(a, b) }", (INT32, INT32), (INT32,))
    np.testing.assert_array_equal(whole(np.array([-3, 7], np.int32), np.array([3, 4], np.int32))[0], [-27, 2401])


def test_clip_of_old_opsets_takes_attributes() -> None:
    _, function = compiled("(x) => (y) { y = Clip <max = 6.0, min = 0.0> (x) }", (FLOAT,), (FLOAT,), 9)
    np.testing.assert_array_equal(function(np.array([-1, 3, 7, np.nan], np.float32))[0], [0, 3, 6, np.nan])


def test_shifts_and_complements() -> None:
    uint8 = 2
    text = """(a, b) => (l, r, n, t) { l = BitShift <direction = "LEFT"> (a, b)
      r = BitShift <direction = "RIGHT"> (a, b) n = BitwiseNot(a) z = Equal(a, b) t = Not(z) }"""
    _, function = compiled(text, (uint8, uint8), (uint8, uint8, uint8, BOOL))
    left, right, complement, unlike = function(np.array([129, 3], np.uint8), np.array([1, 3], np.uint8))
    np.testing.assert_array_equal(left, [2, 24])
    np.testing.assert_array_equal(right, [64, 0])
    np.testing.assert_array_equal(complement, [126, 252])
    np.testing.assert_array_equal(unlike, [True, False])


def test_double_is_computed_in_double() -> None:
    fused, function = compiled("(x) => (y) { g = Gelu(x) y = Tanh(g) }", (DOUBLE,), (DOUBLE,))
    x = np.linspace(-5, 5, 101)
    np.testing.assert_allclose(function(x)[0], ops.truth(fused, [x])[0], rtol=1e-10)


def test_microsoft_activations() -> None:
    """BiasGelu, FastGelu, QuickGelu and ScaledSiLU by their own formulas."""
    from math import erf, tanh

    text = """(x, b) => (p, q, r, s, t) { p = com.microsoft.BiasGelu(x, b) q = com.microsoft.FastGelu(x, b)
      r = com.microsoft.QuickGelu <alpha = 1.5> (x) s = com.microsoft.ScaledSiLU <alpha = 1.5> (x)
      t = com.microsoft.ScaledSiLU(x, b) }"""
    _, function = compiled(text, (FLOAT, FLOAT), (FLOAT,) * 5)
    x, b = np.linspace(-4, 4, 33, dtype=np.float32), np.linspace(0, 1, 33, dtype=np.float32)
    s = (x + b).astype(np.float64)
    exact = [v * 0.5 * (1 + erf(v / 2**0.5)) for v in s]
    fast = [v * 0.5 * (1 + tanh(0.7978845608 * (v + 0.044715 * v**3))) for v in s]
    quick = x.astype(np.float64) / (1 + np.exp(-1.5 * x.astype(np.float64)))
    scaled = x.astype(np.float64) * b
    gated = scaled / (1 + np.exp(-scaled))
    for got, expected in zip(function(x, b), (exact, fast, quick, 1.5 * quick, gated), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-6)


def test_every_pointwise_op_is_tested_here() -> None:
    """An op that joins the language without a test turns this red."""
    tested = " ".join((*(t for t, _, _ in BODIES.values()), *BINARY, "BitShift( BitwiseNot( Not( "))
    elsewhere = {"CastLike", "Swish"}  # test_emulated.py: onnx.reference does not know them in this opset
    names = {n for n in cuda.pointwise_ops() if f"{n}(" not in tested and f"{n} <" not in tested}
    assert names - set(BINARY) <= elsewhere
