"""`onnxfuse view`: show a model before and after fusion as a page in the browser, served until ^C."""

import os
import sys
from typing import Unpack

from rich.markup import escape

from onnxfuse.api.request.options import Options
from onnxfuse.cli.base.console import output, print_json, working
from onnxfuse.cli.base.report_files import command_line, environment
from onnxfuse.options.commands import ViewCommand
from onnxfuse.options.kinds import extents
from onnxfuse.viewing import serve
from onnxfuse.viewing.times import read_times
from onnxfuse.viewing.view_page import ViewRequest


def command(**given: Unpack[ViewCommand]) -> int:
    """Run the command and print its result."""
    with working("load") as progress:
        request = ViewRequest(
            given["model"],
            given["fused"],
            Options.of({"rules": given["rules"]}),
            None if given["profile"] is None else read_times(given["profile"]),
            extents(given["shapes"]),
            command_line(),
            environment(),
        )
        page = serve(
            request, given["host"], given["port"], browser=not given["no_browser"] and _has_display(),
            progress=progress,
        )  # fmt: skip
    try:
        if given["as_json"]:
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
