"""Where the commands print: results on standard output, what is going on on standard error."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

WIDTH = 118
"""Columns. Tables are never narrower: in a CI log or a small window a wrapped line is better than a cut number."""


def output() -> Console:
    """Return the console for results."""
    return Console(highlight=False, width=max(WIDTH, Console().width))


@contextmanager
def working(first: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner with the step at hand while the block runs; yields the function that names the next step."""
    with Console(stderr=True).status(f"{first} ...") as status:
        yield lambda step: status.update(f"{step} ...")
