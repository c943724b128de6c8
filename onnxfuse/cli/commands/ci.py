"""`onnxfuse ci`: optimize, verify and time the models of onnxfuse.toml, and check them against it and onnxfuse.lock."""

from contextlib import ExitStack
from typing import Unpack

from onnxfuse.api.run.ci import checked
from onnxfuse.cli.base.console import print_result, printing, working
from onnxfuse.cli.base.report_files import Outputs
from onnxfuse.options.commands import CiCommand
from onnxfuse.options.functions import CiChecks
from onnxfuse.options.schema import part


def command(outputs: Outputs, **given: Unpack[CiCommand]) -> int:
    """Run the command and print its result."""
    # Outputs and the lock are put in place last: if a report cannot be written, they remain unchanged.
    with printing() as tell, ExitStack() as pending:
        with working("read") as progress:
            result = pending.enter_context(checked(given["config"], progress=progress, **part(CiChecks, given)))
        outputs.write("ci", result.as_dict(), by_model={o.entry.name: o.models for o in result.outcomes})
        tell(lambda: print_result("ci", result.as_dict(), result.screen(), as_json=given["as_json"]))
    return result.exit_code
