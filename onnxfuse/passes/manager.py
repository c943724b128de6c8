"""Pass manager: the types of passes and phases, how they run, and hooks that observe each change."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from onnx import ModelProto

from onnxfuse.fusion.region.choices import Choices
from onnxfuse.graph.graph import Graph
from onnxfuse.graph.verification import InvalidGraphError, verify_graph
from onnxfuse.model.fused import FusedOp
from onnxfuse.rules.language.rule_file import Rule
from onnxfuse.rules.match.report import OptimizeReport
from onnxfuse.rules.rewriting.every_graph import for_every_graph
from onnxfuse.rules.rewriting.rewrite import settle


@dataclass
class State:
    """State shared by the passes while one model is optimized."""

    rules: Sequence[Rule]
    """Rules that may still apply."""
    report: OptimizeReport
    choices: Choices | None = None
    """Decisions from measurements (a tuning file); None to use the rules' cost estimates."""
    ops: dict[str, FusedOp] = field(default_factory=dict)
    """Fused ops made so far, by name."""


@dataclass(frozen=True)
class Pass:
    """One graph transformation, with a name and a summary.

    `act` changes a graph and returns whether it did; it also takes the state if `reads_rules` is set.
    """

    name: str
    summary: str
    """What the pass does, in one sentence."""
    act: Callable[..., object]
    when: str = ""
    """"first" or "last" within its phase, "" in between; see `Phase`."""
    reads_rules: bool = False

    def run(self, graph: Graph, state: State) -> bool:
        """Transform a graph, notify observers of a change, and return whether there was one."""
        changed = bool(self.act(graph, state) if self.reads_rules else self.act(graph))
        if changed:
            for observe in _OBSERVERS.get():
                observe(self, graph)
        return changed


@dataclass(frozen=True)
class ModelPass:
    """One transformation of a whole model, subgraphs and functions included."""

    name: str
    summary: str
    act: Callable[[ModelProto, State], object]
    when: str = ""

    def run(self, model: ModelProto, state: State) -> None:
        """Transform a model in place."""
        self.act(model, state)


@dataclass(frozen=True)
class Phase:
    """Passes that run in sequence: over the model, then over each of its graphs, innermost first.

    With `settles`, graph passes and rewrite rules run to a fixed point; passes marked "last" run once the others make
    no more changes, and after they change anything the others run again.
    """

    name: str
    passes: tuple[Pass | ModelPass, ...]
    settles: bool = False

    def run(self, model: ModelProto, state: State) -> None:
        """Run the phase on a model, in place. Raises RuleError for rules that do not reach a fixed point."""
        graph_passes = [p for p in self.passes if isinstance(p, Pass)]
        for one in self.passes:
            if isinstance(one, ModelPass):
                one.run(model, state)
        if self.settles:
            simplify, last = (
                [_bound(p, state) for p in graph_passes if (p.when == "last") is is_last] for is_last in (False, True)
            )
            settle(model, simplify, state.rules, state.report, last)
        elif graph_passes:
            for_every_graph(model, lambda graph: [p.run(graph, state) for p in graph_passes])


def _bound(one: Pass, state: State) -> Callable[[Graph], bool]:
    return lambda graph: one.run(graph, state)


Observe = Callable[[Pass, Graph], None]
"""Called after each pass that changed a graph, with the graph in its new state."""

_OBSERVERS: ContextVar[tuple[Observe, ...]] = ContextVar("_OBSERVERS", default=())


@contextlib.contextmanager
def observing(observe: Observe) -> Iterator[None]:
    """Call `observe` after each pass that changes a graph, within the `with` block."""
    token = _OBSERVERS.set((*_OBSERVERS.get(), observe))
    try:
        yield
    finally:
        _OBSERVERS.reset(token)


@contextlib.contextmanager
def verifying() -> Iterator[None]:
    """Verify the graph after each pass that changes it, within the `with` block: InvalidGraphError names the pass.

    Tests run in it.
    """

    def verify(one: Pass, graph: Graph) -> None:
        try:
            verify_graph(graph)
        except InvalidGraphError as error:
            raise InvalidGraphError(f"after the pass {one.name}: {error}") from error

    with observing(verify):
        yield
