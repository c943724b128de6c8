"""Progress of the library's functions: a bar in a notebook, otherwise none, unless the caller decides.

In a notebook the bar is an output that is updated in place and removed at the end; it needs only IPython, which every
notebook has, and no widgets.
"""

import importlib
import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar

ProgressArgument = Callable[..., Any] | bool | None
"""A callback; True or False for a bar or none; None for a bar in notebooks only."""
ProgressCallback = Callable[[str, int, int], None]

WIDTH = 90
"""Width of the bar in a notebook, in columns."""

SECONDS = 0.1
"""Minimum interval between updates in a notebook: each is a message to the browser."""


def in_notebook() -> bool:
    """Return whether this runs in a notebook kernel, as opposed to a terminal shell."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell" or "google.colab" in type(shell).__module__


@contextmanager
def progress_callback(argument: ProgressArgument, first: str) -> Iterator[ProgressCallback | None]:
    """Yield a progress callback (step, done, total), or None if no progress is reported.

    `first` names the first step.
    """
    notebook = in_notebook()
    if callable(argument):
        yield argument
    elif not (notebook if argument is None else argument):
        yield None
    else:
        with _in_notebook(first) if notebook else _on_terminal(first) as show:
            yield show


@contextmanager
def stepping(argument: ProgressArgument, first: str) -> Iterator[Callable[[str], Any]]:
    """Like `progress_callback`, for functions that only name their steps; a callback of the caller's is called with the
    names."""
    if callable(argument):
        yield argument
        return
    with progress_callback(argument, first) as show:
        yield (lambda step: None) if show is None else (lambda step: show(step, 0, 0))


@contextmanager
def _on_terminal(first: str) -> Iterator[ProgressCallback]:
    from rich.console import Console

    with _bar(Console(stderr=True), first) as bar:
        yield lambda step, done, total: _update(bar, step, done, total)


@contextmanager
def _in_notebook(first: str) -> Iterator[ProgressCallback]:
    display = importlib.import_module("IPython.display").display  # available in every notebook
    bar = _bar(_silent_console(), first)
    last_update, handle = 0.0, display(_RenderedBar(bar), display_id=True)

    def show(step: str, done: int, total: int) -> None:
        nonlocal last_update
        _update(bar, step, done, total)
        if time.monotonic() - last_update >= SECONDS:
            last_update = time.monotonic()
            handle.update(_RenderedBar(bar))

    try:
        yield show
    finally:
        handle.update(_RenderedBar(None))


class _RenderedBar:
    """A bar as drawn in a notebook."""

    def __init__(self, bar: "Bar | None") -> None:
        self._html = self._text = ""
        if bar is not None:
            console = _silent_console(record=True)
            console.print(bar.get_renderable())
            self._html = console.export_html(inline_styles=True, code_format="<pre>{code}</pre>", clear=False)
            self._text = console.export_text().rstrip()

    def _repr_html_(self) -> str:
        return self._html

    def __repr__(self) -> str:
        return self._text


def _silent_console(**options: Any) -> "Console":
    from rich.console import Console

    return Console(file=io.StringIO(), width=WIDTH, force_jupyter=False, force_terminal=True, **options)


def _bar(console: "Console", first: str) -> "Bar":
    from rich.markup import escape
    from rich.progress import Progress

    bar = Progress(console=console, transient=True)
    bar.add_task(escape(first), total=None)
    return bar


def _update(bar: "Bar", step: str, done: int, total: int) -> None:
    from rich.markup import escape

    bar.update(bar.task_ids[0], description=escape(step), completed=done, total=total or None)
