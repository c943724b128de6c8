"""The command line: one file per command, which parses, calls and prints."""

import signal

from onnxfuse.cli.base.interrupt import exit_on_signal

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its exit code, handling signals from the start.

    Importing the modules takes most of a second. An interrupt during that time loses nothing, and prints no traceback.
    """
    if arguments is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, exit_on_signal)
    from onnxfuse.cli.main import main as run

    run(arguments)
