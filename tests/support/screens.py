"""Screens as the command line prints them into a file."""

import io

from onnxfuse.support.screen import Blocks, SafeConsole, show


def lines(blocks: Blocks) -> list[str]:
    """Return the printed lines, without spaces at their ends."""
    stream = io.StringIO()
    show(blocks, SafeConsole.of(stream, force_terminal=False))
    return [line.rstrip() for line in stream.getvalue().splitlines()]
