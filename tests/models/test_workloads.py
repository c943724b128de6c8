"""Models of other kinds by name: exported with an open batch, run as they are and fused."""

from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfuse
from bench.figures.parts import FLOATS, OTHERS
from bench.speed import write
from models import vision, workloads
from onnxfuse.support.errors import UsageError
from tests.models import small

MADE_BY_TORCH = ("bilstm", "dlrm")
"""Which need nothing but torch, and are small enough."""


def test_every_row_of_the_figures_has_a_model() -> None:
    """By its name here, or in a package."""
    for row in (*OTHERS.values(), *FLOATS.values()):
        name = row["name"]
        known = name.removeprefix(workloads.PREFIX) in workloads.WORKLOADS
        assert known if workloads.is_workload(name) else vision.is_vision(name), name
    assert all(name in workloads.WORKLOADS for name in workloads.NAMED)


@pytest.mark.parametrize("name", MADE_BY_TORCH)
def test_a_model_is_written_and_fuses(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed (extra `export`)")
    feeds = write(f"workload:{name}", "float32", 3, 1, tmp_path / "a.onnx")
    model = onnx.load(tmp_path / "a.onnx")
    assert {i.type.tensor_type.shape.dim[0].dim_param for i in model.graph.input} == {"batch"}
    assert all(values.shape[0] == 3 for values in feeds.values())
    expected = small.run(model, feeds)[0]
    np.testing.assert_allclose(small.run(onnxfuse.optimize(model), feeds)[0], expected, rtol=1e-3, atol=1e-4)


def test_an_unknown_name_is_told_with_those_that_are_known() -> None:
    pytest.importorskip("torch", reason="torch is not installed (extra `export`)")
    with pytest.raises(UsageError, match="workload:lstm: there is no such model"):
        workloads.make("workload:lstm", 1)
