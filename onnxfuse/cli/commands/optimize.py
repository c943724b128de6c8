"""`onnxfuse optimize`: apply the rules, write the model, and print a summary on one screen."""

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Unpack

from onnxfuse.api.optimize.optimizing import optimize, undo, written
from onnxfuse.api.optimize.screen import screen
from onnxfuse.api.request.options import Dump, Options, TuningOptions
from onnxfuse.cli.base.console import errors, print_json, printing, verbosity, working
from onnxfuse.cli.base.console import output as results
from onnxfuse.cli.base.parameters import ranges
from onnxfuse.cli.base.report_files import Outputs
from onnxfuse.cli.base.targets import Job, jobs
from onnxfuse.cli.commands import multiple_models
from onnxfuse.cli.commands.multiple_models import JobResult
from onnxfuse.deploy.compiling import Compiling
from onnxfuse.files.atomic_write import check_no_links, same_file
from onnxfuse.options.commands import OptimizeCommand
from onnxfuse.options.kinds import extents
from onnxfuse.rules.match import near_misses
from onnxfuse.support.errors import EXPECTATION_NOT_MET, OnnxfuseError, UsageError
from onnxfuse.support.screen import show

Sizes = Mapping[str, Sequence[int]]
"""Values of --shape by name."""


def command(outputs: Outputs, **given: Unpack[OptimizeCommand]) -> int:
    """Run the command and print its result."""
    archs, shapes, packed, tune = given["archs"], extents(given["shapes"]), given["compile"], given["tune"]
    dump, tuning_file, output = _path(given["dump"]), _path(given["tuning"]), _path(given["output"])
    as_json, undone = given["as_json"], given["undo"]
    if dump is not None and len(archs) > 1:
        raise UsageError(
            f"--dump shows the kernels of one GPU, and --arch names {len(archs)}: {', '.join(archs)}",
            "Say --arch sm_90a; or compile in a second step: onnxfuse compile OUT.onnx --arch sm_80,sm_90a",
        )
    sized = dump is not None or tune or tuning_file is not None
    if shapes and packed and sized:
        raise UsageError(
            "--shape has sizes for --dump, --tune and --tuning, and ranges for --compile",
            "Compile the result in a second step: onnxfuse compile OUT.onnx --shape batch=1..32",
        )
    _check_quoted(given["require"])
    dry = given["dry_run"]
    todo = jobs(given["models"], output, in_place=given["in_place"], dry=dry)
    several = len(todo) > 1 or (output is not None and todo[0].target not in (output, None))
    if dry:  # the targets are valid, and no folder is created
        todo = [replace(job, target=job.source) for job in todo]
    single = {"--report": outputs.report, "--junit": outputs.junit, "--markdown": outputs.markdown, "--dump": dump,
              "--tuning": tuning_file}  # fmt: skip
    _check_each(todo, single, packed=packed, measured=tune and tuning_file is None, as_json=as_json)
    made_with: Mapping[str, object] = {**given, "shapes": {} if packed or sized else shapes}
    options = replace(
        Options.of(made_with),
        external_data=given["external_data"],
        compile=Compiling(archs, ranges(shapes)) if packed else None,
        dump=None if dump is None else Dump(dump, next(iter(archs), None), _one_size(shapes)),
        keep=outputs.report is not None,
    )

    def tell(result: JobResult) -> None:
        if as_json:
            print_json("optimize", result.facts)
        else:
            repeated = {**made_with, "tuning": result.facts.get("tuning", {}).get("file")}
            console = errors(quiet=verbosity() < 0) if todo[0].target is None else results()
            show(screen(result.facts, result.tuned, repeated), console)

    def one(job: Job, pending: contextlib.ExitStack) -> JobResult:
        measured = _tuning(tune, tuning_file, job.target, shapes)
        return _one(job, replace(options, tuning=measured), outputs, pending, undone=undone, dry=dry)

    if several:
        return multiple_models.run(todo, one, as_json=as_json)
    with printing() as print_result, contextlib.ExitStack() as pending:
        result = one(todo[0], pending)
        print_result(lambda: tell(result))
    return EXPECTATION_NOT_MET if result.facts["not_met"] else 0


