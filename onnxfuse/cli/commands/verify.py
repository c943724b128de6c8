"""`onnxfuse verify`: compare a fused model with its original by error against a float64 reference."""

from typing import Unpack

from onnxfuse.api.run.running import verify
from onnxfuse.cli.base.console import bar, print_result, printing
from onnxfuse.cli.base.report_files import Outputs
from onnxfuse.files.atomic_write import together
from onnxfuse.options.commands import VerifyCommand
from onnxfuse.options.functions import VerifyRun
from onnxfuse.options.schema import part
from onnxfuse.support.errors import MISMATCH


def command(outputs: Outputs, **given: Unpack[VerifyCommand]) -> int:
    """Run the command and print its result."""
    original, fused, seed = given["original"], given["fused"], given["seed"]
    options = part(VerifyRun, given)
    options["seeds"] = range(seed, seed + given["seed_count"])
    if isinstance(given["providers"], tuple):
        options["providers"], options["fused_providers"] = given["providers"]
    with printing() as tell, together():
        with bar("opening") as show_progress:
            report = verify(original, fused, progress=show_progress, **options)
        outputs.write("verify", report.as_dict(), {"before": original, "after": fused})
        tell(lambda: print_result("verify", report.as_dict(), report.screen(), as_json=given["as_json"]))
    return 0 if report.ok else MISMATCH
