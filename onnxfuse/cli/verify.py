"""`onnxfuse verify`: compare a fused model with its original, and say which error is whose."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from onnxfuse.api.running import CPU, CUDA, PROVIDERS, verify
from onnxfuse.cli.console import errors as standard_error
from onnxfuse.cli.console import output, print_json
from onnxfuse.cli.outputs import Outputs, output_options
from onnxfuse.cli.parameters import TF32_OPTION, ShapeOption, Shapes, ToleranceOption
from onnxfuse.model.errors import MISMATCH, UsageError

if TYPE_CHECKING:
    from onnxfuse.verification import Finding, KernelRow, OutputRow, Report

AGAINST = {"both": (CPU, CUDA), "cpu,cuda": (CPU, CUDA), "cuda,cpu": (CUDA, CPU)}
"""Where the original runs, and where the fused model does."""


@click.command("verify")
@click.argument("original", type=click.Path(path_type=Path))
@click.argument("fused", type=click.Path(path_type=Path))
@click.option(
    "--inputs",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Real inputs: .npz, .npy, .json, .pb, or a folder with input_0.pb or test_data_set_*. May be repeated.",
)
@click.option(
    "--shapes",
    "--shape",
    "shapes",
    type=ShapeOption(),
    multiple=True,
    help="Values of a dynamic dimension (batch=1,7) or the shape of an input (x=1x3x224x224). May be repeated.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the inputs.")
@click.option(
    "--seeds", type=click.IntRange(1), default=1, show_default=True, help="How many seeds to run, from --seed."
)
@click.option(
    "--save-inputs",
    type=click.Path(path_type=Path),
    help="Write the inputs that are run to this folder (or .npz, for a single set); --inputs reads them.",
)
@click.option(
    "--providers",
    "--provider",
    "provider",
    type=click.Choice([*PROVIDERS, *AGAINST]),
    default="auto",
    show_default=True,
    help="Where to run; both, or cpu,cuda: the original on the CPU against the fused model on CUDA.",
)
@TF32_OPTION
@click.option(
    "--rtol",
    type=ToleranceOption(),
    multiple=True,
    help="Relative tolerance in place of the error budget; NAME is an output or a type. May be repeated.",
)
@click.option("--atol", type=ToleranceOption(), multiple=True, help="Absolute tolerance, likewise.")
@click.option(
    "--nan",
    type=click.Choice(["equal", "fail"]),
    default="equal",
    show_default=True,
    help="NaN and infinity where the original has them too: equal, or a mismatch.",
)
@click.option(
    "--top-k",
    type=click.IntRange(1),
    multiple=True,
    help="Tell how often the K best of the last axis agree, of every output; unasked it is 1 and 5 of class scores.",
)
@click.option(
    "--bisect",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="After a mismatch, name the fused op or rule at fault, and write the smallest failing model to DIR.",
)
@click.option(
    "--rules",
    "folders",
    metavar="DIR",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Rules that FUSED was made with beside the shipped ones, for --bisect.",
)
@click.option(
    "--truth",
    type=click.Choice(["auto", "float64", "float32"]),
    default="auto",
    show_default=True,
    help="Precision that errors are measured against; auto is float64 unless the model is big.",
)
@click.option(
    "--time",
    "seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    help="Seconds for the cases, and as much again where there is doubt; cases beyond are left out, and told.",
)
@click.option(
    "--memory",
    type=click.FloatRange(min=0, min_open=True),
    help="Gigabytes that the values of a case may take; by default half of what is free.",
)
@output_options
@click.option("--json", "as_json", is_flag=True, help="Print every fact as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; the exit code is the verdict.")
def command(
    original: Path,
    fused: Path,
    inputs: tuple[Path, ...],
    shapes: Shapes,
    seed: int,
    seeds: int,
    save_inputs: Path | None,
    provider: str,
    use_tf32: bool | None,
    rtol: tuple[tuple[str, float], ...],
    atol: tuple[tuple[str, float], ...],
    nan: str,
    top_k: tuple[int, ...],
    bisect: Path | None,
    folders: tuple[Path, ...],
    truth: str,
    seconds: float,
    memory: float | None,
    as_json: bool,
    quiet: bool,
    outputs: Outputs,
) -> int:
    """Run ORIGINAL and FUSED on the same inputs; exit 0 only if FUSED is as exact as ORIGINAL.

    The error of FUSED against a truth of higher precision may be at most twice that of ORIGINAL plus one rounding
    step of the output's type; with --rtol or --atol, the difference of the two is judged instead. On CUDA every fused
    op must also have run as its kernel.
    """
    if folders and bisect is None:
        raise UsageError("--rules goes with --bisect", "The rules of FUSED matter only to name the one at fault.")
    ours, theirs = AGAINST[provider] if provider in AGAINST else (PROVIDERS[provider], None)
    errors = standard_error()
    with Progress(console=errors, transient=True, disable=quiet or not errors.is_terminal) as bar:
        task = bar.add_task("opening", total=None)

        def show_progress(step: str, done: int, total: int) -> None:
            bar.update(task, description=step, completed=done, total=total)

        report = verify(
            original,
            fused,
            inputs=inputs or None,
            seeds=range(seed, seed + seeds),
            shapes=dict(shapes) or None,
            providers=ours,
            fused_providers=theirs,
            use_tf32=use_tf32,
            seconds=seconds,
            save_inputs=save_inputs,
            bisect=bisect,
            rules=folders,
            truth=truth,
            rtol=dict(rtol),
            atol=dict(atol),
            nan=nan,
            top_k=top_k or None,
            memory=None if memory is None else int(memory * 1e9),
            progress=show_progress,
        )
    outputs.write("verify", report.as_dict(), {"before": original, "after": fused})
    if as_json:
        print_json("verify", report.as_dict())
    elif not quiet:
        show(report, output())
    return 0 if report.ok else MISMATCH


def show(report: "Report", console: Console) -> None:
    """Print the verdict, the table of outputs and what to try, on one screen."""
    color = "green" if report.ok else "red"
    console.print(f"[bold {color}]{'ok' if report.ok else 'MISMATCH'}[/] {escape(report.summary)}")
    for problem in report.problems if report.crash is None else ():
        console.print(f"  - {escape(problem)}")
    if report.rows:
        console.print(_table(report))
        console.print(_legend(report), style="dim")
    for row in report.outputs:
        if row.verdict == "mismatch":
            console.print(_place(report, row))
    if report.bisection is not None:
        _show_finding(report.bisection, console)
    for step in _next_steps(report):
        console.print(f"-> {escape(step)}")


def _show_finding(finding: "Finding", console: Console) -> None:
    console.print(f"[bold]bisect:[/] {escape(finding.text)}")
    if not finding.fault:
        return
    if finding.guilty is not None:
        console.print(f"  made of: {escape(', '.join(finding.guilty.nodes))}", soft_wrap=True)
    console.print(f"  in the original: {escape(', '.join(finding.replaced))}", soft_wrap=True)
    console.print(f"  because: {escape(finding.why)}; {finding.checked} places looked at", soft_wrap=True)
    if finding.folder:
        console.print(
            f"  shown by: onnxfuse verify {finding.folder}/original.onnx {finding.folder}/model.onnx "
            f"--inputs {finding.folder}/test_data_set_0",
            soft_wrap=True, markup=False,
        )  # fmt: skip


def _table(report: "Report") -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, justify in (
        ("output", "left"), ("type", "left"), ("error", "right"), ("allowed", "right"), ("original's", "right"),
        ("max abs", "right"), ("max rel", "right"), ("cosine", "right"), ("passes with", "left"), ("verdict", "left"),
    ):  # fmt: skip
        table.add_column(title, justify=justify, no_wrap=title != "output")  # type: ignore[arg-type]
    for row in report.outputs:
        m = row.measure
        color = {"ok": "green", "mismatch": "red", "undecided": "yellow"}[row.verdict]
        given = row.tolerance
        judged = (f"{m.error:.2g}", f"{m.budget:.2g}") if given is None else (f"{given.worst:.2g}x", "tolerance")
        table.add_row(
            escape(row.output), row.dtype, *judged, f"{m.own:.2g}", f"{m.max_abs:.2g}",
            f"{m.max_rel:.2g}", f"{m.cosine:.7f}", f"rtol {m.rtol:.0e} atol {m.atol:.1e}", f"[{color}]{row.verdict}[/]",
        )  # fmt: skip
    return table


def _legend(report: "Report") -> str:
    ran = [c for c in report.cases if not c.note]
    skipped = len(report.cases) - len(ran)
    kinds = ", ".join(dict.fromkeys(c.name for c in ran))
    where = [p.removesuffix("ExecutionProvider") for p in (report.provider, report.fused_provider) if p]
    text = f"worst of {len(ran)} cases ({kinds}) on {' against '.join(where)}"
    text += f"; error against {report.truth} ({report.truth_how}); max and cosine against the original"
    text += f"; {report.seconds:.1f} s"
    for row in report.outputs:
        agreed = ", ".join(f"top-{k} {share:.2%}" for k, share in row.measure.difference.agreement.items())
        text += f"\n{escape(row.output)} agrees with the original: {agreed}" if agreed else ""
    if report.truth_why:
        what = "the truth" if report.truth == "float64" else "truth is not float64"
        text += f"\n{what}: {escape(report.truth_why)}"
    if report.without_tf32:
        text += f"\nno float32 product is rounded to TF32 (use_tf32 0): {report.without_tf32}"
    if report.tf32:
        text += (
            "\nby its own error the original is better; judged by what factors rounded to TF32 do to it, as the "
            "session allows (use_tf32, ONNX Runtime's default); to keep float32: optimize --strict-fp32"
        )
    if report.searched:
        sizes = ", ".join(f"{name}={','.join(map(str, values))}" for name, values in report.searched.items())
        text += f"\nsizes searched upward until the original ran: {escape(sizes)}; say which with --shape"
    if skipped:
        text += f"\n{skipped} cases left out: {escape(next(c.note for c in report.cases if c.note))}"
    kernels = [k for k in report.kernels if k.runs_as == "kernel"]
    return text + (_kernel_text(kernels, report.kernels) if report.kernels else "")


def _kernel_text(kernels: Iterable["KernelRow"], every: Iterable["KernelRow"]) -> str:
    kernels, every = list(kernels), list(every)
    text = f"\n{len(kernels)} of {len(every)} fused ops ran as kernels, {sum(k.launches for k in kernels)} launches"
    library = sum(k.runs_as == "library" for k in every)
    text += f"; {library} in ONNX Runtime's own ops" if library else ""
    reasons = dict.fromkeys(k.reason for k in every if k.runs_as == "function")
    return text + (f"; others as their bodies: {escape(', '.join(reasons))}" if reasons else "")


def _place(report: "Report", row: "OutputRow") -> str:
    m, case = row.measure, report.cases[row.case]
    d = m.difference
    shapes = " ".join(f"{n}={'x'.join(map(str, s)) or 'scalar'}" for n, s in case.shapes.items())
    place = f"{row.output}[{', '.join(map(str, m.where))}]"
    return escape(
        f"{row.output}: {row.fault}\n"
        f"  {place} = {m.fused:.9g}, original {m.original:.9g}, truth {m.truth:.9g}\n"
        f"  abs error: mean {d.mean_abs:.2g}, "
        f"{', '.join(f'{float(q):.2%} below {x:.2g}' for q, x in d.quantiles.items())}, max at {list(d.max_abs_at)}\n"
        f"  signal to noise {d.snr:.1f} dB; ULPs apart: {', '.join(f'{k}: {n}' for k, n in d.ulps.items()) or 'none'}\n"
        f"  case {case.name}{'' if case.seed is None else f', seed {case.seed}'}: {shapes}"
    )


def _next_steps(report: "Report") -> list[str]:
    if report.ok:
        return []
    verdicts = {r.verdict for r in report.outputs}
    steps = []
    if "mismatch" in verdicts:
        if report.bisection is None:
            steps.append("name the fused op or rule that is to blame: the same with --bisect DIR")
        steps.append("see what was fused with onnxfuse explain; undo it with onnxfuse optimize --undo and verify that")
    if report.unverified:
        steps.append(
            "made-up inputs tell too little about this model: give real ones with --inputs, or say how far the outputs "
            "may be apart with --rtol and --atol"
        )
    if any(k.runs_as == "function" for k in report.kernels) and report.provider.startswith("CUDA"):
        steps.append("the bodies alone can be verified with --provider cpu")
    return steps
