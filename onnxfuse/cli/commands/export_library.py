"""`onnxfuse export-library`: export a folder that serves a fused model without Python."""

import os
from contextlib import nullcontext
from typing import Unpack

from onnxfuse.cli.base.console import print_result, printing, working
from onnxfuse.cli.base.parameters import ranges
from onnxfuse.deploy.compiling import Compiling
from onnxfuse.deploy.exporting import export_library
from onnxfuse.files.atomic_write import filling
from onnxfuse.options.commands import ExportLibraryCommand
from onnxfuse.support.progress import counting


def command(**given: Unpack[ExportLibraryCommand]) -> int:
    """Run the command and print its result."""
    model, folder = given["model"], given["folder"]
    kernels = Compiling.of({**given, "shapes": ranges(given["shapes"])})
    new = not os.path.lexists(folder)  # existing content is checked by the export
    with printing() as tell, filling(folder) if new else nullcontext():
        with working("load") as progress:
            exported = export_library(
                model, folder, kernels, at=given["at"], batch=given["batch"], step=counting(progress)
            )
        tell(lambda: print_result("export-library", exported.as_dict(), exported.screen(), as_json=given["as_json"]))
    return 0
