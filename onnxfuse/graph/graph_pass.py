"""A pass: a transformation of one graph, with a name and a sentence."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass

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
