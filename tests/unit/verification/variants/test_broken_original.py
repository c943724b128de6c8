"""An original that ONNX Runtime's default optimizations break is told, and judges as it is without them."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxfuse.reporting.annotations import annotations
from onnxfuse.reporting.checks import checks, notes
from onnxfuse.reporting.markdown import markdown
from onnxfuse.verification import verify
from onnxfuse.verification.localize import quantized
from onnxfuse.verification.report.quantized_parts import QuantizedParts
from onnxfuse.verification.run.sessions import ort_session
from onnxfuse.verification.variants.broken_original import Unoptimized
from tests.support.verification.small_models import text_model

CPU = ["CPUExecutionProvider"]


def pooled(
    between: str, opset: int, rank: int = 4, scale: float = 1.0, dtype: str = "float", positive: str = "e = Exp(x)"
) -> onnx.ModelProto:
    """Return negative values, padded with zeros, `between`, and the largest of each window: `p` is what is padded."""
    sizes, kernel = ", ".join(["6"] * (rank - 2)), ",".join(["3"] * (rank - 2))
    pads = [0, 0, *[1] * (rank - 2)] * 2
    return text_model(
        f"g ({dtype}[N, 3, {sizes}] x) => (float[N, 3, {', '.join('abcd'[: rank - 2])}] y) {{ "
        f"{positive}  n = Neg(e)  s = Mul(n, factor)  p = Pad(s, pads) {between}"
        f"  y = MaxPool <kernel_shape = [{kernel}], strides = [{','.join(['2'] * (rank - 2))}]> (q) }}",
        opset=opset, pads=np.array(pads), one=np.ones((1, 1, *[8] * (rank - 2)), np.float32),
        factor=np.array(scale, np.float32),
    )  # fmt: skip


folds_pads = pytest.mark.skipif(
    tuple(map(int, onnxruntime.__version__.split(".")[:2])) >= (1, 32), reason="ONNX Runtime 1.32 folds no such Pad"
)


@folds_pads
@pytest.mark.parametrize("opset", [11, 13, 18, 21])
@pytest.mark.parametrize("rank", [3, 4, 5])
def test_a_right_file_is_judged_beside_the_original_without_optimizations(opset: int, rank: int) -> None:
    """ONNX Runtime up to 1.31 folds the Pad into the MaxPool: off by the whole value; what computes it right is ok."""
    original, right = pooled("q = Identity(p)", opset, rank), pooled("q = Mul(p, one)", opset, rank)
    report = verify(original, right, providers=CPU)
    assert report.ok, report.summary
    (line,) = report.original_broken
    start = "original broken: ONNX Runtime's optimizer Pad_Fusion makes the original wrong in "
    off = r"y (by \d+% of its largest value|altogether)"
    assert re.match(start + rf"\d+ of \d+ cases, {off} \(case \w+ x=\d+x3", line)
    assert "; without it the original is right; " in line
    assert line.endswith("the fused model is judged by what the original gives without it")
    assert f"note: {line}" in " ".join(f"{report}".split())
    wrong = verify(original, pooled("q = Mul(p, one)", opset, rank, scale=1.01), providers=CPU)
    assert wrong.verdict == "mismatch", wrong.summary


@folds_pads
def test_a_file_that_is_as_wrong_as_the_original_says_so() -> None:
    """The same file, and one that follows it to a rounding: nothing was made worse, and everybody is told."""
    original, rounded = (pooled("q = Identity(p)", 18, scale=scale) for scale in (1 / 3, 3))
    next(n for n in rounded.graph.node if n.op_type == "Mul").op_type = "Div"
    for same in (original, rounded):
        report = verify(original, same, providers=CPU)
        assert report.ok, report.summary
        (line,) = report.original_broken
        assert re.search("y by [123]", line)
        assert line.endswith("the fused model gives the same as the original")
        facts = report.as_dict()
        assert line in notes("verify", facts)
        assert "original broken" in markdown("verify", facts)
        assert line in [c.text for c in checks("verify", facts)]
        assert not annotations(checks("verify", facts))
    off = verify(original, pooled("q = Identity(p)", 18, scale=1.01 / 3), providers=CPU)
    assert off.verdict == "mismatch", off.summary


def test_a_file_that_follows_an_original_of_integers() -> None:
    """No other run is near these inputs: the one without optimizations is the measure of how closely."""
    original, rounded = (
        pooled("q = Identity(p)", 18, scale=scale, dtype="int32", positive="c = Cast <to = 1> (x)  e = Sigmoid(c)")
        for scale in (1 / 3, 3)
    )
    next(n for n in rounded.graph.node if n.op_type == "Mul").op_type = "Div"
    report = verify(original, rounded, providers=CPU)
    assert report.ok, report.summary
    assert any(r.measure.follows for r in report.rows)


def test_what_parts_decide_is_shown_as_both_models_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table shows the fused model's error beside the original's under the same optimizations, and the report names
    both deviations."""
    original, fused = (pooled("q = Identity(p)", 18, scale=scale) for scale in (1 / 3, 1.01 / 3))
    report = verify(original, fused, providers=CPU)
    assert report.verdict == "mismatch"
    parts = QuantizedParts(parts=2, cases=(0,), left_out=(), values=0, apart=0, faults=(), undecided={})
    monkeypatch.setattr(quantized, "rounds_inside", lambda _: True)
    monkeypatch.setattr(quantized, "_examined", lambda *_: parts)
    judged = quantized.judged_by_parts(original, fused, report)
    assert judged.ok
    for before, row in zip(report.rows, judged.rows, strict=True):
        assert before.measure.own < 1e-6 * before.measure.scale < row.measure.own
        assert row.measure.own == pytest.approx(row.measure.own_off * row.measure.scale)
        assert row.measure.error == pytest.approx(row.measure.own, rel=0.02)
        assert row.measure.difference.max_abs < 0.02 * row.measure.scale * row.measure.own_off
    furthest = max(judged.rows, key=lambda r: r.measure.difference.max_abs / r.measure.scale)
    assert judged.outputs == (furthest,)
    (line,) = judged.original_broken
    assert line.endswith("the fused model is off as well, and judged by its parts")
    (cells,) = (r.split() for r in f"{judged}".splitlines() if r.startswith("y "))
    assert (cells[2:6], cells[-3:]) == (["-", "by", "parts", "-"], ["ok", "by", "parts"])
    assert f"in 1 of {len(report.cases)} cases" in " ".join(f"{judged}".split())
    parts = replace(parts, faults=("y: wrong",))
    assert quantized.judged_by_parts(original, fused, report).rows == report.rows


