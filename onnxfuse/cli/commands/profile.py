"""`onnxfuse profile`: memory traffic and time of a model, before and after fusion."""

from typing import Unpack

from rich.markup import escape

from onnxfuse.api.run.running import profile
from onnxfuse.cli.base.console import output, print_json, printing, working
from onnxfuse.cli.base.report_files import Outputs
from onnxfuse.cli.screens.profile import show
from onnxfuse.files.atomic_write import together
from onnxfuse.options.commands import ProfileCommand
from onnxfuse.options.functions import ProfileRun
from onnxfuse.options.schema import part
from onnxfuse.support.errors import UsageError


def command(outputs: Outputs, **given: Unpack[ProfileCommand]) -> int:
    """Run the command and print its result."""
    model, fused, trace = given["model"], given["fused"], given["trace"]
    if given["alone"] and fused is not None:
        raise UsageError("--alone looks at one model, and two were given")
    if not given["time"] and (trace is not None or given["cuda_graph"]):
        raise UsageError("--no-time runs nothing: it goes with neither --trace nor --cuda-graph")
    with printing() as print_result, together():
        with working("load") as progress:
            profiled = profile(
                model, fused, alone=given["alone"], progress=lambda step, done, total: progress(step),
                **part(ProfileRun, given),
            )  # fmt: skip
        report = profiled.report
        facts = {"ok": True, **report.as_dict(), "trace": None if trace is None else str(trace)}
        outputs.write(
            "profile",
            facts,
            {"before": model} if profiled.fused is None else {"before": model, "after": profiled.fused},
        )

        def tell() -> None:
            if given["as_json"]:
                print_json("profile", facts)
                return
            show(report, output(), given["top"], nodes=given["nodes"])
            if trace is not None:
                output().print(f"trace: {escape(str(trace))}", style="dim", soft_wrap=True)

        print_result(tell)
    return 0
