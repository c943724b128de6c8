"""Drawn errors are those of float32 sums in a random order."""

import math

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfuse.verification.reference.float64_reference import as_reordered, reference_for
from onnxfuse.verification.reference.reference import OutOfTime
from onnxfuse.verification.reference.reordered import LANES

COLUMNS = 400


def model(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    made = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')
    made.graph.initializer.extend(numpy_helper.from_array(w, name) for name, w in weights.items())
    return made


def added(terms: np.ndarray) -> np.ndarray:
    """Return the sums over the first axis, term by term in float32."""
    total = np.zeros(terms.shape[1:], np.float32)
    for term in terms:
        total = (total + term).astype(np.float32)
    return total.astype(np.float64)


def added_side_by_side(terms: np.ndarray) -> np.ndarray:
    """Return the sums over the first axis in float32: of as many lanes as products have, and of pairs of these."""
    sums = added(terms.reshape(-1, LANES, *terms.shape[1:])).astype(np.float32)
    while len(sums) > 1:
        sums = sums[::2] + sums[1::2]
    return sums[0].astype(np.float64)


@pytest.mark.parametrize("count", [64, 1024])
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("operator", ["MatMul", "Gemm", "Conv", "ReduceMean", "ReduceSum", "GlobalAveragePool"])
def test_errors_are_as_large_as_those_of_sums_in_any_order(operator: str, count: int, *, positive: bool) -> None:
    """Of terms of one sign, and of both; the oracle adds them one by one, those of products side by side."""
    rng = np.random.default_rng(count)
    terms = rng.standard_normal((count, COLUMNS)).astype(np.float32)
    terms = (np.abs(terms) if positive else terms) * np.exp2(rng.random(COLUMNS, np.float32))  # sums of all mantissas
    share = 1.0
    if operator in ("MatMul", "Gemm"):
        made = model(f"g (float[1, {count}] x) => (float[1, {COLUMNS}] y) {{ y = {operator}(x, w) }}", w=terms)
        x: np.ndarray = np.ones((1, count), np.float32)
    elif operator == "Conv":
        weight = terms.T.reshape(COLUMNS, count // 4, 2, 2)
        made = model(f"g (float[1, {count // 4}, 2, 2] x) => (float[n, m, h, w] y) {{ y = Conv(x, w) }}", w=weight)
        x = np.ones((1, count // 4, 2, 2), np.float32)
    else:
        axes = "" if operator == "GlobalAveragePool" else ", axes"
        text = f"g (float[1, {COLUMNS}, {count // 8}, 8] x) => (float[n, m, h, w] y) {{ y = {operator}(x{axes}) }}"
        made = model(text, axes=np.array([2, 3]))
        x = terms.T.reshape(1, COLUMNS, count // 8, 8)
        share = 1.0 if operator == "ReduceSum" else 1 / count
    true = reference_for(made, "float64", [{}]).evaluate({"x": x})["y"].ravel()
    draw = as_reordered(made)
    drawn = [draw({"x": x}, seed, math.inf)["y"].ravel() - true for seed in range(4)]
    oracle = added_side_by_side if operator in ("MatMul", "Gemm", "Conv") else added
    real = [share * oracle(terms[rng.permutation(count)].astype(np.float64)) - true for _ in range(4)]
    least, most = (0.85, 1.15) if oracle is added else (0.85, 1.25)  # lanes are alike, and so are their roundings
    assert least < np.std(drawn) / np.std(real) < most
    assert abs(np.mean(drawn)) < 4 * np.std(drawn) / math.sqrt(4 * COLUMNS)


def test_results_are_float32_numbers_and_what_is_moved_stays() -> None:
    made = model("g (float[n, 8] x) => (float[8, n] y, float[n, 8] z) { y = Transpose(x)  z = Sigmoid(x) }")
    x = np.random.default_rng(0).standard_normal((50, 8)).astype(np.float32)
    draw = as_reordered(made)
    first, again, other = (draw({"x": x}, seed, math.inf) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first["y"], x.T)
    np.testing.assert_array_equal(first["z"], first["z"].astype(np.float32))
    np.testing.assert_array_equal(first["z"], again["z"])
    true = 1 / (1 + np.exp(-x.astype(np.float64)))
    assert set(np.unique(first["z"] != other["z"])) == {False, True}
    assert np.abs(first["z"] - true).max() <= np.spacing(np.float32(1))


def test_a_draw_ends_with_the_time() -> None:
    made = model("g (float[n] x) => (float[n] y) { y = Exp(x) }")
    with pytest.raises(OutOfTime):
        as_reordered(made)({"x": np.ones(3, np.float32)}, 0, 0.0)


def test_a_negative_factor_of_the_sums_has_an_error_too() -> None:
    """The variance is of the products' squares, whatever their sign."""
    rng = np.random.default_rng(3)
    weight = rng.standard_normal((64, 50)).astype(np.float32)
    x = rng.standard_normal((4, 64)).astype(np.float32)
    made = model("g (float[4, 64] x) => (float[4, 50] y) { y = Gemm <alpha = -2.0> (x, w) }", w=weight)
    off = as_reordered(made)({"x": x}, 0, math.inf)["y"] + 2 * x.astype(np.float64) @ weight
    assert np.isfinite(off).all()
    assert 1e-7 < np.abs(off).max() < 1e-4


def test_a_sum_of_nothing_has_no_error() -> None:
    made = model("g (float[n, 3] x) => (float[3] y) { y = ReduceSum <keepdims = 0> (x, axes) }", axes=np.array([0]))
    np.testing.assert_array_equal(
        as_reordered(made)({"x": np.zeros((0, 3), np.float32)}, 0, math.inf)["y"], np.zeros(3)
    )
