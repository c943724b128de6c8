"""Plot for `bench --plot`: latency by shape, and the roofline, in one picture. Uses matplotlib, an extra."""

import importlib
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfuse.files import io
from onnxfuse.measure.benchmark.report import BenchmarkReport, ReportBlock
from onnxfuse.support.errors import DeviceError, UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

KINDS = (".png", ".svg", ".pdf")
COLORS = {"original": "#5b6b7b", "fused": "#1a7f37", "compiled": "#8250df"}
"""Of models, here and in the chart of the front page; the roofline has the last one."""
TERA = 1e12
STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)), (0, (1, 3)))


def check(path: Path) -> None:
    """Raise UsageError for an unsupported file type, DeviceError without matplotlib."""
    if path.suffix not in KINDS:
        raise UsageError(f"--plot {path}: not one of {', '.join(KINDS)}", "Name the file plot.png or plot.svg.")
    try:
        importlib.import_module("matplotlib")
    except ImportError as error:
        raise DeviceError(f"--plot: matplotlib is not installed ({error})", "pip install 'onnxfuse[plot]'") from None


def draw(report: BenchmarkReport, path: Path) -> None:
    """Write the picture to `path`, whose suffix determines the file type."""
    figure_of: Any = importlib.import_module("matplotlib.figure").Figure
    roofed = report.ceilings is not None and any(b.work for b in report.blocks)
    figure = figure_of(figsize=(14 if roofed else 7, 5), layout="constrained")
    axes = figure.subplots(1, 2 if roofed else 1, squeeze=False)[0]
    _latency(axes[0], report)
    if roofed:
        _roofline(axes[1], report)
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"{report.summary}\n{report.environment.get('device', '')}", fontsize=10, x=0.01, ha="left")
    picture = BytesIO()
    figure.savefig(picture, format=path.suffix.removeprefix("."), dpi=150)
    io.write_bytes(path, picture.getvalue())


def axis_of(blocks: Sequence[ReportBlock]) -> tuple[str, list[float]] | None:
    """Return the only dimension in which the shapes differ, and its sizes; None if there is no such dimension."""
    names = [n for n in blocks[0].dimensions if len({b.dimensions[n] for b in blocks}) > 1]
    return (names[0], [float(b.dimensions[names[0]]) for b in blocks]) if len(names) == 1 else None


def _latency(axes: "Axes", report: BenchmarkReport) -> None:
    """Draw a line per model and setting, over the varying dimension, else over the shapes in order."""
    axis = axis_of(report.blocks)
    positions = list(range(len(report.blocks))) if axis is None else axis[1]
    rows: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for at, block in zip(positions, report.blocks, strict=True):
        for row in block.rows:
            rows.setdefault((row.model, row.setting), []).append((at, row.timing.p50))
    settings = list(dict.fromkeys(setting for _, setting in rows))
    for (model, setting), points in rows.items():
        axes.plot(
            *zip(*points, strict=True),
            marker="o",
            color=COLORS[model],
            linestyle=STYLES[settings.index(setting) % len(STYLES)],
            label=f"{model}: {setting}",
        )
    axes.set_yscale("log")
    _plain_numbers(axes.yaxis)
    axes.set_ylabel("microseconds per run, median")
    if axis is None:
        axes.set_xticks(positions, [b.name for b in report.blocks])
    else:
        axes.set_xscale("log", base=2)
        axes.set_xticks(positions, [f"{p:g}" for p in positions])
        axes.set_xlabel(axis[0])
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _roofline(axes: "Axes", report: BenchmarkReport) -> None:
    """Draw the device's attainable rate by intensity, and each model at its best setting."""
    ceilings = report.ceilings
    assert ceilings is not None
    spots = [
        (model, block.name, traffic.flops / traffic.bytes, traffic.flops / block.best(model).timing.p50 * 1e6 / TERA)
        for block in report.blocks
        for model, traffic in block.work.items()
        if traffic.bytes and traffic.flops
    ]
    memory = ceilings.bytes_per_second / TERA
    peaks = {element: peak / TERA for element, peak in ceilings.flops_per_second.items()}
    knees = [peak / memory for peak in peaks.values()] or [1.0]
    low = min([x for *_, x, _ in spots] + knees) / 4
    high = max([x for *_, x, _ in spots] + knees) * 4
    for style, (element, peak) in zip(STYLES, peaks.items(), strict=False):
        xs, ys = [low, peak / memory, high], [low * memory, peak, peak]
        axes.plot(xs, ys, color=COLORS["compiled"], linestyle=style, label=f"{element}: {peak:.3g} TFLOP/s")
    if not peaks:
        axes.plot([low, high], [low * memory, high * memory], color=COLORS["compiled"])
    upper = {name: max(rate for _, other, _, rate in spots if other == name) for _, name, _, _ in spots}
    for model, name, intensity, rate in spots:
        axes.scatter(intensity, rate, color=COLORS[model], zorder=3)
        label_offset = (5, 4) if rate == upper[name] else (5, -9)  # apart, where the two points are close
        axes.annotate(f"{model} {name}", (intensity, rate), textcoords="offset points", xytext=label_offset, fontsize=7)
    axes.set_xscale("log")
    axes.set_yscale("log")
    _plain_numbers(axes.xaxis)
    _plain_numbers(axes.yaxis)
    axes.set_xlabel(f"FLOP per byte; memory {memory:.3g} TB/s")
    axes.set_ylabel("TFLOP/s")
    axes.grid(alpha=0.3)
    if peaks:
        axes.legend(fontsize=8, loc="lower right")


def _plain_numbers(axis: "Axis") -> None:
    """Label a logarithmic axis at 1, 2 and 5 of each decade, with plain decimal numbers."""
    ticker: Any = importlib.import_module("matplotlib.ticker")
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(ticker.NullLocator())
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:,.12g}"))
