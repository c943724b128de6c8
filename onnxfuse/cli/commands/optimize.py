"""`onnxfuse optimize`: apply the rules, write the model, and print a summary on one screen."""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from onnxfuse.api.optimize.lowering import lowering
from onnxfuse.api.optimize.optimizing import optimize, undo, written
from onnxfuse.api.reasons import near_misses
from onnxfuse.api.request.options import Compiling, Dump, Guarding, Options, TuningOptions, requirement
from onnxfuse.cli.base.console import errors, print_json, printing, verbosity, working
from onnxfuse.cli.base.console import output as results
from onnxfuse.cli.base.parameters import (
    ALSO_OPTION,
    JSON_OPTION,
    ShapeOption,
    Shapes,
    arch_option,
    custom_ops_option,
    precision_options,
    ranges,
    rule_names,
    rules_option,
)
from onnxfuse.cli.base.report_files import Outputs, output_options
from onnxfuse.cli.base.targets import Job, jobs
from onnxfuse.cli.commands import multiple_models
from onnxfuse.cli.commands.multiple_models import JobResult
from onnxfuse.cli.screens.optimize import show
from onnxfuse.files.atomic_write import check_no_links
from onnxfuse.support.errors import EXPECTATION_NOT_MET, UsageError


@click.command("optimize")
@click.argument("models", metavar="IN.onnx... [OUT.onnx]", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Output folder for several models, or output file for one.",
)
@click.option("--in-place", is_flag=True, help="Overwrite each IN.onnx; the original is lost.")
@click.option(
    "--external-data/--no-external-data",
    "external_data",
    default=None,
    help="Store weights in a file next to OUT.onnx, or in it; default as in IN.onnx, and external above 2 GB. "
    "Small weights and shape constants stay in it.",
)
@rules_option()
@custom_ops_option
@click.option(
    "--only", metavar="RULE", multiple=True, shell_complete=rule_names, help="Apply only this rule; may be repeated."
)
@click.option(
    "--skip", metavar="RULE", multiple=True, shell_complete=rule_names, help="Skip this rule; may be repeated."
)
@ALSO_OPTION
@click.option(
    "--require",
    metavar="RULE[>=N|==N]",
    multiple=True,
    help="Exit 4 unless the rule applied this often; as in onnxfuse.toml.",
)
@precision_options
@click.option("--guard", is_flag=True, help="Check every fusion on inputs; revert those beyond the error budget.")
@click.option(
    "--guard-inputs",
    metavar="PATH",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Real inputs for --guard, instead of --inputs.",
)
@click.option(
    "--tune", is_flag=True, help="Measure candidates on the GPU that have no times yet, and choose the fastest."
)
@click.option(
    "--tuning",
    "tuning_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Choose by times from --tune, with or without a GPU. With --tune: store the times there.",
)
@click.option(
    "--strict-fp32",
    is_flag=True,
    help="Use no kernel that rounds float32 to TF32; recorded in OUT.onnx, which onnxfuse opens with use_tf32 0.",
)
@click.option(
    "--freeze-initializers",
    "freeze",
    is_flag=True,
    help="Turn weights that are also graph inputs into constants, which callers cannot override.",
)
@click.option("--undo", "plain", is_flag=True, help="Replace the fused ops of IN.onnx by the nodes of their bodies.")
@click.option(
    "--dump", metavar="DIR", type=click.Path(path_type=Path), help="Write every phase and kernel to this folder."
)
@click.option("--compile", "packed", is_flag=True, help="Also write OUT.onnx.kernels, like onnxfuse compile.")
@arch_option("Target architectures of --compile and --dump; default that of this machine's GPU.")
@click.option(
    "--shape",
    "--shapes",
    "shapes",
    metavar="NAME=N",
    type=ShapeOption(),
    multiple=True,
    help="Specialize the model to this size of a dynamic dimension (batch=8) or shape of an input. With --dump, "
    "--tune, --tuning and --compile it stays dynamic, and these are the sizes (batch=1,32) or range (1..32) there.",
)
@output_options
@JSON_OPTION
def command(
    models: tuple[Path, ...],
    output: Path | None,
    in_place: bool,
    external_data: bool | None,
    folders: tuple[Path, ...],
    only: tuple[str, ...],
    skip: tuple[str, ...],
    also: tuple[str, ...],
    require: tuple[str, ...],
    precision: str | None,
    inputs: tuple[Path, ...],
    tolerance: float | None,
    io_precision: str | None,
    keep_fp32: tuple[str, ...],
    seconds: float | None,
    guard: bool,
    guard_inputs: tuple[Path, ...],
    tune: bool,
    tuning_file: Path | None,
    strict_fp32: bool,
    freeze: bool,
    plain: bool,
    dump: Path | None,
    packed: bool,
    archs: tuple[str, ...],
    shapes: Shapes,
    as_json: bool,
    outputs: Outputs,
) -> int:
    """Apply the fusion rules to IN.onnx and write OUT.onnx.

    OUT.onnx runs in any ONNX Runtime, on any provider; with onnxfuse and a GPU its fused ops run as CUDA kernels.
    Nothing is written unless every step succeeds. Several models, or all of a folder, go to -o DIR, or replace their
    inputs with --in-place; - is standard input or output.
    """
    chosen = only or skip or also
    if plain and (chosen or require or guard or tune or tuning_file or strict_fp32 or freeze or precision):
        raise UsageError(
            "--undo goes with none of --only, --skip, --also, --require, --guard, --tune, --tuning, --strict-fp32, "
            "--freeze-initializers and --precision"
        )
    if plain and dump is not None:
        raise UsageError("--undo makes no kernels: --dump goes with optimizing")
    if precision is None and (tolerance is not None or io_precision or keep_fp32 or seconds is not None):
        raise UsageError("--tolerance, --io-precision, --keep-fp32 and --time go with --precision")
    if precision is None and inputs and not guard:
        raise UsageError("--inputs go with --precision and --guard, which run the model")
    if guard_inputs and not guard:
        raise UsageError("--guard-inputs goes with --guard")
    if plain and packed:
        raise UsageError("--undo makes no kernels: --compile goes with optimizing")
    if plain and shapes:
        raise UsageError("--undo gives back what was there: --shape goes with optimizing")
    if dump is None and not packed and archs:
        raise UsageError("--arch goes with --dump DIR and --compile")
    if dump is not None and len(archs) > 1:
        raise UsageError(
            f"--dump shows the kernels of one GPU, and --arch names {len(archs)}: {', '.join(archs)}",
            "Say --arch sm_90a; or compile by a command of its own: onnxfuse compile OUT.onnx --arch sm_80,sm_90a",
        )
    sized = dump is not None or tune or tuning_file is not None
    if shapes and packed and sized:
        raise UsageError(
            "--shape has sizes for --dump, --tune and --tuning, and ranges for --compile",
            "Compile what was made by a command of its own: onnxfuse compile OUT.onnx --shape batch=1..32",
        )
    todo = jobs(models, output, in_place=in_place)
    single = {"--report": outputs.report, "--junit": outputs.junit, "--markdown": outputs.markdown, "--dump": dump,
              "--tuning": tuning_file}  # fmt: skip
    _check_each(todo, single, packed=packed, measured=tune and tuning_file is None, as_json=as_json)
    options = Options(
        rules=folders,
        only=only,
        skip=skip,
        also=also,
        require=tuple(requirement(text) for text in require),
        strict_fp32=strict_fp32,
        freeze_initializers=freeze,
        shapes={} if packed or sized else dict(shapes),
        external_data=external_data,
        precision=lowering(precision, inputs, tolerance, io_precision, seconds, keep_fp32),
        guard=Guarding(guard_inputs or inputs) if guard else None,
        compile=Compiling(archs, ranges(shapes)) if packed else None,
        dump=None if dump is None else Dump(dump, next(iter(archs), None), _one_size(shapes)),
        keep=outputs.report is not None,
    )

    def tell(result: JobResult) -> None:
        if as_json:
            print_json("optimize", result.facts)
        else:
            console = errors(quiet=verbosity() < 0) if todo[0].target is None else results()
            show(result.facts, result.tuned, console, options.rules, inputs, also)

    def one(job: Job, pending: contextlib.ExitStack) -> JobResult:
        measured = _tuning(tune, tuning_file, job.target, shapes)
        return _one(job, replace(options, tuning=measured), outputs, pending, plain=plain)

    if len(todo) > 1 or (output is not None and todo[0].target not in (output, None)):
        return multiple_models.run(todo, one, as_json=as_json)
    with printing() as print_result, contextlib.ExitStack() as pending:
        result = one(todo[0], pending)
        print_result(lambda: tell(result))
    return EXPECTATION_NOT_MET if result.facts["not_met"] else 0


