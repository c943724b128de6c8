"""A sample of the survey without torch: exports whose weights are drawn anew, through the stage that needs no GPU."""

import lzma
from pathlib import Path

import numpy as np
import onnx
import pytest

import models
from models.survey import checks
from models.survey.samples import FOLDER, SUFFIX, packed, unpacked

SAMPLES = sorted(FOLDER.glob(f"*{SUFFIX}"))

COMPILED = ("sm_80",)
"""Each kernel is planned for every architecture, and compiled for one."""


def stem(path: Path) -> str:
    return path.name.removesuffix(SUFFIX)


def test_there_are_twenty() -> None:
    """Convolutions, attention, recurrence, a cache, experts; both exporters; all three types."""
    assert len(SAMPLES) >= 20


@pytest.mark.parametrize("path", SAMPLES, ids=stem)
def test_a_sample_holds_every_promise(path: Path, tmp_path: Path) -> None:
    """Optimized, the same twice, undone, planned everywhere, opened on the stand-in libraries, equal on the CPU."""
    file = tmp_path / "model.onnx"
    onnx.save(unpacked(path.read_bytes()), file)
    *_, row = checks.examined(file, "cpu", (checks.NO_ARCH,))
    assert row["verdict"] == "right", row
    assert row["fused"], row


@pytest.mark.parametrize("path", SAMPLES, ids=stem)
def test_kernels_of_a_sample_compile(path: Path, tmp_path: Path) -> None:
    """At the shapes that they meet."""
    file = tmp_path / "model.onnx"
    onnx.save(unpacked(path.read_bytes()), file)
    (made := tmp_path / "made").mkdir()
    one = checks.Examined(file, made, COMPILED)
    for step in (checks.original_on_cpu, checks.optimized, checks.planned):
        step(one)
    assert one.facts["compiled"]


def test_weights_are_drawn_as_they_were() -> None:
    """The graph and small constants are kept; each weight has its type, shape, mean and deviation again, each time."""
    model = models.build("bert_base", layers=1, hidden=36, heads=3, intermediate=50, vocabulary=97, positions=40)
    data = packed(model)
    made = unpacked(data)
    assert len(data) < len(lzma.compress(model.SerializeToString())) / 4
    assert unpacked(data) == made
    assert [n.op_type for n in made.graph.node] == [n.op_type for n in model.graph.node]
    before, after = (
        {t.name: onnx.numpy_helper.to_array(t) for t in m.graph.initializer} for m in (model, made)
    )  # fmt: skip
    assert before.keys() == after.keys()
    for name, was in before.items():
        now = after[name]
        assert (now.dtype, now.shape) == (was.dtype, was.shape)
        if was.dtype.kind == "f" and was.size > 1000:
            np.testing.assert_allclose(now.mean(), was.mean(), atol=4 * was.std() / was.size**0.5)
            np.testing.assert_allclose(now.std(), was.std(), rtol=0.2)
        elif was.size <= 36:
            np.testing.assert_array_equal(now, was)
