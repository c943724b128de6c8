"""`onnxfuse view`: show a model before and after fusion as a page in the browser, served until ^C."""

import os
import sys
from pathlib import Path

import click
from rich.markup import escape

from onnxfuse.api.request.options import Options
from onnxfuse.cli.base.console import output, print_json, working
from onnxfuse.cli.base.parameters import JSON_OPTION, ModelFile, Shapes, rules_option, shapes_option
from onnxfuse.cli.base.report_files import command_line, environment
from onnxfuse.viewing import LOCAL, serve
from onnxfuse.viewing.times import read_times
from onnxfuse.viewing.view_page import ViewRequest


@click.command("view")
@click.argument("model", metavar="MODEL.onnx", type=ModelFile())
@click.argument("fused", metavar="[FUSED.onnx]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--profile",
    metavar="FILE.json",
    type=click.Path(path_type=Path),
    help="Color the nodes by time, from onnxfuse profile --json of the same files.",
)
@shapes_option("Size of a dynamic dimension (batch=32), or the shape of an input, for costs and kernels.")
@rules_option()
@click.option("--host", metavar="ADDRESS", default=LOCAL, show_default=True, help="Address to listen on.")
@click.option(
    "--port", metavar="N", type=click.IntRange(0, 65535), default=0, help="Port to listen on; default a free one."
)
@click.option("--no-browser", is_flag=True, help="Only print the address, without opening a browser.")
@JSON_OPTION
def command(
    model: Path,
    fused: Path | None,
    profile: Path | None,
    shapes: Shapes,
    folders: tuple[Path, ...],
    host: str,
    port: int,
    no_browser: bool,
    as_json: bool,
) -> int:
    """Show MODEL.onnx before and after fusion in the browser, until ^C. Nothing is run, nothing is written.

    Without FUSED.onnx, MODEL.onnx is optimized in memory; if it already contains fused ops it is shown alone. Fused ops
    unfold into their bodies; a panel shows each node's types, bytes, body and CUDA source, and for an unfused one the
    reason. Colors show rules, estimated bytes, or the times of --profile.
    """
    with working("load") as progress:
        request = ViewRequest(
            model,
            fused,
            Options(folders),
            None if profile is None else read_times(profile),
            dict(shapes),
            command_line(),
            environment(),
        )
        page = serve(request, host, port, browser=not no_browser and _has_display(), progress=progress)
    try:
        if as_json:
            print_json("view", {"ok": True, "url": page.url, "summary": page.summary})
        else:
            output().print(f"{escape(page.summary)}: [bold]{escape(page.url)}[/]  (^C ends it)", soft_wrap=True)
        sys.stdout.flush()
        page.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        page.close()
    return 0


def _has_display() -> bool:
    return sys.platform in ("darwin", "win32") or any(os.environ.get(n) for n in ("DISPLAY", "WAYLAND_DISPLAY"))
