"""`onnxfuse bench`: time the fused model against the original at ONNX Runtime's best settings."""

from typing import TYPE_CHECKING, Unpack

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from onnxfuse.api.run.running import bench
from onnxfuse.cli.base.console import bar, output, print_json, print_table, printing
from onnxfuse.cli.base.report_files import Outputs
from onnxfuse.files.atomic_write import together
from onnxfuse.measure.profile.report import flops_text, size_text
from onnxfuse.options.commands import BenchCommand
from onnxfuse.options.functions import BenchRun
from onnxfuse.options.schema import part
from onnxfuse.support.errors import EXPECTATION_NOT_MET
from onnxfuse.support.plurals import plural

if TYPE_CHECKING:
    from onnxfuse.measure.benchmark import BenchmarkReport, FusedOps, ReportBlock

LEFT_OUT = {"refused": "refused", "crashed": "crashed", "hangs": "no answer"}
"""Text shown instead of times, by the kind of `Refused`."""

BENEATH = ("min", "p99", "p90", "items/s", "roofline", "launches", "memory", "95% of it")
"""Columns moved below a setting's row on a narrow terminal; its median and speed-up stay in it."""


def command(outputs: Outputs, **given: Unpack[BenchCommand]) -> int:
    """Run the command and print its result."""
    original, plot, min_speedup = given["original"], given["plot"], given["min_speedup"]
    with printing() as print_result, together():
        with bar("optimize" if given["fused"] is None else "load", still=True) as show_progress:
            timed = bench(original, given["fused"], progress=show_progress, **part(BenchRun, given))
        report = timed.report
        missed = () if min_speedup is None else report.missed(min_speedup)
        not_met = [f"--min-speedup {min_speedup:g}: {b.measured}" for b in missed]
        facts = {"ok": not missed, **report.as_dict(), "min_speedup": min_speedup, "not_met": not_met}
        facts["plot"] = None if plot is None else str(plot)
        outputs.write("bench", facts, {"before": original, "after": timed.fused})

        def tell() -> None:
            if given["as_json"]:
                print_json("bench", facts)
                return
            show(report, not_met, output())
            if plot is not None:
                output().print(f"plot: {escape(str(plot))}", style="dim", soft_wrap=True)

        print_result(tell)
    return EXPECTATION_NOT_MET if missed else 0


def show(report: "BenchmarkReport", not_met: list[str], console: Console) -> None:
    """Print the verdict, a block of rows per set of shapes, and the measurement conditions."""
    color = "" if not any(b.differs for b in report.blocks) else " green" if report.speedup >= 1 else " red"
    console.print(f"[bold{color}]{escape(report.summary)}[/]")
    if report.portable:
        console.print(f"[yellow]note:[/] {escape(report.portable)}")
    for line in not_met:
        console.print(f"[bold red]not met:[/] {escape(line)}")
    on_cuda = report.provider.startswith("CUDA")
    counted = any(row.launches is not None for block in report.blocks for row in block.rows)
    more = (*(["memory"] if on_cuda else []), *(["launches"] if counted else []), "roofline", "fused faster")
    titles = ("p50 us", "95% of it", "p90", "p99", "min", "items/s", *more)
    table = Table("", box=None, pad_edge=False, header_style="bold")
    table.columns[0].no_wrap = True
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for block in report.blocks:
        _add_rows(table, block, on_cuda=on_cuda)
    print_table(console, table, BENEATH)
    console.print()
    for line in _legend(report, on_cuda):
        console.print(escape(line), style="dim")


def _add_rows(table: Table, block: "ReportBlock", *, on_cuda: bool) -> None:
    table.add_row(escape(f"{block.name} ({plural(block.items, 'item')})"), style="bold")
    best = (block.best("original"), block.best("fused"))
    for row in block.rows:
        t = row.timing
        p50, low, high, *times = (
            f"{us:.{0 if us >= 100 else 1}f}" for us in (t.p50, t.low, t.high, t.p90, t.p99, t.min)
        )
        memory = ["?" if row.memory is None else f"{row.memory / 1e6:.0f} MB"] if on_cuda else []
        faster = f"{t.p50 / best[1].timing.p50:.2f}x" if t.differs(best[1].timing) else "no difference"
        launches = [] if row.launches is None else [str(row.launches)]
        share = block.roofline(row)
        facts = (
            p50,
            f"{low}..{high}",
            *times,
            f"{block.throughput(row):.0f}",
            *memory,
            *launches,
            _percent(share),
            faster if row.model == "original" else "",
        )
        table.add_row(escape(f"  {row.model}: {row.setting}"), *facts, style="green" if row in best else None)
    for refused in block.refused:
        table.add_row(escape(f"  {refused.model}: {refused.setting}"), LEFT_OUT[refused.kind])


