"""Exit on a signal, before and after the commands are imported."""

import os
from types import FrameType


def exit_on_signal(signal_number: int, frame: FrameType | None) -> None:
    """Exit at once, with the exit code that shells report for the signal."""
    os._exit(128 + signal_number)
