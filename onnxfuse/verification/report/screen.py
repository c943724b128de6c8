"""Screen of a verification: the verdict, the table of outputs, and next steps."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from onnxfuse.support.plurals import agreeing, fused_ops_text, listed, plural
from onnxfuse.support.screen import Blocks, Line, Rows, plain_table
from onnxfuse.verification.run.interface import belong_together

if TYPE_CHECKING:
    from onnxfuse.verification.report.localization import Localization
    from onnxfuse.verification.report.report import VerifyReport
    from onnxfuse.verification.report.rows import CaseRow, KernelRow, OutputRow, Verdict
    from onnxfuse.verification.tolerance.metrics import Difference


NAME = 28
"""Width up to which an output's name stays on one line."""

BENEATH = ("passes with", "cosine", "max rel", "max abs", "original's", "type")
"""Columns moved below an output's row on a narrow terminal; error, allowed error and verdict stay in it."""

COLORS: "Mapping[Verdict, str]" = {"ok": "green", "mismatch": "red", "undecided": "yellow", "blunt": "yellow"}

WORDS: "Mapping[Verdict, str]" = {"ok": "ok", "mismatch": "MISMATCH", "undecided": "UNDECIDED", "blunt": "BLUNT"}
"""First word of a report, by its verdict."""

ENTRIES = 4
"""Number of tensors shown of one sequence, map or optional: the worst."""

WORST = 3
"""Number of outputs whose worst case is named; JSON and reports have all."""

CLOSE = 3.0
"""Up to so many times the allowed error a mismatch may still be due to rounding that no run of the original shows."""


def broken_weights(names: Sequence[str]) -> str:
    """Return that weights hold NaN, and what follows."""
    verb = agreeing(len(names), "holds", "hold")
    return f"{listed(names[:WORST])} {verb} NaN in the original, so no input can test it: export it again"


def case_text(case: "CaseRow") -> str:
    """Describe a case and its shapes in words."""
    return f"{case.name} {_shapes_text(case)}".strip()


def _shapes_text(case: "CaseRow") -> str:
    return " ".join(f"{n}={'x'.join(map(str, s)) or 'scalar'}" for n, s in case.shapes.items())


def screen(report: "VerifyReport") -> Blocks:
    """Yield the verdict, the table of outputs and next steps, on one screen."""
    yield Line(f"[bold {COLORS[report.verdict]}]{WORDS[report.verdict]}[/] {escape(report.summary)}", fold=True)
    for problem in report.problems if report.crash is None else ():
        yield Line(f"  - {escape(problem)}", fold=True)
    for line in report.original_broken:
        yield Line(f"[yellow]note:[/] {escape(line)}", fold=True)
    if report.rows:
        yield Rows(_table(report), BENEATH)
        yield Line(_legend(report), style="dim", fold=True)
    for row in _worst_rows(report):
        if report.verdict_of(row.output) == "mismatch":
            yield Line(_fault_text(report, row), fold=True)
    if report.bisection is not None:
        yield from _localization(report.bisection)
    for step in _next_steps(report):
        yield Line(fold=True, hint=f"-> {escape(step)}")


def _localization(localization: "Localization") -> Blocks:
    yield Line(f"[bold]bisect:[/] {escape(localization.text)}", fold=True)
    if not localization.fault:
        return
    if localization.guilty is not None:
        yield Line(f"  made of: {escape(', '.join(localization.guilty.nodes))}")
    yield Line(f"  in the original: {escape(', '.join(localization.replaced))}")
    yield Line(f"  because: {escape(localization.why)}; {plural(localization.checked, 'window')} examined", fold=True)
    if localization.folder:
        folder = escape(f"{localization.folder}")
        models = f"{folder}/original.onnx {folder}/model.onnx --inputs {folder}/test_data_set_0"
        yield Line(f"  shown by: onnxfuse verify {models}")


def _worst_rows(report: "VerifyReport") -> list["OutputRow"]:
    """Return the outputs in order; of those with many tensors the worst ones."""
    order = {"mismatch": 3, "undecided": 2, "blunt": 1, "ok": 0}
    worst = sorted(report.outputs, key=lambda r: (-order[report.verdict_of(r.output)], -r.severity))
    names, counts = set[str](), dict[str, int]()
    for row in worst:
        counts[row.owner] = counts.get(row.owner, 0) + 1
        if counts[row.owner] <= ENTRIES:
            names.add(row.output)
    return [r for r in report.outputs if r.output in names]


