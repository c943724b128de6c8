"""Either step is right where the rounding of half precision reaches the middle between them."""

import numpy as np
import pytest

from onnxfuse.support.errors import UsageError
from onnxfuse.verification import verify
from onnxfuse.verification.reference.float64_reference import as_half, in_float32
from onnxfuse.verification.reference.promoted import rounded
from onnxfuse.verification.variants.half_ties import RUNS, within_half_errors
from tests.support.small import parse

QUANTIZED = """g (int8[N,64] x) => (int8[N,64] y)
<float16 s = {10430}, float16 c = {14789}, float16 b = {12091}, float16 t = {9313}, int8 z = {3}> {
  f = DequantizeLinear (x, s, z)
  m = Mul (f, c)
  a = Add (m, b)
  w = Mul (a, a)
  r = Sub (w, b)
  y = QuantizeLinear (r, t, z)
}"""
CPU = ["CPUExecutionProvider"]


@pytest.mark.parametrize("opset", [21, 23])
def test_a_model_that_rounds_as_its_nodes_do_is_right(opset: int) -> None:
    """ONNX Runtime's CPU provider keeps float32 between the nodes: more than one in a thousand integers differ."""
    model = parse(QUANTIZED, opset)
    report = verify(model, rounded(model), providers=CPU)
    assert (report.ok, report.half) == (True, True)
    ties = sum(row.measure.ties for row in report.rows)
    assert ties > sum(row.measure.elements for row in report.rows) / 1000
    assert f"{ties} of " in str(report)
    assert "ties of rounding" in str(report)


@pytest.mark.parametrize("factor", ["14804", "14774"])
def test_a_factor_that_is_wrong_by_one_percent_is_a_fault(factor: str) -> None:
    model = parse(QUANTIZED, 21)
    wrong = parse(QUANTIZED.replace("14789", factor), 21)
    assert not verify(model, rounded(wrong), providers=CPU).ok
    assert not verify(model, wrong, providers=CPU).ok


ROUNDED = "g (float16[N] x, float16[N] w) => (float16[N] y) { y = Mul (x, w) }"


def test_values_move_within_their_rounding_errors() -> None:
    """A third is rounded, a third keeps float32, a third is as far on the other side; numbers of the type stay."""
    model = parse(ROUNDED, 22)
    rng = np.random.default_rng(0)
    x, w = (rng.uniform(1, 2, 3000).astype(np.float16) for _ in range(2))
    x[:3], w[:3] = [1.5, 60000, np.inf], [1.5, 60000, 1]
    feeds = {"x": x, "w": w}
    exact, near = (run(feeds)["y"].astype(np.float64) for run in (in_float32(model), as_half(model)))
    moved = [as_half(model, seed=seed)(feeds)["y"].astype(np.float64) for seed in range(4)]
    assert near[1] == np.inf
    error = exact[3:] - near[3:]
    for one in moved:
        assert (one[:3] == near[:3]).all()
        by = np.rint((one[3:] - near[3:]) / np.where(error == 0, 1, error))
        counts = [(by == n).sum() for n in (0, 1, 2)]
        assert sum(counts) == 2997
        assert min(counts[1:]) > 800
    assert not np.array_equal(moved[0], moved[1])


def test_what_does_not_quantize_has_no_ties() -> None:
    """Its floats are judged by their own error."""
    assert list(within_half_errors(parse(ROUNDED, 22))) == []
    assert len(list(within_half_errors(parse(QUANTIZED, 21)))) == RUNS


def test_operator_sets_before_random_numbers_are_refused() -> None:
    with pytest.raises(UsageError, match="operator set 10"):
        rounded(parse(ROUNDED, 10), seed=0)
