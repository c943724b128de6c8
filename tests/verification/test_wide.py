"""What a half type hides shows in float32: a small fault beside the rounding of the values, and no sound file."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfuse.rewrite import pipeline
from onnxfuse.verification import verify
from onnxfuse.verification.wide import with_moved_weights
from tests.verification import scaled
from tests.verification.scaled import CPU, NETS
from tests.verification.small_models import model, text_model

SCORES = next(net for net in NETS if net.name.startswith("depthwise"))


def test_a_bias_that_moves_the_scores_by_two_roundings_is_seen() -> None:
    """Five scores a row, of which the original itself is wrong by as much; the file as it is passes."""
    plain, fused = SCORES.model(17, "float16"), SCORES.model(17, "float16")
    pipeline.run(fused)
    sound, wrong = (verify(plain, m, providers=CPU) for m in (fused, scaled.times(fused, "d.bias", 1.01)))
    assert (sound.ok, sound.wide) == (True, "compared"), sound.summary
    assert not wrong.ok
    assert all(row.verdict == "ok" for row in wrong.outputs)
    assert "float32, too" in wrong.problems[0]


def test_float32_is_not_compared_twice() -> None:
    """There nothing is hidden."""
    plain = SCORES.model(17, "float32")
    report = verify(plain, plain, providers=CPU)
    assert (report.ok, report.wide) == (True, "")


@pytest.mark.parametrize("factor", [1.0, 1 + 2.0**-12])
def test_a_constant_that_is_rounded_once_is_no_fault(factor: float) -> None:
    """A rule may know 1 / 1.4142 where the model says 0.7071: a rounding of the one is the other."""
    half = np.array(0.7071, np.float16)
    head = "g (float16[n, 32] x) => (float16[n, 32] y)"
    plain = text_model(f"{head} {{ s = Mul(x, k)  y = Erf(s) }}", k=half)
    wide = "f = Cast <to = 1> (x)  s = Mul(f, k)  e = Erf(s)  y = Cast <to = 10> (e)"
    known = text_model(f"{head} {{ {wide} }}", k=(half * np.float64(factor)).astype(np.float32))
    report = verify(plain, known, providers=CPU)
    assert (report.ok, report.wide) == (True, "compared"), report.problems


def test_what_is_meant_to_be_a_number_stays_it() -> None:
    """The 2 of a square, a mask's infinity; the others move by up to half a rounding step, and no further."""
    values = np.array([2.0, -65504.0, -np.inf, 0.0, 0.3, -7.7], np.float16)
    plain = model("m = MatMul(x, w)  y = Add(m, b)", "float16")
    plain.graph.initializer.append(numpy_helper.from_array(values, "k"))
    moved = {t.name: numpy_helper.to_array(t) for t in with_moved_weights(plain, 0).graph.initializer}
    assert {a.dtype for a in moved.values()} == {np.dtype(np.float32)}
    assert np.array_equal(moved["k"][:4], values[:4].astype(np.float32))
    assert np.array_equal(moved["k"].astype(np.float16), values)
    assert (moved["k"][4:] != values[4:].astype(np.float32)).all()


def test_a_threshold_that_one_number_crosses_is_no_fault() -> None:
    """What one flip makes of an output is no weight's doing: it shows in few cases."""
    rng = np.random.default_rng(0)
    weight = (rng.standard_normal((32, 1)) / 4).astype(np.float16)

    def flipping(at: float) -> onnx.ModelProto:
        body = "m = MatMul(x, w)  o = Greater(m, k)  f = Cast <to = 10> (o)  y = Mul(f, s)"
        head = "g (float16[n, 32] x) => (float16[n, a] y)"
        constants = {"k": np.float16(at), "s": np.float16(10)}
        return text_model(f"{head} {{ {body} }}", w=weight, **{n: np.array(v) for n, v in constants.items()})

    report = verify(flipping(0.5), flipping(float(np.nextafter(np.float16(0.5), np.float16(1)))), providers=CPU)
    assert not any("float32, too" in p for p in report.problems)
