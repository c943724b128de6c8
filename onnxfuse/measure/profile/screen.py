"""Screen of a profile: counted traffic, measured times, kernels."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from onnxfuse.measure.profile.traffic import TrafficRow
from onnxfuse.model.display_names import plain_name
from onnxfuse.support.plurals import agreeing, plural
from onnxfuse.support.screen import Blocks, Line, Rows, plain_table
from onnxfuse.support.units import size_text

if TYPE_CHECKING:
    from onnxfuse.measure.profile.report import KindTime, ModelProfile, Profile


def screen(report: "Profile", top: int, *, nodes: bool) -> Blocks:
    """Yield the verdict, counted traffic, measured times, and the measurement conditions."""
    yield Line(f"[bold]{escape(report.summary)}[/]", fold=True)
    if report.portable:
        yield Line(f"[yellow]note:[/] {escape(report.portable)}", fold=True)
    if report.after is not None:
        removed = report.removed
        yield Line(
            f"{removed.count} of {plural(removed.of, 'intermediate value')} no longer "
            f"{agreeing(removed.count, 'exists', 'exist', of=removed.of)}: {size_text(removed.bytes)}, "
            "each written once and read at least once",
            fold=True,
        )
    yield Line()
    yield from _work(report, top, nodes=nodes)
    if report.untimed:
        from onnxfuse.measure.profile.cupti import HINT

        yield Line()
        yield Line(f"[bold yellow]not timed:[/] {escape(report.untimed)}: {escape(HINT)}")
    if report.provider:
        yield Line()
        yield from _times(report, top, nodes=nodes)
        for name, side in report.sides.items():
            if side.kernels is not None:
                yield Line()
                yield from _kernels(name if report.after is not None else "", side, top)
    yield from _legend(report)


def _work(report: "Profile", top: int, *, nodes: bool) -> Blocks:
    two = report.after is not None
    rows = report.node_rows if nodes else report.rows
    named = two and any(r.before for r in rows)
    sizes = ("MB before", "MB after", "saved") if two else ("MB",)
    table = _table("count", "node", *(["in place of"] if named else []), *sizes, "GFLOP", left=("node", "in place of"))
    before, after = report.before.work, (report.after or report.before).work
    total = TrafficRow(0, "total", "", before.bytes, after.bytes, after.flops)
    for row in (*rows[:top], total):
        saved = f"{row.saved / row.bytes_before:.0%}" if row.saved and row.bytes_before else ""
        table.add_row(
            str(row.count or ""),
            escape(row.after or "nothing"),
            *([escape(row.before)] if named else []),
            *(
                (_megabytes(row.bytes_before), _megabytes(row.bytes_after), saved)
                if two
                else (_megabytes(row.bytes_after),)
            ),
            f"{row.flops / 1e9:.2f}" if row.flops else "",
            style="bold" if row is total else None,
        )
    yield Rows(table, bars=[*(row.bytes_after for row in rows[:top]), 0])
    yield from _more(rows, top)


def _times(report: "Profile", top: int, *, nodes: bool) -> Blocks:
    """Yield the time of each kind of node, or of each node, before and after."""
    first = f"time {'on the device' if report.before.kernels is not None else 'of nodes'}"
    columns = ("us", "count", "share", "GB/s")
    sides = report.sides if report.after is not None else {"": report.before}
    table = _table(first, *(f"{name} us".strip() if c == "us" else c for name in sides for c in columns), left=(first,))
    by = {name: {k.kind: k for k in (side.each if nodes else side.kinds)} for name, side in sides.items()}
    kinds = list(dict.fromkeys(k for rows in by.values() for k, row in rows.items() if row.us))
    kinds.sort(key=lambda kind: -max(rows[kind].us for rows in by.values() if kind in rows))
    for kind in kinds[:top]:
        table.add_row(escape(kind), *(c for name, s in sides.items() for c in _kind_cells(by[name].get(kind), s)))
    totals = [c for s in sides.values() for c in (f"{s.us or 0:.1f}", str(sum(k.count for k in s.kinds)), "", "")]
    table.add_row("total", *totals, style="bold")
    yield Rows(table)
    yield from _more(kinds, top)


def _kind_cells(kind: "KindTime | None", side: "ModelProfile") -> tuple[str, ...]:
    if kind is None:
        return ("", "", "", "")
    rate = "" if kind.bandwidth is None else f"{kind.bandwidth / 1e9:.0f}"
    return (f"{kind.us:.1f}", str(kind.count), f"{kind.us / (side.us or 1):.0%}", rate)


def _kernels(name: str, side: "ModelProfile", top: int) -> Blocks:
    first = f"kernel {name}".strip()
    table = _table(first, "launched by", "count", "us", "share", "gap us", "MB", "GB/s", left=(first, "launched by"))
    table.columns[0].max_width = 44
    kernels = side.kernels or ()
    for row in kernels[:top]:
        rate = "" if row.bandwidth is None else f"{row.bandwidth / 1e9:.0f}"
        table.add_row(
            escape(_middle(plain_name(row.name), 44)), escape(", ".join(row.kinds)), str(row.count), f"{row.us:.1f}",
            f"{row.share:.0%}", f"{row.gap_us:.1f}", "" if row.bytes is None else _megabytes(row.bytes), rate,
        )  # fmt: skip
    yield Rows(table)
    yield from _more(kernels, top)
    if side.run is not None:
        run = side.run
        yield Line(
            f"{plural(run.launches, 'launch')}; {run.span:.1f} us from the first kernel to the "
            f"last, {run.busy:.1f} us at work, "
            f"{run.idle:.1f} us in gaps" + (f"; {run.unknown} of unknown nodes" if run.unknown else ""),
            fold=True,
        )
    if side.note:
        yield Line(escape(side.note), style="dim", fold=True)


def _more(rows: Sequence[object], top: int) -> Blocks:
    if len(rows) > top:
        yield Line(plural(len(rows) - top, "more row"), "dim", hint=f": --top {len(rows)}")


def _legend(report: "Profile") -> Blocks:
    if report.assumed:
        names = " ".join(f"{name}=1" for name in report.assumed)
        yield _fact(f"assumed {names}", f": choose other sizes with --shape {report.assumed[0]}=8")
    notes = dict.fromkeys(note for side in report.sides.values() for note in side.work.notes)
    for note in list(notes)[:5]:
        yield _fact(f"not counted: {note}")
    yield _fact(
        "bytes: each node's inputs once and outputs once, from shapes; views and what stays on the host are free"
    )
    if report.before.kernels is not None:
        yield _fact("gap: before these launches the device did nothing; MB: of nodes that launch this kernel alone")
    if report.provider:
        method = "kernels seen by CUPTI" if report.before.kernels is not None else "ONNX Runtime's profiler"
        yield _fact(
            f"times: medians of {plural(report.runs, 'run')}, {method}, at {report.setting}; {report.seconds:.1f} s"
        )
        yield _fact("; ".join(f"{name} {value}" for name, value in report.environment.items()))


def _fact(text: str, hint: str = "") -> Line:
    return Line(escape(text), "dim", fold=True, hint=escape(hint))


def _table(*columns: str, left: Collection[str]) -> Table:
    return plain_table(*columns, right={*columns} - {*left})


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f}" if size >= 1e5 else f"{size / 1e6:.3f}" if size else "0"


def _middle(text: str, width: int) -> str:
    """Shorten a long text in the middle, because both ends of a name matter."""
    return text if len(text) <= width else f"{text[: width // 2 - 1]}…{text[-width // 2 :]}"
