"""`onnxfuse verify`: compare a fused model with its original by error against a float64 reference."""

from pathlib import Path

import click

from onnxfuse.api.run.running import CPU, CUDA, PROVIDERS, verify
from onnxfuse.cli.base.console import bar, output, print_json, printing
from onnxfuse.cli.base.parameters import (
    JSON_OPTION,
    SEED_OPTION,
    TF32_OPTION,
    ModelFile,
    Shapes,
    ToleranceOption,
    custom_ops_option,
    rules_option,
    shapes_option,
)
from onnxfuse.cli.base.report_files import Outputs, output_options
from onnxfuse.cli.screens.verify import show
from onnxfuse.files.atomic_write import together
from onnxfuse.support.errors import MISMATCH

AGAINST = {"both": (CPU, CUDA), "cpu,cuda": (CPU, CUDA), "cuda,cpu": (CUDA, CPU)}
"""Providers of the original and of the fused model."""


@click.command("verify")
@click.argument("original", type=ModelFile())
@click.argument("fused", type=click.Path(path_type=Path))
@click.option(
    "--inputs",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Real inputs: .npz, .npy, .json, .pb, or a folder with input_0.pb or test_data_set_*. May be repeated.",
)
@shapes_option("Sizes of a dynamic dimension (batch=1,7) or the shape of an input (x=1x3x224x224).")
@SEED_OPTION
@click.option(
    "--seeds",
    metavar="N",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of seeds, starting at --seed.",
)
@click.option(
    "--save-inputs",
    type=click.Path(path_type=Path),
    help="Save the inputs to this folder (or .npz, for a single set), for use with --inputs.",
)
@click.option(
    "--providers",
    "--provider",
    "provider",
    type=click.Choice([*PROVIDERS, *AGAINST]),
    default="auto",
    show_default=True,
    help="Execution provider of both models; cpu,cuda: the original on the CPU, the fused model on CUDA.",
)
@TF32_OPTION
@click.option(
    "--rtol",
    type=ToleranceOption(),
    multiple=True,
    help="Relative tolerance instead of the error budget; NAME is an output or a type. May be repeated.",
)
@click.option("--atol", type=ToleranceOption(), multiple=True, help="Absolute tolerance, likewise.")
@click.option(
    "--nan",
    type=click.Choice(["equal", "fail"]),
    default="equal",
    show_default=True,
    help="Whether NaN and infinity in both models count as equal, or as a mismatch.",
)
@click.option(
    "--top-k",
    metavar="K",
    type=click.IntRange(1),
    multiple=True,
    help="Report top-K agreement over the last axis, for every output; default 1 and 5 for class scores.",
)
@click.option(
    "--bisect",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="After a mismatch, name the fused op or rule at fault, and write the smallest failing model to DIR.",
)
@rules_option("Folder of custom rules that FUSED was made with; may be repeated.")
@click.option(
    "--truth",
    type=click.Choice(["auto", "float64", "float32"]),
    default="auto",
    show_default=True,
    help="Precision of the reference; auto is float64 unless the model is too large.",
)
@click.option(
    "--time",
    "seconds",
    metavar="S",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    help="Time limit in seconds for the cases, and again for doubtful ones; cases beyond it are skipped, and reported.",
)
@click.option(
    "--memory",
    metavar="GB",
    type=click.FloatRange(min=0, min_open=True),
    help="Memory limit in gigabytes for the values of a case; default half of the free memory.",
)
@custom_ops_option
@output_options
@JSON_OPTION
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
    """Run ORIGINAL and FUSED on the same inputs; exit 0 only if FUSED is as accurate as ORIGINAL.

    The error of FUSED against a reference of higher precision may be at most twice that of ORIGINAL plus one rounding
    step of the output's type; with --rtol or --atol, the difference of the two is judged instead. On CUDA every fused
    op must also have run as its kernel.
    """
    ours, theirs = AGAINST[provider] if provider in AGAINST else (PROVIDERS[provider], None)
    with printing() as print_result, together():
        with bar("opening", hidden=quiet) as show_progress:
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
            print_result(lambda: print_json("verify", report.as_dict()))
        elif not quiet:
            print_result(lambda: show(report, output()))
    return 0 if report.ok else MISMATCH
