"""Page sections for a profile: bytes, times and kernels, before and after."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from onnxfuse.model.display_names import plain_name
from onnxfuse.reporting.charts import Bar, bars
from onnxfuse.reporting.tables import table
from onnxfuse.support.plurals import agreeing, plural

Facts = Mapping[str, Any]
CHART = 12
"""Number of bars in a chart; the table below it has every row."""


def parts(profiled: Facts) -> Iterator[tuple[str, str]]:
    """Yield name and HTML of each section that has content."""
    yield "Device memory", _traffic(profiled)
    sides = {name: profiled[name] for name in ("before", "after") if profiled[name] is not None}
    if profiled["untimed"]:
        yield "Times", f"<p>not timed: {escape(profiled['untimed'])}</p>"
    elif profiled["provider"]:
        yield "Times", "".join(_times(name if len(sides) > 1 else "", side) for name, side in sides.items())
    for name, side in sides.items():
        if side["kernels"]:
            yield f"Kernels {name if len(sides) > 1 else ''}".strip(), _kernels(side)


def traffic_rows(profiled: Facts) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Return the titles and rows of the table of bytes by kind of node; a single model has no `before` column."""
    two = profiled["after"] is not None
    titles = ("count", "node", *(("in place of", "MB before", "MB after") if two else ("MB",)), "GFLOP")
    rows: list[tuple[object, ...]] = [
        (
            row["count"] or "",
            row["after"] or "nothing",
            *((row["before"], _mb(row["bytes_before"])) if two else ()),
            _mb(row["bytes_after"]),
            f"{row['flops'] / 1e9:.2f}" if row["flops"] else "",
        )
        for row in profiled["rows"]
    ]
    return titles, rows


def time_rows(side: Facts) -> list[tuple[object, ...]]:
    """Return time, share and bandwidth of each kind of node of a model, slowest first."""
    return [
        (kind["kind"], f"{kind['us']:.1f}", kind["count"], f"{kind['us'] / (side['us'] or 1):.0%}", _rate(kind))
        for kind in side["kinds"]
    ]


TIME_TITLES = ("node", "us", "count", "share", "GB/s")


def _traffic(profiled: Facts) -> str:
    rows = [row for row in profiled["rows"] if row["bytes_before"] or row["bytes_after"]]
    two = profiled["after"] is not None
    items = []
    for row in rows[:CHART]:
        label = row["after"] or f"nothing, in place of {row['before']}"
        if two:
            items.append(Bar(label, row["bytes_before"], f"{_mb(row['bytes_before'])} MB before"))
            items.append(Bar("", row["bytes_after"], f"{_mb(row['bytes_after'])} MB after", "good"))
        else:
            items.append(Bar(label, row["bytes_after"], f"{_mb(row['bytes_after'])} MB"))
    removed = profiled["removed"]
    intro = (
        f"<p>{removed['count']} of {plural(removed['of'], 'intermediate value')} no longer "
        f"{agreeing(removed['count'], 'exists', 'exist', of=removed['of'])}: {_mb(removed['bytes'])} MB.</p>"
    )
    explanation = (
        "<p>Each node's inputs once and outputs once, from shapes; views and what stays on the host are free.</p>"
    )
    return f"{intro if two else ''}{bars(items)}{explanation}{table(*traffic_rows(profiled))}"


def _times(name: str, side: Facts) -> str:
    kinds = side["kinds"][:CHART]
    chart = bars([Bar(k["kind"], k["us"], f"{k['us']:.1f} us", "good" if name == "after" else "") for k in kinds])
    title = f"{name}: {side['us'] or 0:.1f} us".removeprefix(": ")
    return f"<h3>{escape(title)}</h3>{chart}{table(TIME_TITLES, time_rows(side))}"


def _kernels(side: Facts) -> str:
    rows = [
        (plain_name(k["name"]), ", ".join(k["kinds"]), k["count"], f"{k['us']:.1f}", f"{k['share']:.0%}",
         f"{k['gap_us']:.1f}", "" if k["bytes"] is None else _mb(k["bytes"]), _rate(k))
        for k in side["kernels"]
    ]  # fmt: skip
    run = side["run"]
    intro = "" if run is None else (
        f"<p>{plural(run['launches'], 'launch')}; {run['span']:.1f} us from the first kernel to the last, "
        f"{run['busy']:.1f} us at work, {run['idle']:.1f} us in gaps</p>"
    )  # fmt: skip
    note = f"<p>{escape(side['note'])}</p>" if side["note"] else ""
    return table(("kernel", "launched by", "count", "us", "share", "gap us", "MB", "GB/s"), rows) + intro + note


def _rate(row: Facts) -> str:
    return "" if row["bytes_per_second"] is None else f"{row['bytes_per_second'] / 1e9:.0f}"


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f}" if size >= 1e5 else f"{size / 1e6:.3f}" if size else "0"
