"""`onnxfuse export-library`: export a folder that serves a fused model without Python."""

import os
from contextlib import nullcontext
from pathlib import Path

import click
from rich.markup import escape

from onnxfuse.api.deploy.exporting import Exported, export_library
from onnxfuse.api.request.options import Compiling, Exporting
from onnxfuse.cli.base.console import output, print_json, printing, working
from onnxfuse.cli.base.parameters import JSON_OPTION, RANGE_OPTION, Shapes, arch_option, ranges, rules_option
from onnxfuse.cli.screens.pack_coverage import covered, megabytes
from onnxfuse.files.atomic_write import filling
from onnxfuse.support.plurals import plural


@click.command("export-library")
@click.argument("model", metavar="MODEL.onnx", type=click.Path(path_type=Path))
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@arch_option()
@RANGE_OPTION
@click.option("--ptx/--no-ptx", default=True, show_default=True, help="Include PTX for later GPUs.")
@click.option("--at", metavar="PATH", help="Path of DIR as the server sees it; default where it is written.")
@click.option(
    "--batch/--no-batch",
    default=None,
    help="Whether Triton batches requests along the common first dimension; default if there is one.",
)
@rules_option("Folder of custom rules that made the model; may be repeated.")
@JSON_OPTION
def command(
    model: Path,
    folder: Path,
    archs: tuple[str, ...],
    shapes: Shapes,
    ptx: bool,
    at: str | None,
    batch: bool | None,
    folders: tuple[Path, ...],
    as_json: bool,
) -> int:
    """Write DIR with the model, the library and the kernels to serve MODEL.onnx from C++, C#, Java or Triton.

    MODEL.onnx is an output of `onnxfuse optimize`. DIR is also a model of a Triton repository. Needs no GPU.
    """
    options = Exporting(Compiling(archs, ranges(shapes), ptx, folders), at, batch)
    new = not os.path.lexists(folder)  # existing content is checked by the export
    with printing() as print_result, filling(folder) if new else nullcontext():
        with working("load") as progress:

            def step(what: str, done: int, of: int) -> None:
                progress(f"{what} {done} of {of}" if of else what)

            exported = export_library(model, folder, options, step)
        print_result(lambda: print_json("export-library", exported.as_dict()) if as_json else _print(exported))
    return 0


def _print(exported: Exported) -> None:
    console, facts = output(), exported.as_dict()
    console.print(
        f"[bold green]exported:[/] {megabytes(facts['bytes'])} in {exported.seconds:.1f} s: {escape(facts['folder'])}",
        soft_wrap=True,
    )
    covered({**facts["pack"], "without": {}}, console)
    for p in exported.placements:
        if p.runs_as != "kernel":
            implementation = "ONNX Runtime's own op" if p.runs_as == "library" else "its body"
            console.print(
                f"{escape(p.op)}: {implementation}{escape(f'; {p.reason}' if p.reason else '')}",
                style="dim",
                soft_wrap=True,
            )
    if exported.triton:
        console.print(f"[yellow]no config.pbtxt:[/] {escape(exported.triton)}", soft_wrap=True)
    if exported.batch is not None:
        name, batch_size = exported.batch
        console.print(
            f"Triton joins requests along {escape(name)}, to {plural(batch_size, 'row')}; "
            "if rows depend on each other, export with --no-batch",
            soft_wrap=True,
        )