def _table(report: "VerifyReport") -> Table:
    numbers = ("error", "allowed", "original's", "max abs", "max rel", "cosine")
    facts = ("type", *numbers, "passes with", "verdict")
    table = plain_table("output", *facts, right=numbers, whole=facts)
    table.columns[0].min_width = min(NAME, max((len(row.output) for row in _worst_rows(report)), default=0))
    for row in _worst_rows(report):
        m, d = row.measure, row.measure.difference
        verdict = report.verdict_of(row.output)
        tolerance = row.tolerance
        judged = (
            (f"{m.error:.2g}", f"{m.budget:.2g}") if tolerance is None else (f"{tolerance.worst:.2g}x", "tolerance")
        )
        own_error, cosine, tolerances = f"{m.own:.2g}", d.cosine, f"rtol {d.rtol:.0e} atol {d.atol:.1e}"
        by_parts = ""
        if report.parts is not None and not report.parts.faults:
            judged, own_error, tolerances, by_parts = ("-", "by parts"), "-", "-", " by parts" * (verdict == "ok")
        if row.contract is not None:
            judged = f"{row.contract.error:.2g}", f"{row.contract.allowed:.2g}"
            own_error, cosine = f"{row.contract.own:.2g}", row.contract.cosine
        distances = f"{d.max_abs:.2g}", f"{d.max_rel:.2g}", f"{cosine:.7f}"
        if m.broken and tolerance is None:
            tolerances = "-"  # no tolerance lets a value pass that breaks a law
            judged, own_error = (judged, own_error) if d.finite else (("-", "-"), "-")
            distances = distances if d.finite else ("-", "-", "-")
        table.add_row(
            escape(row.output), row.dtype, *judged, own_error, *distances, tolerances,
            f"[{COLORS[verdict]}]{verdict}{by_parts}[/]",
        )  # fmt: skip
    return table


def _legend(report: "VerifyReport") -> str:
    ran = [c for c in report.cases if not c.note]
    skipped = len(report.cases) - len(ran)
    kinds = ", ".join(dict.fromkeys(c.name for c in ran))
    where = [p.removesuffix("ExecutionProvider") for p in (report.provider, report.fused_provider) if p]
    text = f"worst of {plural(ran, 'case')} ({kinds}) on {' against '.join(where)}"
    hidden = len(report.outputs) - len(rows := _worst_rows(report))
    text += f"; {plural(hidden, 'more tensor')} of these: --json" * (hidden > 0)
    for row in rows[:WORST]:
        # The meaning of an error depends on the magnitude of the values.
        text += (
            f"; {escape(row.output)}: {escape(case_text(report.cases[row.case]))}, values to {row.measure.scale:.2g}"
        )
    text += f"; {plural(len(rows) - WORST, 'more output')}: --json" * (len(rows) > WORST)
    if report.contract is None:
        text += f"; error against {report.truth} ({report.truth_how}); max and cosine against the original"
    else:
        text += f"; relative RMS error and cosine against {report.truth} ({report.truth_how}); max against the original"
    text += f"; {report.seconds:.1f} s"
    for row in report.outputs:
        agreed = ", ".join(f"top-{k} {share:.2%}" for k, share in row.measure.difference.agreement.items())
        text += f"\n{escape(row.output)} agrees with the original: {agreed}" if agreed else ""
    if report.truth_why:
        subject = "the truth" if report.truth == "float64" else "truth is not float64"
        text += f"\n{subject}: {escape(report.truth_why)}"
    if report.without_tf32:
        text += f"\nno float32 product is rounded to TF32 (use_tf32 0): {report.without_tf32}"
    if report.tf32:
        text += (
            "\nby its own error the original is better; judged by what factors rounded to TF32, and the sums of float8 "
            "on tensor cores, do to it, as the session allows (use_tf32, ONNX Runtime's default); to keep float32: "
            "optimize --strict-fp32"
        )
    ties = sum(row.measure.ties for row in report.rows) if report.half else 0
    if ties:
        values = sum(row.measure.elements for row in report.rows if row.measure.grid)
        text += (
            f"\n{ties} of {plural(values, 'quantized value')} {agreeing(ties, 'is a tie', 'are ties', of=values)} of "
            "rounding: half-precision values before them are as close to either step"
        )
    for row in report.outputs:
        if row.contract is not None and row.contract.agreement is not None:
            text += f"\n{escape(row.output)}: the best class is the truth's in {row.contract.agreement:.2%} of the rows"
    text += _conversion_text(report)
    if report.parts is not None and not report.parts.faults:
        text += (
            "\nby parts: the model rounds inside, where one step changes all that follows; so its parts are judged, "
            "each on the original's own values, and max and cosine only show how far the outputs moved; compared in "
            f"{len(report.parts.cases)} of {plural(ran, 'case')}: the largest, and the smallest of each kind and where "
            "an output moved"
        )
    text += _sizes_text(report)
    for line in report.not_run:
        text += f"\nnot run: {escape(line)}"
    if skipped:
        why = next(c.note for c in report.cases if c.note).removeprefix("left out: ")
        text += f"\n{plural(skipped, 'case')} left out: {escape(why)}"
    kernels = [k for k in report.kernels if k.runs_as == "kernel"]
    return text + (_kernel_text(kernels, report.kernels) if report.kernels else "")


def _conversion_text(report: "VerifyReport") -> str:
    if report.contract is None:
        return ""
    text = f"\nconverted, {report.contract.summary}"
    if report.half:
        return f"{text}\nONNX Runtime has no bfloat16 on the CPU: each value was computed in float32 and rounded"
    if report.contract.nothing:
        return text
    return f"{text}; the table has the error as it ran here, where fused ops and ONNX Runtime round fewer values"


