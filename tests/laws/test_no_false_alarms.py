"""No false alarm: the sample models, made smaller, pass with several seeds and with --guard; `alarms` is the whole."""

import onnx
import pytest

import models
from onnxfuse.fusion.undo.unfuse import unfuse
from onnxfuse.passes import pipeline
from onnxfuse.verification.localize.guard import guard
from tests.support.verification.alarms import Row, crash_report, in_a_process, longest_unseen_first

CPU = ["CPUExecutionProvider"]
SMALL = {
    "mlp": {},
    "lenet5": {},
    "bert_base": {"layers": 2, "hidden": 48, "heads": 4, "vocabulary": 100},
    "vit_b_16": {"layers": 1, "image": 32, "hidden": 48, "heads": 4},
}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", ["mlp", "lenet5"])
def test_sample_models_pass(name: str, dtype: str) -> None:
    """With several seeds; the others are run by `python -m tests.support.verification.alarms`."""
    report = crash_report(name, dtype, range(3), "cpu", {})
    assert report.ok, report.summary


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", list(SMALL))
def test_guard_takes_nothing_back(name: str, dtype: str) -> None:
    """Every place that the rules changed in an encoder, a vision transformer and a CNN is right by itself."""

    def optimized(without: object) -> tuple[onnx.ModelProto, tuple[str, ...]]:
        model = models.build(name, dtype=dtype, **SMALL[name])
        return model, tuple(pipeline.run(model).by_rule())

    plain = models.build(name, dtype=dtype, **SMALL[name])
    got = guard(plain, optimized, unfuse, providers=CPU)
    assert got.undone == ()
    assert got.checked > 0


def test_what_has_no_verdict_runs_first_then_what_was_judged_longest_ago() -> None:
    """A window that ends too early costs other rows the next time; a row that crashed has no verdict."""
    judged = [Row(name, "float16", "cuda", "passes", judged=True, ok=True) for name in ("gpt2", "mlp", "lenet5")]
    seen = [*judged, Row("vit_b_16", "float16", "cuda", "ended with -9", judged=False, ok=False), judged[0]]
    order = longest_unseen_first([(n, "float16") for n in ("gpt2", "lenet5", "mlp", "vit_b_16", "resnet50")], seen)
    assert [name for name, _ in order] == ["vit_b_16", "resnet50", "mlp", "lenet5", "gpt2"]


def test_a_row_whose_process_dies_fails_with_its_last_words() -> None:
    """A crash is never a pass, and never ends the other rows."""
    row = in_a_process("mlp", "float16", 1, "cpu", ["hidden=none"])
    assert (row.judged, row.ok) == (False, False)
    assert "none" in row.verdict
