"""Screen of a benchmark: the verdict, the times at each setting, and the conditions of the measurement."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from onnxfuse.support.plurals import plural
from onnxfuse.support.screen import Blocks, Line, Rows, plain_table
from onnxfuse.support.units import flops_text, size_text

if TYPE_CHECKING:
    from onnxfuse.measure.benchmark.report import BenchmarkReport, FusedOps, ReportBlock

LEFT_OUT = {"refused": "refused", "crashed": "crashed", "hangs": "no answer"}
"""Text shown instead of times, by the kind of `Refused`."""

BENEATH = ("min", "p99", "p90", "items/s", "roofline", "launches", "memory", "95% of it")
"""Columns moved below a setting's row on a narrow terminal; its median and speed-up stay in it."""


def screen(report: "BenchmarkReport", not_met: Sequence[str] = (), *, memory: bool = False) -> Blocks:
    """Yield the verdict, a block of rows per set of shapes, and the measurement conditions."""
    color = "" if not any(b.differs for b in report.blocks) else " green" if report.speedup >= 1 else " red"
    yield Line(f"[bold{color}]{escape(report.summary)}[/]", fold=True)
    if report.portable:
        yield Line(f"[yellow]note:[/] {escape(report.portable)}", fold=True)
    for line in not_met:
        yield Line(f"[bold red]not met:[/] {escape(line)}", fold=True)
    on_cuda = report.provider.startswith("CUDA")
    counted = any(row.launches is not None for block in report.blocks for row in block.rows)
    more = (*(["memory"] if on_cuda else []), *(["launches"] if counted else []), "roofline", "fused faster")
    titles = ("p50 us", "95% of it", "p90", "p99", "min", "items/s", *more)
    table = plain_table("", *titles, right=titles, whole=("", *titles))
    bars: list[float] = []
    for block in report.blocks:
        _add_rows(table, block, on_cuda=on_cuda)
        bars += [0, *(row.timing.p50 for row in block.rows), *[0] * len(block.refused)]
    yield Rows(table, BENEATH, bars=bars)
    yield Line()
    if memory:
        yield from _memory(report)
    yield from _legend(report, on_cuda)


def _add_rows(table: Table, block: "ReportBlock", *, on_cuda: bool) -> None:
    table.add_row(escape(f"{block.name} ({plural(block.items, 'item')})"), style="bold")
    best = (block.best("original"), block.best("fused"))
    for row in block.rows:
        t = row.timing
        p50, low, high, *times = (
            f"{us:.{0 if us >= 100 else 1}f}" for us in (t.p50, t.low, t.high, t.p90, t.p99, t.min)
        )
        memory = ["?" if row.memory is None else f"{row.memory / 1e6:.0f} MB"] if on_cuda else []
        faster = str(t.over(best[1].timing))
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


def _memory(report: "BenchmarkReport") -> Blocks:
    """Yield, for each set of shapes, how much the card's use grew with each model, and what the fused one's is for."""
    uses = ("weights", "activations", "arena", "workspaces", "kernels", "graphs")
    table = plain_table("memory", "original", "fused", *uses, right=("original", "fused", *uses))
    for block in report.blocks:
        grown = [next(r.memory for r in block.rows if r.model == name) for name in ("original", "fused")]
        known = ["?" if size is None else size_text(size) for size in grown]
        used = ["?" if block.memory is None else size_text(getattr(block.memory, use)) for use in uses]
        table.add_row(escape(block.name), *known, *used)
    yield Rows(table)
    yield _fact(
        "original, fused: by how much the card's use grew; arena: what ONNX Runtime holds for weights and activations, "
        "which are the most in use at a time; workspaces: scratch memory of kernels; kernels: their code"
    )
    if not any(block.memory for block in report.blocks):
        yield _fact("what the fused model uses it for is known on CUDA, where fused ops run as kernels")
    yield Line()


def _percent(share: float | None) -> str:
    if share is None:
        return ""
    return f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"


def _legend(report: "BenchmarkReport", on_cuda: bool) -> Blocks:
    """Yield the lines below the tables: refusals, what ran, how it was measured, on what machine."""
    refused = {(r.kind, r.reason, f"{r.model}: {r.setting}"): None for b in report.blocks for r in b.refused}
    reasons = dict.fromkeys((kind, reason) for kind, reason, _ in refused)
    for kind, reason in reasons:
        settings = ", ".join(setting for *why, setting in refused if why == [kind, reason])
        yield _fact(f"{LEFT_OUT[kind]} {settings}: {reason}")
    if any(kind == "hangs" for kind, _ in reasons):
        yield _fact("", "to wait longer: --patience SECONDS")
    if report.assumed:
        names = " ".join(f"{name}=1" for name in report.assumed)
        yield _fact(f"assumed {names}", f": choose other sizes with --shape {report.assumed[0]}=8")
    ran = " -> ".join(
        " + ".join(f"{n} on {p}" for p, n in counts.items()) or "none" for counts in report.nodes.values()
    )
    yield _fact(f"nodes per run: {ran}; {_fused_text(report.fused_ops)}")
    if not report.fused_ops.nodes and len({tuple(counts.items()) for counts in report.nodes.values()}) == 1:
        yield _fact("nothing is fused: both models run the same nodes, and any difference is chance")
    for reason in report.fused_ops.reasons:
        yield _fact(f"as bodies: {reason}")
    if report.ceilings is not None:
        yield _fact(_work_text(report))
    if on_cuda and report.uncounted:
        yield _fact(f"launches not counted: {report.uncounted}: pip install 'onnxfuse[profile]'")
    yield _fact(
        "all times in us per run; 95% of it: where the median of the rounds lies; where two of these overlap, neither "
        "is known to be faster"
    )
    counts = dict.fromkeys((b.rounds, b.runs) for b in report.blocks)
    limited = any(count != (report.rounds, report.runs) for count in counts)
    if any(not b.differs and not b.factor.same for b in report.blocks):
        more = f"--time {4 * report.limit:g}" if limited else f"--rounds {3 * report.rounds}"
        yield _fact("", f"to decide it: a machine without other load, or more rounds ({more})")
    made = ", ".join(f"{rounds} x {plural(runs, 'timed run')}" for rounds, runs in counts)
    method = f"{made} of each in turns, inputs and outputs bound; {report.seconds:.1f} s"
    if limited:
        method += f"; {report.rounds} x {report.runs} would take longer than --time {report.limit:g}"
    unknown = any(row.memory is None for block in report.blocks for row in block.rows)
    memory = f"; memory is by how much the card's use grew{', ? where other processes freed some' if unknown else ''}"
    yield _fact(method + (memory if on_cuda else ""))
    yield _fact("; ".join(f"{name} {value}" for name, value in report.environment.items()))


def _fact(text: str, hint: str = "") -> Line:
    return Line(escape(text), "dim", fold=True, hint=escape(hint))


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
    text = "; ".join([plural(ops.nodes, "fused op"), *(f"{n} {suffix}" for n, suffix in counts if n)])
    return text if ops.launches is None else f"{text}; {plural(ops.launches, 'launch')} of our kernels"