def _check_quoted(required: Sequence[str]) -> None:
    """Raise UsageError if a shell took `>=3` of `--require gemm>=3` for a file that the output goes to."""
    try:
        file = os.path.basename(os.readlink("/proc/self/fd/1"))
    except OSError:
        return
    if required and re.fullmatch(r"=?\d+", file) and re.fullmatch(r"\w+", required[-1]):
        raise UsageError(
            f"--require {required[-1]}: the shell sends the output to the file '{file}'",
            f'Quote the requirement: --require "{required[-1]}>{file}".',
        )


def _path(given: str | Path | None) -> Path | None:
    return None if given is None else Path(given)


def _check_each(
    todo: Sequence[Job], single: Mapping[str, Path | None], *, packed: bool, measured: bool, as_json: bool
) -> None:
    """Raise UsageError for an option that names a file of a single model if there are several, or none."""
    single_options = [name for name, path in single.items() if path is not None]
    if len(todo) > 1 and single_options:
        raise UsageError(
            f"{single_options[0]} is for one model, and there are {len(todo)}", "Run the command once for each."
        )
    if todo[0].target is None and (packed or measured):
        option, remedy = ("--compile", "") if packed else ("--tune", ", or use --tuning FILE")
        raise UsageError(f"{option} writes a file beside OUT.onnx, and - has none", f"Name OUT.onnx{remedy}.")
    if todo[0].target is None and as_json:
        raise UsageError("--json prints to standard output, where the model goes", "Name OUT.onnx.")


def _one(
    job: Job, options: Options, outputs: Outputs, pending: contextlib.ExitStack, *, undone: bool, dry: bool
) -> JobResult:
    """Make one model and write it, unless `dry`; it is put in place when `pending` closes, provided that its results
    could be printed."""
    stale = _stale_output(job)
    pending.enter_context(_hinting(stale))
    with working("load") as progress:
        make = (
            partial(undo, job.source, progress, options) if undone else partial(optimize, job.source, options, progress)
        )
        target = sys.stdout.buffer if job.target is None else job.target
        optimized = make() if dry else pending.enter_context(written(make, target, progress))
    facts = optimized.as_dict(job.name, job.target_name)
    if dry:
        facts["target"] = None
    if optimized.missed and stale:
        facts["notes"] = [*facts["notes"], stale]
    misses = near_misses.facts(near_misses.ranked(optimized.report), optimized.report) if options.keep else []
    outputs.write("optimize", {**facts, "near": misses}, optimized.models)
    if optimized.removed:
        facts["removed"] = [str(file) for file in optimized.removed]
    return JobResult(facts, optimized.tuned)


def _stale_output(job: Job) -> str:
    """Return what to know of a file at the job's target if it is not replaced; empty if there is none, or if it is the
    model that is read."""
    if job.target is None or not os.path.isfile(job.target) or same_file(job.source, job.target):
        return ""
    return f"{job.target} not written: the file there is of an earlier run"


@contextlib.contextmanager
def _hinting(line: str) -> Iterator[None]:
    """Add a line, unless it is empty, to the hint of an error of the block."""
    try:
        yield
    except OnnxfuseError as error:
        error.hint = "\n".join(filter(None, (error.hint, line)))
        raise


def _tuning(tune: bool, file: Path | None, target: Path | None, shapes: Sizes) -> TuningOptions | None:
    """Return the requested tuning, None if there is none; by default the file is next to the model's."""
    if file is None and tune and target is not None:
        file = target.with_suffix(".tuning.json")
        check_no_links(file, file.parent)
    return None if file is None else TuningOptions(file, tune, _size_sets(shapes))


def _size_sets(shapes: Sizes) -> tuple[dict[str, int], ...]:
    """Return the sets of sizes, all names varied together: batch=1,8 sequence=128 are (1, 128) and (8, 128)."""
    count = max((len(sizes) for sizes in shapes.values()), default=0)
    return tuple({name: sizes[n % len(sizes)] for name, sizes in shapes.items()} for n in range(count))


def _one_size(shapes: Sizes) -> dict[str, int]:
    several = next((f"{name}={','.join(map(str, sizes))}" for name, sizes in shapes.items() if len(sizes) != 1), None)
    if several is not None:
        raise UsageError(f"--shape {several}: a dump takes one size for each dimension", "Use --shape batch=8.")
    return {name: sizes[0] for name, sizes in shapes.items()}
