"""The picture of a benchmark: latency of each setting, and each model under the device's roofline."""

from pathlib import Path

import pytest

from onnxfuse.measure.benchmark import plot
from onnxfuse.measure.benchmark.ceilings import Ceilings
from onnxfuse.measure.benchmark.plot import axis_of, check, draw
from onnxfuse.measure.benchmark.report import BenchmarkReport, FusedOps, ReportBlock, WorkPerRun
from onnxfuse.support.errors import DeviceError, UsageError
from tests.unit.measure.benchmark.test_report import row

ROWS = (row("original", "default", 400), row("original", "CUDA graph", 300), row("fused", "default", 200))


def block(*rows: object, **dimensions: int) -> ReportBlock:
    """Return the results at these sizes."""
    return ReportBlock(dimensions, {}, 1, ROWS if not rows else (), ())


def test_a_plot_runs_along_the_one_dimension_that_varies() -> None:
    """Its sizes are the axis; where two vary, or none, the shapes stand beside each other."""
    assert axis_of([block(batch=1, words=8), block(batch=4, words=8)]) == ("batch", [1.0, 4.0])
    assert axis_of([block(batch=1, words=8), block(batch=4, words=16)]) is None
    assert axis_of([block(batch=1)]) is None


def drawn(report: BenchmarkReport, path: Path) -> str:
    """Return the text of a picture."""
    draw(report, path)
    return path.read_text()


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let SVG have texts as text."""
    matplotlib = pytest.importorskip("matplotlib")
    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")


@pytest.mark.usefixtures("texts")
def test_each_setting_is_a_line_and_each_model_a_point(tmp_path: Path) -> None:
    """Without ceilings or counted work there is no roofline; one dimension is a logarithmic axis."""
    blocks = (block(batch=1), block(batch=4))
    plain = BenchmarkReport(
        "CPUExecutionProvider", blocks, (), {}, FusedOps(0, 0, 0, None, ()), {"device": "H"}, 1, 1, 0.0
    )
    text = drawn(plain, tmp_path / "plain.svg")
    assert all(f"{one.model}: {one.setting}" in text for one in ROWS)
    assert "batch" in text
    assert "microseconds per run, median" in text
    assert "TFLOP/s" not in text
    work = {"original": WorkPerRun(1000, 4000, 1.0), "fused": WorkPerRun(500, 4000, 1.0)}
    counted = tuple(ReportBlock(b.dimensions, {}, 1, ROWS, (), work) for b in blocks)  # type: ignore[arg-type]
    ceilings = Ceilings(2e12, {"float16": 4e14, "float32": 5e13})
    roofed = BenchmarkReport(
        "CUDA", counted, (), {}, FusedOps(0, 0, 0, None, ()), {}, 1, 1, 0.0, ceilings=ceilings, peak=4e14
    )
    text = drawn(roofed, tmp_path / "roofed.svg")
    assert "float16: 400 TFLOP/s" in text
    assert "float32: 50 TFLOP/s" in text
    assert "memory 2 TB/s" in text
    assert all(f"{model} batch={size}" in text for model in work for size in (1, 4))
    bare = BenchmarkReport(
        "CUDA", counted, (), {}, FusedOps(0, 0, 0, None, ()), {}, 1, 1, 0.0, ceilings=Ceilings(2e12, {})
    )
    assert "memory 2 TB/s" in drawn(bare, tmp_path / "bare.svg")


@pytest.mark.usefixtures("texts")
def test_shapes_of_several_dimensions_stand_beside_each_other(tmp_path: Path) -> None:
    """By their names."""
    blocks = (block(batch=1, words=8), block(batch=4, words=16))
    report = BenchmarkReport("CPU", blocks, (), {}, FusedOps(0, 0, 0, None, ()), {}, 1, 1, 0.0)
    text = drawn(report, tmp_path / "beside.svg")
    assert all(b.name in text for b in blocks)


def test_what_cannot_be_drawn_is_said_before_anything_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A type of file that is none, and a machine without matplotlib."""
    with pytest.raises(UsageError, match=r"--plot p.gif: not one of .*\.svg"):
        check(Path("p.gif"))

    def missing(name: str) -> None:
        raise ImportError(f"No module named '{name}'")

    monkeypatch.setattr(plot.importlib, "import_module", missing)
    with pytest.raises(DeviceError, match="matplotlib is not installed"):
        check(Path("p.svg"))
