"""The command line: one file per command; each parses, calls and prints."""

import signal

from onnxfuse.cli.base.interrupt import leave

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave the process with its exit code, from the first moment on.

    Reading its modules in takes most of a second. Whoever stops it meanwhile has lost nothing, and sees no traceback.
    """
    if arguments is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)
    from onnxfuse.cli.main import main as run

    run(arguments)
