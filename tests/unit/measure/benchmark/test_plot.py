"""The picture of a benchmark: latency of each setting, and each model under the device's roofline."""

import importlib
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from onnxfuse.measure.benchmark.ceilings import Ceilings
from onnxfuse.measure.benchmark.plot import axis_of, check, draw
from onnxfuse.measure.benchmark.report import BenchmarkReport, FusedOps, ReportBlock, WorkPerRun
from onnxfuse.measure.timing.settings import ModelName
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


@pytest.fixture
def figure(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    """Return what a report is drawn into: a record of all calls, in place of a figure of matplotlib."""
    matplotlib, made = MagicMock(), MagicMock()
    matplotlib.Figure.return_value = made
    made.subplots.side_effect = lambda rows, columns, **_: [[made.left, made.right][:columns]] * rows
    made.savefig.side_effect = lambda file, **_: file.write(b"picture")
    monkeypatch.setattr(importlib, "import_module", lambda name: matplotlib)
    return made


def curves(axes: MagicMock) -> dict[str, tuple[list[float], list[float]]]:
    """Return the points of each line by its label."""
    return {c.kwargs["label"]: (list(c.args[0]), list(c.args[1])) for c in axes.plot.call_args_list}


def report(*blocks: ReportBlock, ceilings: Ceilings | None = None) -> BenchmarkReport:
    """Return a benchmark of these results."""
    ops = FusedOps(0, 0, 0, None, ())
    return BenchmarkReport("CUDA", blocks, (), {}, ops, {"device": "H200"}, 1, 1, 0.0, ceilings=ceilings)


def test_each_setting_is_a_line_over_the_dimension(figure: MagicMock, tmp_path: Path) -> None:
    """A color for each model, a style for each setting; without ceilings or counted work there is no roofline."""
    draw(report(block(batch=1), block(batch=4)), tmp_path / "p.svg")
    assert (tmp_path / "p.svg").read_bytes() == b"picture"
    assert curves(figure.left) == {
        "original: default": ([1, 4], [400, 400]), "original: CUDA graph": ([1, 4], [300, 300]),
        "fused: default": ([1, 4], [200, 200]),
    }  # fmt: skip
    first, second, third = (c.kwargs for c in figure.left.plot.call_args_list)
    assert first["color"] == second["color"] != third["color"]
    assert first["linestyle"] == third["linestyle"] != second["linestyle"]
    figure.left.set_xlabel.assert_called_with("batch")
    figure.left.set_xscale.assert_called_with("log", base=2)
    figure.right.plot.assert_not_called()
    assert figure.savefig.call_args.kwargs["format"] == "svg"
    draw(report(block(batch=1), ceilings=Ceilings(1e12, {})), tmp_path / "p.svg")
    figure.right.plot.assert_not_called()


def test_shapes_of_several_dimensions_stand_beside_each_other(figure: MagicMock, tmp_path: Path) -> None:
    """By their names."""
    blocks = (block(batch=1, words=8), block(batch=4, words=16))
    draw(report(*blocks), tmp_path / "p.png")
    figure.left.set_xticks.assert_called_with([0, 1], [b.name for b in blocks])
    figure.left.set_xscale.assert_not_called()
    assert curves(figure.left)["fused: default"] == ([0, 1], [200, 200])


def test_each_model_is_a_point_under_the_roofline(figure: MagicMock, tmp_path: Path) -> None:
    """At its best setting; a peak for each element type, from the rate of memory on."""
    work: dict[ModelName, WorkPerRun] = {"original": WorkPerRun(1000, 4000, 1.0), "fused": WorkPerRun(500, 4000, 1.0)}
    one = ReportBlock({"batch": 1}, {}, 1, ROWS, (), work)
    draw(report(one, ceilings=Ceilings(2e12, {"float16": 4e14, "float32": 5e13})), tmp_path / "p.svg")
    assert curves(figure.right) == {
        "float16: 400 TFLOP/s": ([1, 200, 800], [2, 400, 400]), "float32: 50 TFLOP/s": ([1, 25, 800], [2, 50, 50]),
    }  # fmt: skip
    points = {c.args[0]: (a.args[0], a.args[1]) for c, a in zip(
        figure.right.annotate.call_args_list, figure.right.scatter.call_args_list, strict=True
    )}  # fmt: skip
    assert points == {
        "original batch=1": (4.0, pytest.approx(4000 / 300e-6 / 1e12)),
        "fused batch=1": (8.0, pytest.approx(4000 / 200e-6 / 1e12)),
    }
    figure.right.set_xlabel.assert_called_with("FLOP per byte; memory 2 TB/s")
    figure.right.legend.assert_called_once()


@pytest.mark.parametrize(("microseconds", "above"), [(200, "fused"), (350, "original")])
def test_of_two_points_the_upper_one_is_named_above_itself(
    figure: MagicMock, tmp_path: Path, microseconds: int, above: str
) -> None:
    """And the other one below: close to each other their names do not overlap."""
    work: dict[ModelName, WorkPerRun] = {"original": WorkPerRun(1000, 4000, 1.0), "fused": WorkPerRun(500, 4000, 1.0)}
    rows = (row("original", "default", 300), row("fused", "default", microseconds))
    draw(report(ReportBlock({"batch": 1}, {}, 1, rows, (), work), ceilings=Ceilings(2e12, {})), tmp_path / "p.svg")
    offsets = {c.args[0].split()[0]: c.kwargs["xytext"][1] for c in figure.right.annotate.call_args_list}
    assert {model for model, offset in offsets.items() if offset > 0} == {above}
    assert len(offsets) == 2


def test_without_peaks_memory_is_the_roof(figure: MagicMock, tmp_path: Path) -> None:
    """And there is no legend; what moves or computes nothing is no point."""
    work: dict[ModelName, WorkPerRun] = {"original": WorkPerRun(1000, 0, 1.0), "fused": WorkPerRun(0, 4000, 1.0)}
    one = ReportBlock({"batch": 1}, {}, 1, ROWS, (), work)
    draw(report(one, ceilings=Ceilings(2e12, {})), tmp_path / "p.svg")
    (line,) = figure.right.plot.call_args_list
    assert line.args == ([0.25, 4.0], [0.5, 8.0])
    figure.right.scatter.assert_not_called()
    figure.right.legend.assert_not_called()


def test_what_cannot_be_drawn_is_said_before_anything_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A type of file that is none, and a machine without matplotlib."""
    with pytest.raises(UsageError, match=r"--plot p.gif: not one of .*\.svg"):
        check(Path("p.gif"))

    def missing(name: str) -> None:
        raise ImportError(f"No module named '{name}'")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(DeviceError, match="matplotlib is not installed"):
        check(Path("p.svg"))
