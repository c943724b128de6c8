"""`onnxfuse profile`: memory traffic and time of a model, before and after fusion."""

from typing import Unpack

from rich.markup import escape

from onnxfuse.api.run.running import profile
from onnxfuse.cli.base.console import print_result, printing, working
from onnxfuse.cli.base.report_files import Outputs
from onnxfuse.files.atomic_write import together
from onnxfuse.options.commands import ProfileCommand
from onnxfuse.options.functions import ProfileRun
from onnxfuse.options.schema import part
from onnxfuse.support.errors import UsageError
from onnxfuse.support.progress import naming
from onnxfuse.support.screen import Line


def command(outputs: Outputs, **given: Unpack[ProfileCommand]) -> int:
    """Run the command and print its result."""
    model, fused, trace = given["model"], given["fused"], given["trace"]
    if given["alone"] and fused is not None:
        raise UsageError("--alone profiles one model, and two were given")
    if not given["time"] and (trace is not None or given["cuda_graph"]):
        raise UsageError("--no-time runs nothing: it cannot be combined with --trace or --cuda-graph")
    with printing() as tell, together():
        with working("load") as progress:
            profiled = profile(
                model, fused, alone=given["alone"], progress=naming(progress),
                **part(ProfileRun, given),
            )  # fmt: skip
        report = profiled.report
        facts = {"ok": True, **report.as_dict(), "trace": None if trace is None else str(trace)}
        outputs.write(
            "profile",
            facts,
            {"before": model} if profiled.fused is None else {"before": model, "after": profiled.fused},
        )

        traced = [] if trace is None else [Line(f"trace: {escape(str(trace))}", "dim")]
        screen = (*report.screen(given["top"], nodes=given["nodes"]), *traced)
        tell(lambda: print_result("profile", facts, screen, as_json=given["as_json"]))
    return 0
