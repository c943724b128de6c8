"""Screens as the command line prints them, where there is room for every line."""

import io

from onnxfuse.support.screen import WIDE, Blocks, SafeConsole, show


def lines(blocks: Blocks) -> list[str]:
    """Return the printed lines, without spaces at their ends."""
    stream = io.StringIO()
    show(blocks, SafeConsole(file=stream, width=WIDE, force_terminal=False))
    return [line.rstrip() for line in stream.getvalue().splitlines()]
