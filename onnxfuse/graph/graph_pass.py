"""A pass: a transformation of one graph, with a name and a sentence; and hooks that observe each change."""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from onnxfuse.graph.graph import Graph


@dataclass(frozen=True)
class Pass:
    """A function over a graph, as the pipeline lists and runs it."""

    name: str
    summary: str
    """What the pass does, in one sentence."""
    run: Callable[[Graph], bool]
    """Changes a graph in place, and returns whether it did."""

    def __call__(self, graph: Graph) -> bool:
        """Change a graph in place, and return whether anything changed."""
        return self.run(graph)


def graph_pass(function: Callable[[Graph], bool]) -> Pass:
    """Make a pass of a function: its name, and as its sentence the first paragraph of its docstring."""
    return Pass(function.__name__, summary_of(function), function)


def summary_of(function: Callable[..., object]) -> str:
    """Return the first paragraph of a function's docstring, on one line."""
    return " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())


class Named(Protocol):
    """What changes a graph: a pass, or a rule."""

    @property
    def name(self) -> str:
        """Its name."""
        ...


Observe = Callable[[Named, Graph], None]
"""Called after each change to a graph, with what made it and the graph in its new state."""

_OBSERVERS: ContextVar[tuple[Observe, ...]] = ContextVar("_OBSERVERS", default=())


@contextlib.contextmanager
def observing(observe: Observe) -> Iterator[None]:
    """Call `observe` after each pass that changes a graph and each rule that is applied, within the `with` block."""
    token = _OBSERVERS.set((*_OBSERVERS.get(), observe))
    try:
        yield
    finally:
        _OBSERVERS.reset(token)


def changed(by: Named, graph: Graph) -> None:
    """Tell the observers that a graph was changed."""
    for observe in _OBSERVERS.get():
        observe(by, graph)