SATURATES = (
    "g (float[batch, 64] x) => (float[batch, 8] y) { q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)"
    "  e = DequantizeLinear(w, t, signed)  p = MatMul(d, e)  r = QuantizeLinear(p, u, z)"
    "  y = DequantizeLinear(r, u, z) }"
)


def test_a_processor_whose_products_saturate_is_named() -> None:
    """Without VNNI, two products of uint8 and int8 are added in 16 bits; with it, nothing is broken."""
    model = text_model(
        SATURATES, s=np.array(4 / 255, np.float32), z=np.array(128, np.uint8), w=np.full((64, 8), 127, np.int8),
        t=np.array(1 / 127, np.float32),
        signed=np.array(0, np.int8), u=np.array(256 / 255, np.float32),
    )  # fmt: skip
    report = verify(model, model, inputs={"x": np.full((2, 64), 1.9, np.float32)}, providers=CPU)
    flags = Path("/proc/cpuinfo").read_text(encoding="ascii") if Path("/proc/cpuinfo").exists() else ""
    if "avx2" not in flags:
        pytest.skip("no x86 processor with AVX2")
    assert bool(report.original_broken) == ("vnni" not in flags)
    for line in report.original_broken:
        assert "this processor has no VNNI instructions" in line


def test_saturation_is_the_cause_only_if_exact_products_are_right_in_every_case() -> None:
    """Else the report names none."""
    right, wrong = (
        ort_session(text_model(f"g (float[n] x) => (float[n] y) {{ y = {op}(x) }}"), CPU) for op in ("Identity", "Neg")
    )
    x = {"x": np.arange(1, 5, dtype=np.float32)}
    for precise, found in ([right, right], ("y",)), ([right, wrong], ()), ([wrong, right], ()):
        unoptimized = Unoptimized(lambda: right, iter(precise).__next__)
        for _ in precise:
            unoptimized._precise = None
            assert [*unoptimized.right(x, {"y": -x["x"]}, {"y": x["x"].astype(np.float64)})] == ["y"]
        assert unoptimized.saturating == found


def test_an_original_that_rounds_is_not_called_broken() -> None:
    """Far from the truth with optimizations and without: its own rounding, and no break."""
    cancels = "g (float[n, 64] x) => (float[n, 64] y) { s = Add(x, c)  y = Sub(s, c) }"
    plain = text_model(cancels, c=np.array(1e5, np.float32))
    assert not verify(plain, plain, providers=CPU).original_broken


def test_a_session_that_does_not_open_judges_nothing() -> None:
    """The original runs only with optimizations, or not at all without: what is known stays."""

    def never() -> object:
        raise onnx_error

    from onnxfuse.support.errors import ModelError

    onnx_error = ModelError("cannot be opened", "")
    x, far = np.ones(4, np.float32), {"y": np.zeros(4)}
    unoptimized = Unoptimized(never)
    assert unoptimized.right({"x": x}, {"y": x}, far) == {}
    assert unoptimized.right({"x": x}, {"y": x}, far) == {}


def test_the_optimizer_at_fault_is_searched() -> None:
    """Without any of the others the original stays wrong; where only several together are right none is named."""
    right, wrong = (
        ort_session(text_model(f"g (float[n] x) => (float[n] y) {{ y = {op}(x) }}"), CPU) for op in ("Identity", "Neg")
    )
    x = {"x": np.arange(1, 5, dtype=np.float32)}
    tried: list[list[str]] = []
    for faulty, found in (["ConvBNFusion"], "ConvBNFusion"), (["Pad_Fusion", "NhwcTransformer"], ""), (["other"], ""):

        def without(names: Sequence[str], faulty: list[str] = faulty) -> Any:
            tried.append([*names])
            return right if {*faulty} <= {*names} else wrong

        unoptimized = Unoptimized(lambda: right, None, without)
        for _ in range(2):
            assert unoptimized.right(x, {"y": -x["x"]}, {"y": x["x"]})
        assert unoptimized.optimizers == {"y": found}
    assert len(tried) < 20


def test_outputs_broken_by_one_cause_share_a_line() -> None:
    """Both are named, with the case in which the original is furthest off."""
    original = pooled("q = Identity(p)", 18)
    original.graph.node.add(op_type="Neg", input=["y"], output=["z"])
    original.graph.output.add().CopyFrom(original.graph.output[0])
    original.graph.output[1].name = "z"
    (line,) = verify(original, original, providers=CPU).original_broken
    off = r"(by \d+% of its largest value|altogether)"
    assert re.search(rf" y {off}, z {off} \(case ", line)
