"""Progress callbacks of functions that take long."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called with the current step, how much of it is done, and the total; 0 of 0 if unknown."""
Steps = Callable[[str], None]
"""Called with the name of each step as it starts."""


def silent(step: str, done: int = 0, total: int = 0) -> None:
    """Report no progress."""


def counting(progress: Steps, task: str = "") -> Progress:
    """Return a callback that names each step with how much of it is done; `task` stands before it."""
    return lambda step, done, total: progress(f"{task} {step}{f' {done} of {total}' if total else ''}".lstrip())


def naming(progress: Steps) -> Progress:
    """Return a callback that names each step alone."""
    return lambda step, done, total: progress(step)