def _sizes_text(report: "VerifyReport") -> str:
    text = ""
    if report.searched:
        sizes = escape(_values(report.searched))
        text += f"\nsizes searched upward until the original ran: {sizes}; choose them with --shape"
    if report.sizes and any(c.seed is not None for c in report.cases if not c.note):
        text += f"\nsizes run: {escape(_values(report.sizes))}"
    return text


def _values(sizes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name}={','.join(map(str, values))}" for name, values in sizes.items())


def _kernel_text(kernels: Iterable["KernelRow"], every: Iterable["KernelRow"]) -> str:
    kernels, every = list(kernels), list(every)
    ran, total = (sum(k.nodes for k in rows) for rows in (kernels, every))
    text = (
        f"\n{ran} of {fused_ops_text(total, len(every))} ran as "
        f"{agreeing(ran, 'a kernel', 'kernels', of=total)}, {plural(sum(k.launches for k in kernels), 'launch')}"
    )
    library = sum(k.nodes for k in every if k.runs_as == "onnxruntime")
    text += f"; {library} in ONNX Runtime's own ops" if library else ""
    reasons = dict.fromkeys(k.reason for k in every if k.runs_as == "body")
    return text + (f"; others as their bodies: {escape(', '.join(reasons))}" if reasons else "")


def _fault_text(report: "VerifyReport", row: "OutputRow") -> str:
    m, case = row.measure, report.cases[row.case]
    d = m.difference
    if row.contract is not None:
        return escape(f"{row.output}: {row.fault}\n  case {case.name}: {_shapes_text(case)}")
    return escape(
        f"{row.output}: {row.fault}\n"
        f"  {row.element} = {m.fused:.9g}, original {m.original:.9g}, truth {m.truth:.9g}\n"
        f"{_distribution(d)}"
        f"  case {case.name}{'' if case.seed is None else f', seed {case.seed}'}: {_shapes_text(case)}"
        + (f"\n  also {also}" if (also := report.also(row)) else "")
    )


def _distribution(d: "Difference") -> str:
    """Return how the errors of the finite elements are distributed, in lines; none if there is no such element."""
    if not d.finite:
        return "  no element is finite in both models\n"
    shares = "".join(f"{float(q):.2%} below {x:.2g}, " for q, x in d.quantiles.items())
    return (
        f"  abs error: mean {d.mean_abs:.2g}, {shares}max at {list(d.max_abs_at)}\n"
        f"  signal to noise {d.snr:.1f} dB; ULPs apart: {', '.join(f'{k}: {n}' for k, n in d.ulps.items()) or 'none'}\n"
    )


def _close_text(report: "VerifyReport") -> str:
    """Return what to do first if every mismatch is close to its budget; empty otherwise."""
    wrong = [r for r in report.outputs if r.verdict == "mismatch"]
    if not wrong or report.problems or any(r.judged_by != "budget" or r.severity > CLOSE for r in wrong):
        return ""
    most = max(wrong, key=lambda r: r.severity)
    return (
        f"{most.output} has {most.severity:.2g} times the allowed error, which rounding may explain: before leaving "
        "a rule out, verify with other inputs (--seed 1, --seeds 5); a wrong op differs with most of them"
    )


def _next_steps(report: "VerifyReport") -> list[str]:
    if report.ok:
        return []
    verdicts = {r.verdict for r in report.outputs}
    steps = []
    close = _close_text(report)
    if close:
        steps.append(close)
    if not belong_together(report.problems):
        steps.append("fusion keeps every input and output: is the second model made of the first? optimize it again")
    if "mismatch" in verdicts:
        if report.bisection is None:
            steps.append("to name the fused op or rule at fault, repeat this with --bisect DIR")
        at_fault = () if report.bisection is None else report.bisection.named_rules
        left_out = "".join(f" --skip {rule}" for rule in at_fault)
        steps.append(
            "make the file again: onnxfuse optimize"
            if report.bisection is not None and report.bisection.outdated
            else f"{'if they differ with other inputs, too' if close else 'until that is fixed'}, leave it out: "
            f"onnxfuse optimize{left_out}"
            if at_fault
            else "see what was fused with onnxfuse explain; undo it with onnxfuse optimize --undo and verify that"
        )
    if report.crash is not None and report.crash.model == "original" and report.crash.case:
        steps.append(
            "the original alone crashed: state sizes that the model accepts with --shape, or give real inputs with "
            "--inputs"
        )
    if report.nan_weights:
        steps.append(broken_weights(report.nan_weights))
    elif report.unverified or report.blunt:
        steps.append(
            "generated inputs test too little of this model: give real ones with --inputs, or state how far outputs "
            "may differ with --rtol and --atol"
        )
    if any(c.note.endswith("(--time)") for c in report.cases):
        steps.append(f"cases were skipped for lack of time: --time {2 * report.limits['seconds']:g} allows more")
    if any(k.runs_as == "body" for k in report.kernels) and report.provider.startswith("CUDA"):
        steps.append("the bodies alone can be verified with --provider cpu")
    return steps