def _percent(share: float | None) -> str:
    if share is None:
        return ""
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def _legend(report: "BenchmarkReport", on_cuda: bool) -> list[str]:
    """Return the lines below the tables: refusals, what ran, how it was measured, on what machine."""
    refused = {(r.kind, r.reason, f"{r.model}: {r.setting}"): None for b in report.blocks for r in b.refused}
    reasons = dict.fromkeys((kind, reason) for kind, reason, _ in refused)
    lines = [
        f"{LEFT_OUT[kind]} {', '.join(setting for *why, setting in refused if why == [kind, reason])}: {reason}"
        for kind, reason in reasons
    ]
    if any(kind == "hangs" for kind, _ in reasons):
        lines.append("to wait longer: --patience SECONDS")
    if report.assumed:
        names = " ".join(f"{name}=1" for name in report.assumed)
        lines.append(f"assumed {names}: say otherwise with --shape {report.assumed[0]}=8")
    ran = " -> ".join(
        " + ".join(f"{n} on {p}" for p, n in counts.items()) or "none" for counts in report.nodes.values()
    )
    lines.append(f"nodes per run: {ran}; {_fused_text(report.fused_ops)}")
    if not report.fused_ops.nodes and len({tuple(counts.items()) for counts in report.nodes.values()}) == 1:
        lines.append("nothing is fused: both models run the same nodes, and any difference is chance")
    lines += [f"as bodies: {reason}" for reason in report.fused_ops.reasons]
    lines += [_work_text(report)] if report.ceilings is not None else []
    if on_cuda and report.uncounted:
        lines.append(f"launches not counted: {report.uncounted}: pip install 'onnxfuse[profile]'")
    method = (
        f"{report.rounds} x {plural(report.runs, 'timed run')} of each in turns, inputs and "
        f"outputs bound; {report.seconds:.1f} s"
    )
    lines.append(
        "all times in us per run; 95% of it: where the median of the rounds lies; what overlaps is no difference"
    )
    unknown = any(row.memory is None for block in report.blocks for row in block.rows)
    memory = f"; memory is by how much the card's use grew{', ? where other processes freed some' if unknown else ''}"
    lines.append(method + (memory if on_cuda else ""))
    lines.append("; ".join(f"{name} {value}" for name, value in report.environment.items()))
    return lines


def _work_text(report: "BenchmarkReport") -> str:
    """Return the basis of the roofline: the work of a run, and the measured peak rates."""
    assert report.ceilings is not None
    block = report.blocks[0]
    bytes_ = " -> ".join(size_text(w.bytes) for w in block.work.values())
    rates = [f"{t} {flops_text(rate)}/s" for t, rate in report.ceilings.flops_per_second.items()]
    measured = ", ".join([f"{size_text(report.ceilings.bytes_per_second)}/s", *rates])
    flops = flops_text(block.work["original"].flops)
    cached = any((block.roofline(row) or 0) > 1 for block in report.blocks for row in block.rows)
    above = "; above 100%: what a node writes is still in a cache where the next reads it" if cached else ""
    return f"roofline, of each model's own work: {bytes_} and {flops} at {block.name}; measured here {measured}{above}"


def _fused_text(ops: "FusedOps") -> str:
    counts = (
        (ops.kernels, "as kernels"),
        (ops.nodes - ops.kernels - ops.bodies, "as ops of ONNX Runtime's own"),
        (ops.bodies, "as bodies"),
    )
    text = "; ".join([f"fused {ops.nodes}", *(f"{n} {suffix}" for n, suffix in counts if n)])
    return text if ops.launches is None else f"{text}; {plural(ops.launches, 'launch')} of our kernels"
