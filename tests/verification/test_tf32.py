"""Where CUDA sessions may round products to TF32, float32 outputs are held to that, and to no less."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfuse.verification import sessions, verify
from onnxfuse.verification.reference import to_tf32

CPU = ["CPUExecutionProvider"]
WEIGHT = np.random.default_rng(0).standard_normal((64, 48)) / 8


def product(weight: np.ndarray, rounded: str = "", after: str = "y = Tanh(m)") -> onnx.ModelProto:  # type: ignore[type-arg]
    """Return Tanh(x @ w); `rounded` names the value that the product reads in place of x."""
    # Veltkamp's split: what is left of x is its upper 24 - 13 bits.
    split = "c = Mul(x, k)  d = Sub(c, x)  high = Sub(c, d)"
    text = f"g (float[n, 64] x) => (float[n, 48] y) {{ {split} m = MatMul({rounded or 'x'}, w) {after} }}"
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 20]> {text}')
    for name, array in (("w", weight), ("k", np.array(2.0**13 + 1))):
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    return model


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU's provider stands in for CUDA's."""
    monkeypatch.setattr(sessions, "CUDA", CPU[0])
    monkeypatch.setattr(sessions, "chosen_providers", list)


def test_eleven_bits_are_kept() -> None:
    """Half a unit in the last of them at most; what has fewer stays as it is."""
    x = np.random.default_rng(1).standard_normal(10_000)
    assert 2.0**-12 < np.max(np.abs(to_tf32(x) / x - 1)) <= 2.0**-11
    kept = np.array([0.0, -1.0, 1 + 2.0**-10, 65504.0, np.inf])
    assert np.array_equal(to_tf32(kept), kept)
    assert to_tf32(np.array(1 + 2.0**-12)) == 1.0


@pytest.mark.usefixtures("cuda")
def test_a_product_of_rounded_factors_passes_where_the_session_may_round() -> None:
    """The report says so; the budget is what the rounding does to the original, within a factor of two."""
    report = verify(product(WEIGHT), product(to_tf32(WEIGHT), "high"), providers=CPU)
    assert (report.ok, report.tf32) == (True, True), report.summary
    assert all(0.1 < r.severity <= 1 for r in report.outputs)


def test_it_fails_where_the_session_may_not() -> None:
    """On the CPU float32 is float32."""
    report = verify(product(WEIGHT), product(to_tf32(WEIGHT), "high"), providers=CPU)
    assert (report.ok, report.tf32) == (False, False)
    assert report.outputs[0].severity > 10


@pytest.mark.usefixtures("cuda")
def test_what_is_right_without_rounding_is_not_judged_by_it() -> None:
    """The stricter budget stands wherever it holds."""
    report = verify(product(WEIGHT), product(WEIGHT), providers=CPU)
    assert (report.ok, report.tf32) == (True, False)


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize(
    "wrong",
    [product(WEIGHT * 1.01), product(WEIGHT, after="y = Erf(m)"), product(np.roll(WEIGHT, 1, axis=1), "high")],
    ids=["weight", "activation", "axis"],
)
def test_a_fault_is_a_fault_there_too(wrong: onnx.ModelProto) -> None:
    """With the strict budget in the report, so that its figures are the known ones."""
    report = verify(product(WEIGHT), wrong, providers=CPU)
    assert (report.ok, report.tf32) == (False, False)
