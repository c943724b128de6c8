"""`onnxfuse verify`: compare a fused model with its original, and say which error is whose."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from onnxfuse.cli.console import output, print_json
from onnxfuse.cli.outputs import Outputs, output_options

if TYPE_CHECKING:
    from onnxfuse.verification import KernelRow, OutputRow, Report

EXIT_MISMATCH = 1

PROVIDERS = {
    "cpu": ["CPUExecutionProvider"],
    "cuda": ["CUDAExecutionProvider", "CPUExecutionProvider"],
    "auto": None,
}


class ShapeOption(click.ParamType[tuple[str, tuple[int, ...]]]):
    """`name=1,7` for the values of a dimension, `input=1x3x224x224` for the shape of an input."""

    name = "NAME=SIZES"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, tuple[int, ...]]:
        """Return the name and the sizes."""
        name, equals, sizes = str(value).rpartition("=")
        numbers = sizes.replace("x", ",").split(",")
        if not equals or not name or not all(n.strip().isdigit() for n in numbers):
            self.fail(f"'{value}' is neither DIMENSION=1,7 nor INPUT=1x3x224x224", param, ctx)
        return name, tuple(int(n) for n in numbers)


@click.command("verify")
@click.argument("original", type=click.Path(path_type=Path))
@click.argument("fused", type=click.Path(path_type=Path))
@click.option(
    "--inputs",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Real inputs: a .npz, or a folder with input_0.pb or test_data_set_*. May be repeated.",
)
@click.option(
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
@click.option("--provider", type=click.Choice(list(PROVIDERS)), default="auto", show_default=True, help="Where to run.")
@click.option(
    "--truth",
    type=click.Choice(["auto", "float64", "float32"]),
    default="auto",
    show_default=True,
    help="Precision that errors are measured against; auto is float64 unless the model is big.",
)
@output_options
@click.option("--json", "as_json", is_flag=True, help="Print every fact as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; the exit code is the verdict.")
def command(
    original: Path,
    fused: Path,
    inputs: tuple[Path, ...],
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    seed: int,
    seeds: int,
    provider: str,
    truth: str,
    as_json: bool,
    quiet: bool,
    outputs: Outputs,
) -> int:
    """Run ORIGINAL and FUSED on the same inputs; exit 0 only if FUSED is as exact as ORIGINAL.

    The error of FUSED against a truth of higher precision may be at most twice that of ORIGINAL plus one rounding
    step of the output's type. On CUDA every fused op must also have run as its kernel.
    """
    from onnxfuse.verification import verify  # ONNX Runtime takes a second to import; --help does not wait.

    errors = Console(stderr=True)
    with Progress(console=errors, transient=True, disable=quiet or not errors.is_terminal) as bar:
        task = bar.add_task("opening", total=None)
        report = verify(
            original,
            fused,
            inputs=inputs or None,
            seeds=range(seed, seed + seeds),
            shapes=dict(shapes) or None,
            providers=PROVIDERS[provider],
            truth=truth,  # type: ignore[arg-type]  # click has checked it
            progress=lambda step, done, total: bar.update(task, description=step, completed=done, total=total),
        )
    outputs.write("verify", report.as_dict(), {"before": original, "after": fused})
    if as_json:
        print_json("verify", report.as_dict())
    elif not quiet:
        show(report, output())
    return 0 if report.ok else EXIT_MISMATCH


def show(report: "Report", console: Console) -> None:
    """Print the verdict, the table of outputs and what to try, on one screen."""
    color = "green" if report.ok else "red"
    console.print(f"[bold {color}]{'ok' if report.ok else 'MISMATCH'}[/] {escape(report.summary)}")
    for problem in report.problems:
        console.print(f"  - {escape(problem)}")
    if report.rows:
        console.print(_table(report))
        console.print(_legend(report), style="dim")
    for row in report.outputs:
        if row.verdict == "mismatch":
            console.print(_place(report, row))
    for step in _next_steps(report):
        console.print(f"-> {escape(step)}")


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
        table.add_row(
            escape(row.output), row.dtype, f"{m.error:.2g}", f"{m.budget:.2g}", f"{m.own:.2g}", f"{m.max_abs:.2g}",
            f"{m.max_rel:.2g}", f"{m.cosine:.7f}", f"rtol {m.rtol:.0e} atol {m.atol:.1e}", f"[{color}]{row.verdict}[/]",
        )  # fmt: skip
    return table


def _legend(report: "Report") -> str:
    ran = [c for c in report.cases if not c.note]
    skipped = len(report.cases) - len(ran)
    kinds = ", ".join(dict.fromkeys(c.name for c in ran))
    text = f"worst of {len(ran)} cases ({kinds}) on {report.provider.removesuffix('ExecutionProvider')}"
    text += f"; error against {report.truth} ({report.truth_how}); max and cosine against the original"
    text += f"; {report.seconds:.1f} s"
    if report.truth_why:
        text += f"\ntruth is not float64: {escape(report.truth_why)}"
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
    shapes = " ".join(f"{n}={'x'.join(map(str, s)) or 'scalar'}" for n, s in case.shapes.items())
    place = f"{row.output}[{', '.join(map(str, m.where))}]"
    return escape(
        f"{row.output}: {m.fault}\n"
        f"  {place} = {m.fused:.9g}, original {m.original:.9g}, truth {m.truth:.9g}\n"
        f"  case {case.name}{'' if case.seed is None else f', seed {case.seed}'}: {shapes}"
    )


def _next_steps(report: "Report") -> list[str]:
    if report.ok:
        return []
    verdicts = {r.verdict for r in report.outputs}
    steps = []
    if "mismatch" in verdicts:
        steps.append("see what was fused with onnxfuse explain; undo it with onnxfuse optimize --undo and verify that")
    if "undecided" in verdicts:
        steps.append("the made-up inputs tell nothing about this model: give real ones with --inputs")
    if any(k.runs_as == "function" for k in report.kernels) and report.provider.startswith("CUDA"):
        steps.append("the bodies alone can be verified with --provider cpu")
    return steps
