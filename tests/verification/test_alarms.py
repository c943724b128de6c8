"""No false alarm: the sample models, made smaller, pass with several seeds and with --guard; `alarms` is the whole."""

import onnx
import pytest

import models
from onnxfuse.rewrite import pipeline
from onnxfuse.rewrite.unfuse import unfuse
from onnxfuse.verification.guard import guard
from tests.verification.alarms import report_of

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
    """With several seeds; the others are run by `python -m tests.verification.alarms`."""
    report = report_of(name, dtype, range(3), "cpu", {})
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
