"""ONNX rounds to a half type behind every operator: a runtime that rounds less makes no fault of another model."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from onnxfuse.verification import verify
from onnxfuse.verification.compare.compare import compare
from onnxfuse.verification.compare.judging import Judging
from onnxfuse.verification.reference.float64_reference import as_half
from tests.support.verification import mutants

CPU = ["CPUExecutionProvider"]
CHANNELS = 16


def normalized(text: str, factor: float = 1.0, head: str = "float16[n, 16, 9, 9]") -> onnx.ModelProto:
    """Return Sigmoid of a normalized x in float16; `factor` goes to the scale."""
    rng = np.random.default_rng(0)
    scale, shift, mean = (
        rng.uniform(0.5, 1.5, CHANNELS),
        rng.standard_normal(CHANNELS) / 4,
        6 * rng.standard_normal(CHANNELS),
    )
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g ({head} x) => ({head} y) {{ {text} y = Sigmoid(d) }}'
    )
    weights = {"s": scale * factor, "t": shift, "m": mean, "v": np.ones(CHANNELS)}
    weights["k"] = weights["s"]
    read = {v for n in model.graph.node for v in n.input}
    for name, value in weights.items():
        if name in read:
            array = value.reshape(-1, 1, 1) if text == THREE else value
            model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float16), name))
    return model


ONE = "d = BatchNormalization <epsilon = 0.0> (x, s, t, m, v)"
THREE = "c = Sub(x, m)  e = Mul(c, k)  d = Add(e, t)"


def test_the_roundings_of_the_standard_are_an_own_error() -> None:
    """On the CPU the original keeps float32 from its first node to its last, as if it rounded once."""
    plain, other = normalized(ONE), normalized(THREE)
    kept, rounded = (compare(plain, other, providers=CPU, judging=Judging(rounding=r)) for r in ("", "half"))
    assert rounded.ok
    assert rounded.outputs[0].measure.own_typical > 2 * kept.outputs[0].measure.own_typical


def test_what_rounds_no_more_is_not_judged_by_it() -> None:
    """The stricter budget stands wherever it holds."""
    report = verify(normalized(ONE), normalized(ONE), providers=CPU)
    assert (report.ok, report.half) == (True, False)


@pytest.mark.parametrize("text", [ONE, THREE])
def test_a_weight_that_is_wrong_by_one_percent_stays_a_fault(text: str) -> None:
    """With the strict budget in the report, so that its figures are the known ones."""
    report = verify(normalized(ONE), normalized(text, 1.01), providers=CPU)
    assert (report.ok, report.half) == (False, False)


def test_what_is_another_formula_is_not_excused_by_rounding(tmp_path: Path) -> None:
    """GELU by tanh is as far from GELU by erf as the roundings of its parts; float32 tells them apart."""
    mutant = next(m for m in mutants.MUTANTS if m.name == "GELU by tanh")
    wrong, _ = mutants.fused(mutant, tmp_path, "float16")
    assert not verify(mutants.original(mutant, "float16"), wrong, providers=CPU).ok


def test_every_value_is_rounded() -> None:
    """Bodies of If too; NumPy rounds each operation of a half type, and float32 between two of them is wide enough."""
    branch = "z = Mul(x, three)  h = Add(z, tenth)"
    text = f"c = Cast<to = {TensorProto.BOOL}>(flag) y0 = If (c) <then_branch = a () => (float16[n] h) {{ {branch} }}, "
    text += f"else_branch = b () => (float16[n] h) {{ {branch} }}>  y = Sub(y0, x)"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float16[n] x, int64 flag) => (float16[n] y) {{ {text} }}'
    )
    three, tenth = np.array([3], np.float16), np.array([0.1], np.float16)
    for name, value in (("three", three), ("tenth", tenth)):
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    x = np.random.default_rng(0).standard_normal(200).astype(np.float16)
    got = as_half(model)({"x": x, "flag": np.array(1)})["y"]
    assert got.dtype == np.float32
    assert np.array_equal(got.astype(np.float16), (x * three + tenth) - x)
    assert np.array_equal(got, got.astype(np.float16))
