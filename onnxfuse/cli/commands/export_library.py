"""`onnxfuse export-library`: export a folder that serves a fused model without Python."""

import os
from contextlib import nullcontext
from typing import Unpack

from rich.markup import escape

from onnxfuse.api.deploy.exporting import Exported, export_library
from onnxfuse.api.request.options import Compiling, Exporting
from onnxfuse.cli.base.console import output, print_json, printing, working
from onnxfuse.cli.base.parameters import ranges
from onnxfuse.cli.screens.pack_coverage import covered, megabytes
from onnxfuse.files.atomic_write import filling
from onnxfuse.options.commands import ExportLibraryCommand
from onnxfuse.support.plurals import plural


def command(**given: Unpack[ExportLibraryCommand]) -> int:
    """Run the command and print its result."""
    model, folder = given["model"], given["folder"]
    kernels = Compiling.of({**given, "shapes": ranges(given["shapes"])})
    options = Exporting(kernels, given["at"], given["batch"])
    new = not os.path.lexists(folder)  # existing content is checked by the export
    with printing() as print_result, filling(folder) if new else nullcontext():
        with working("load") as progress:

            def step(what: str, done: int, of: int) -> None:
                progress(f"{what} {done} of {of}" if of else what)

            exported = export_library(model, folder, options, step)
        print_result(lambda: print_json("export-library", exported.as_dict()) if given["as_json"] else _print(exported))
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
