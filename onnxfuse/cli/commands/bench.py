"""`onnxfuse bench`: time the fused model against the original at ONNX Runtime's best settings."""

from typing import Unpack

from rich.markup import escape

from onnxfuse.api.run.running import bench
from onnxfuse.cli.base.console import bar, print_result, printing
from onnxfuse.cli.base.report_files import Outputs
from onnxfuse.files.atomic_write import together
from onnxfuse.options.commands import BenchCommand
from onnxfuse.options.functions import BenchRun
from onnxfuse.options.schema import part
from onnxfuse.support.errors import EXPECTATION_NOT_MET
from onnxfuse.support.screen import Line


def command(outputs: Outputs, **given: Unpack[BenchCommand]) -> int:
    """Run the command and print its result."""
    original, plot, min_speedup = given["original"], given["plot"], given["min_speedup"]
    with printing() as tell, together():
        with bar("optimize" if given["fused"] is None else "load") as show_progress:
            timed = bench(original, given["fused"], progress=show_progress, **part(BenchRun, given))
        report = timed.report
        missed = () if min_speedup is None else report.missed(min_speedup)
        not_met = [f"--min-speedup {min_speedup:g}: {b.measured}" for b in missed]
        facts = {"ok": not missed, **report.as_dict(), "min_speedup": min_speedup, "not_met": not_met}
        facts["plot"] = None if plot is None else str(plot)
        outputs.write("bench", facts, {"before": original, "after": timed.fused})
        plotted = [] if plot is None else [Line(f"plot: {escape(str(plot))}", "dim")]
        screen = (*report.screen(not_met, memory=given["memory"]), *plotted)
        tell(lambda: print_result("bench", facts, screen, as_json=given["as_json"]))
    return EXPECTATION_NOT_MET if missed else 0