def _check_each(
    todo: Sequence[Job], single: Mapping[str, Path | None], *, packed: bool, measured: bool, as_json: bool
) -> None:
    """Raise UsageError for an option that names a file of a single model if there are several, or none."""
    single_options = [name for name, path in single.items() if path is not None]
    if len(todo) > 1 and single_options:
        raise UsageError(
            f"{single_options[0]} is of one model, and there are {len(todo)}", "Call it for each by itself."
        )
    if todo[0].target is None and (packed or measured):
        option, remedy = ("--compile", "") if packed else ("--tune", ", or say --tuning FILE")
        raise UsageError(f"{option} writes a file beside OUT.onnx, and - has none", f"Name OUT.onnx{remedy}.")
    if todo[0].target is None and as_json:
        raise UsageError("--json prints to standard output, where the model goes", "Name OUT.onnx.")


def _one(job: Job, options: Options, outputs: Outputs, pending: contextlib.ExitStack, *, plain: bool) -> JobResult:
    """Make one model and write it; it is put in place when `pending` closes, provided that its results could be
    printed."""
    with working("load") as progress:
        make = (
            partial(undo, job.source, progress, options) if plain else partial(optimize, job.source, options, progress)
        )
        target = sys.stdout.buffer if job.target is None else job.target
        optimized = pending.enter_context(written(make, target, progress))
    facts = optimized.as_dict(job.name, job.target_name)
    misses = near_misses.facts(near_misses.ranked(optimized.report), optimized.report) if options.keep else []
    outputs.write("optimize", {**facts, "near": misses}, optimized.models)
    if optimized.removed:
        facts["removed"] = [str(file) for file in optimized.removed]
    return JobResult(facts, optimized.tuned)


def _tuning(tune: bool, file: Path | None, target: Path | None, shapes: Shapes) -> TuningOptions | None:
    """Return the requested tuning, None if there is none; by default the file is next to the model's."""
    if file is None and tune and target is not None:
        file = target.with_suffix(".tuning.json")
        check_no_links(file, file.parent)
    return None if file is None else TuningOptions(file, tune, _size_sets(shapes))


def _size_sets(shapes: Shapes) -> tuple[dict[str, int], ...]:
    """Return the sets of sizes, all names varied together: batch=1,8 sequence=128 are (1, 128) and (8, 128)."""
    count = max((len(sizes) for _, sizes in shapes), default=0)
    return tuple({name: sizes[n % len(sizes)] for name, sizes in shapes} for n in range(count))


def _one_size(shapes: Shapes) -> dict[str, int]:
    several = next((f"{name}={','.join(map(str, sizes))}" for name, sizes in shapes if len(sizes) != 1), None)
    if several is not None:
        raise UsageError(f"--shape {several}: a dump has one size for each dimension", "Say --shape batch=8.")
    return {name: sizes[0] for name, sizes in shapes}
