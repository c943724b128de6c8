"""`onnxfuse inspect`: describe a model on one screen."""

import os
from dataclasses import replace
from typing import Unpack

from onnxfuse.cli.base.console import print_result
from onnxfuse.cli.base.parameters import came_through_stdin
from onnxfuse.explanation.inspecting import inspect
from onnxfuse.options.commands import STREAM, InspectCommand


def command(**given: Unpack[InspectCommand]) -> int:
    """Run the command and print its result."""
    model = given["model"]
    inspection = inspect(model)
    if came_through_stdin(model):
        missing = tuple(os.path.relpath(file, model.parent) for file in inspection.missing)
        inspection = replace(inspection, name=STREAM, missing=missing)
    print_result("inspect", inspection.as_dict(), inspection.screen(), as_json=given["as_json"])
    return 0
