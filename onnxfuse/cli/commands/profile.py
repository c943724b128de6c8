"""`onnxfuse profile`: memory traffic and time of a model, before and after fusion."""

from pathlib import Path

import click
from rich.markup import escape

from onnxfuse.api.run.running import PROFILED, PROVIDERS, profile
from onnxfuse.cli.base.console import output, print_json, printing, working
from onnxfuse.cli.base.parameters import (
    JSON_OPTION,
    PROVIDER_OPTION,
    SEED_OPTION,
    TF32_OPTION,
    ModelFile,
    Shapes,
    custom_ops_option,
    shapes_option,
)
from onnxfuse.cli.base.report_files import Outputs, output_options
from onnxfuse.cli.screens.profile import show
from onnxfuse.files.atomic_write import together
from onnxfuse.support.errors import UsageError

TOP = 12


@click.command("profile")
@click.argument("model", metavar="IN.onnx", type=ModelFile())
@click.argument("fused", metavar="[OUT.onnx]", required=False, type=click.Path(path_type=Path))
@shapes_option("Size of a dynamic dimension (batch=32), or the shape of an input.")
@PROVIDER_OPTION
@TF32_OPTION
@click.option("--no-time", is_flag=True, help="Only count bytes and operations from shapes; run nothing.")
@click.option("--alone", is_flag=True, help="Profile IN.onnx only; do not optimize it for comparison.")
@click.option("--cuda-graph", is_flag=True, help="Time the kernels in a CUDA graph, without host launch overhead.")
@click.option("--top", metavar="N", type=click.IntRange(1), default=TOP, show_default=True, help="Rows of each table.")
@click.option("--nodes", is_flag=True, help="One row per node in the tables, instead of per kind.")
@click.option(
    "--runs", metavar="N", type=click.IntRange(1), default=PROFILED, show_default=True, help="Number of profiled runs."
)
@SEED_OPTION
@click.option("--trace", metavar="FILE.json", type=click.Path(path_type=Path), help="Write one run as a Chrome trace.")
@custom_ops_option
@output_options
@JSON_OPTION
def command(
    model: Path,
    fused: Path | None,
    shapes: Shapes,
    provider: str,
    use_tf32: bool | None,
    no_time: bool,
    alone: bool,
    cuda_graph: bool,
    top: int,
    nodes: bool,
    runs: int,
    seed: int,
    trace: Path | None,
    as_json: bool,
    outputs: Outputs,
) -> int:
    """Report how bytes, operations and time of IN.onnx are distributed, compared with those of OUT.onnx.

    Without OUT.onnx, IN.onnx is optimized in memory; if it already contains fused ops it is profiled alone. Device
    memory traffic is counted from shapes: each node reads each input once and writes each output once. On CUDA CUPTI
    traces every kernel (pip install 'onnxfuse[profile]'), and ONNX Runtime's profiler identifies the node that launched
    it; on the CPU the profiler times the nodes themselves.
    """
    if alone and fused is not None:
        raise UsageError("--alone looks at one model, and two were given")
    if no_time and (trace is not None or cuda_graph):
        raise UsageError("--no-time runs nothing: it goes with neither --trace nor --cuda-graph")
    with printing() as print_result, together():
        with working("load") as progress:
            profiled = profile(
                model,
                fused,
                alone=alone,
                shapes=dict(shapes),
                providers=PROVIDERS[provider],
                time=not no_time,
                cuda_graph=cuda_graph,
                use_tf32=use_tf32,
                runs=runs,
                seed=seed,
                trace=trace,
                progress=lambda step, done, total: progress(step),
            )
        report = profiled.report
        facts = {"ok": True, **report.as_dict(), "trace": None if trace is None else str(trace)}
        outputs.write(
            "profile",
            facts,
            {"before": model} if profiled.fused is None else {"before": model, "after": profiled.fused},
        )

        def tell() -> None:
            if as_json:
                print_json("profile", facts)
                return
            show(report, output(), top, nodes=nodes)
            if trace is not None:
                output().print(f"trace: {escape(str(trace))}", style="dim", soft_wrap=True)

        print_result(tell)
    return 0
