"""Outputs on a grid of steps: which they are, and how they are judged."""

import ml_dtypes
import numpy as np
import pytest

from onnxfuse.verification.tolerance.error_budget import measure, ties_fault
from onnxfuse.verification.tolerance.quantized_outputs import float8_outputs, rounds_inside, steps_of_outputs
from tests.support.small import parse

SCALE = np.float32(0.05)
QUANTIZED = """g (float[N,4,8] x) => (int8[N,4,8] q, float[N,8,4] t, float[N,4,8] e, float[N,4,8] d)
<float s = {0.05}, int8 z = {3}> {
  q = QuantizeLinear (x, s, z)
  d = DequantizeLinear (q, s, z)
  t = Transpose <perm = [0, 2, 1]> (d)
  e = Exp (d)
}"""


def test_steps_of_outputs() -> None:
    """Integers have 1, what is dequantized from them the scale, moved or not; what is computed of it has none."""
    model = parse(QUANTIZED, 21)
    assert steps_of_outputs(model) == {"q": 1.0, "d": float(SCALE), "t": float(SCALE)}
    assert rounds_inside(model)


WITHOUT_STEP = {
    "given integers": "g (float s, int8[4] q) => (float[4] y) { y = DequantizeLinear (q, s) }",
    "float8": """g (float[4] x) => (float8e4m3fn[4] y) <float s = {0.05}, float8e4m3fn z = {0}> {
      y = QuantizeLinear (x, s, z)
    }""",
    "scales of channels": """g (float[3,4] x) => (float[3,4] y) <float[3] s = {1, 2, 3}, int8[3] z = {0, 1, 2}> {
      q = QuantizeLinear <axis = 0> (x, s, z)
      y = DequantizeLinear <axis = 0> (q, s, z)
    }""",
    "floats": "g (float[3,4] x) => (float[3,4] y) { y = Relu (x) }",
}


@pytest.mark.parametrize("form", WITHOUT_STEP)
def test_outputs_without_one_known_step(form: str) -> None:
    """Given integers are exact, float8 has a rounding step of its own, and several scales are several grids."""
    assert steps_of_outputs(parse(WITHOUT_STEP[form], 21)) == {}


def test_weights_alone_are_no_rounding() -> None:
    """A weight that is quantized in the file is a constant."""
    text = """g (float[4] x) => (float[4] y) <float[4] w = {1, 2, 3, 4}, float s = {0.05}, int8 z = {0}> {
      q = QuantizeLinear (w, s, z)
      d = DequantizeLinear (q, s, z)
      y = Add (x, d)
    }"""
    assert not rounds_inside(parse(text, 21))
    scaled = "g (float s) => (float[2] y) <float[2] w = {1, 2}> { q = QuantizeLinear (w, s)  y = Cast <to = 1> (q) }"
    assert not rounds_inside(parse(scaled, 21))


MOVED = """g (float[4] x, int64[2] sizes) => (float[a, b] shaped, float[8] joined, float[8] mixed, float[4] copied)
<float s = {0.05}, int8 z = {3}> {
  q = QuantizeLinear (x, s, z)
  d = DequantizeLinear (q, s, z)
  shaped = Reshape (d, sizes)
  joined = Concat <axis = 0> (d, d)
  mixed = Concat <axis = 0> (d, x)
  copied = Identity (x)
}"""


def test_the_step_of_what_is_moved() -> None:
    """The shape of a Reshape is no element of its result; all elements of a Concat have to be on one grid."""
    assert steps_of_outputs(parse(MOVED, 21)) == {"shaped": float(SCALE), "joined": float(SCALE)}


def test_what_rounds_to_an_unknown_type_rounds_to_integers() -> None:
    """An operator of another library makes the zero point, whose type is that of the result."""
    model = parse("g (float[4] x, float s) => (y) { z = library.Zero (x)  y = QuantizeLinear (x, s, z) }", 21)
    assert steps_of_outputs(model) == {"y": 1.0}


def _integers(count: int, apart: int, by: int = 1) -> tuple[np.ndarray, np.ndarray]:
    original = np.arange(count).astype(np.int8) // 2
    fused = original.copy()
    fused[:apart] += by
    return fused, original


@pytest.mark.parametrize(
    ("count", "apart", "ok"), [(10_000, 10, True), (10_000, 11, False), (100, 1, True), (100, 2, False)]
)
def test_one_in_a_thousand_integers_may_be_one_step_apart(count: int, apart: int, ok: bool) -> None:
    """Of fewer than a thousand one may."""
    fused, original = _integers(count, apart)
    measured = measure(fused, [original], original, step=1.0)
    assert (measured.apart, not measured.fault) == (apart, ok)
    assert ok or measured.fault == ties_fault(apart, count)
    assert measure(fused, [original], original).fault, "without a step integers are equal"


def test_no_integer_may_be_two_steps_apart() -> None:
    """Neither from the original nor from the reference; what follows one of them is not apart."""
    fused, original = _integers(10_000, 1, by=2)
    assert measure(fused, [original], original, step=1.0).fault == "2 steps apart"
    assert measure(fused, [original], fused, step=1.0).fault == ""


def test_dequantized_values_are_judged_but_for_one_step() -> None:
    """A value that is one step off is right, and wrong if it is not on a step."""
    steps, original = _integers(10_000, 5)
    truth, given = original * np.float64(SCALE), (original * SCALE).astype(np.float32)
    fused = (steps * SCALE).astype(np.float32)
    step = float(SCALE)
    right = measure(fused, [given], truth, step=step)
    assert (right.fault, right.apart) == ("", 5)
    assert measure(fused, [given], truth).fault
    assert measure((fused * np.float32(1.01)).astype(np.float32), [given], truth, step=step).fault
    assert measure(
        np.where(np.arange(10_000) == 7, fused + 2 * SCALE, fused).astype(np.float32), [given], truth, step=step
    ).fault
    many = ((original + 1) * SCALE).astype(np.float32)
    assert measure(many, [given], truth, step=step).fault == ties_fault(10_000, 10_000)


FLOAT8 = """g (float[N,32] x) => (float[N,32] d, float[N,32] e) <float s = {0.05}, float8e4m3fn z = {0}> {
  q = QuantizeLinear (x, s, z)
  d = DequantizeLinear (q, s, z)
  e = Exp (d)
}"""


def test_dequantized_float8_has_steps_of_its_own() -> None:
    assert float8_outputs(parse(FLOAT8, 21)) == {"d": float(SCALE)}
    assert steps_of_outputs(parse(FLOAT8, 21)) == {}


def test_float8_numbers_may_be_the_next_one() -> None:
    """One in a thousand; not the one behind that, nor what is no such number times the scale."""
    every = np.tile(np.arange(1, 0x7E, dtype=np.uint8), 80).view(ml_dtypes.float8_e4m3fn)
    following = (every.view(np.uint8) + 1).view(ml_dtypes.float8_e4m3fn)
    scale = float(SCALE)
    truth = every.astype(np.float64) * scale
    given, after = (x.astype(np.float32) * SCALE for x in (every, following))
    fused = given.copy()
    fused[::1001] = after[::1001]
    right = measure(fused, [given], truth, float8=scale)
    assert (right.fault, right.apart) == ("", 10)
    assert measure(fused, [given], truth).fault
    fused[::501] = after[::501]
    assert measure(fused, [given], truth, float8=scale).fault == ties_fault(29, 10_000)
    skipped = given.copy()
    skipped[7] = given[9]
    assert measure(skipped, [given], truth, float8=scale).fault
    assert measure((given * np.float32(1.02)).astype(np.float32), [given], truth, float8=scale).fault
