"""Pass manager: passes over models and by rules, phases, and how they run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from onnx import ModelProto

from onnxfuse.fusion.region.choices import Choices
from onnxfuse.graph.graph import Graph
from onnxfuse.graph.graph_pass import Named, Pass, changed, observing, summary_of
from onnxfuse.graph.verification import InvalidGraphError, verify_graph
from onnxfuse.model.fused import FusedOp
from onnxfuse.passes.definitions.expand import Originals
from onnxfuse.rules.language.rule_file import Rule
from onnxfuse.rules.match.report import OptimizeReport
from onnxfuse.rules.rewriting.every_graph import LastRead, for_every_graph
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
    nodes: Mapping[str, str] = field(default_factory=dict)
    """The nodes of the file, as "Op name", by name."""
    written: Originals = field(default_factory=dict)
    """Nodes that were written as what their operators are defined by, by graph, operator
    and first output."""
    last: LastRead = field(default_factory=LastRead)
    """The main graph, which phases that change nothing hand on."""


@dataclass(frozen=True)
class RulePass:
    """A transformation of one graph by rules."""

    name: str
    summary: str
    """What the pass does, in one sentence."""
    run: Callable[[Graph, State], bool]
    """Changes a graph in place, and returns whether it did."""


@dataclass(frozen=True)
class ModelPass:
    """A transformation of a whole model, subgraphs and functions included."""

    name: str
    summary: str
    run: Callable[[ModelProto, State], None]
    """Changes a model in place."""


def rule_pass(function: Callable[[Graph, State], bool]) -> RulePass:
    """Make a pass of a function that applies rules, named and described as by `graph_pass`."""
    return RulePass(function.__name__, summary_of(function), function)


def model_pass(function: Callable[[ModelProto, State], None]) -> ModelPass:
    """Make a pass of a function over a model, named and described as by `graph_pass`."""
    return ModelPass(function.__name__, summary_of(function), function)


GraphPass = Pass | RulePass


@dataclass(frozen=True)
class Phase:
    """Passes that run in sequence: over the model, then over each of its graphs, innermost first.

    With `settles`, graph passes and rewrite rules run to a fixed point.
    """

    name: str
    passes: tuple[GraphPass | ModelPass, ...]
    last: tuple[GraphPass, ...] = ()
    """Passes that run once the others make no more changes; after they change anything the others run again."""
    settles: bool = False

    def run(self, model: ModelProto, state: State) -> None:
        """Run the phase on a model, in place. Raises RuleError for rules that do not reach a fixed point."""
        for one in self.passes:
            if isinstance(one, ModelPass):
                one.run(model, state)
                state.last.is_current = False
        simplify = [_bound(p, state) for p in self.passes if not isinstance(p, ModelPass)]
        if self.settles:
            settle(model, simplify, state.rules, state.report, [_bound(p, state) for p in self.last], state.last)
        elif simplify:
            for_every_graph(model, lambda graph: [run(graph) for run in simplify], state.last)

    def listed(self) -> Iterator[tuple[GraphPass | ModelPass, str]]:
        """Yield its passes, each with "first" or "last" if it does not run with the others."""
        for one in self.passes:
            yield one, "first" if self.settles and isinstance(one, ModelPass) else ""
        for one in self.last:
            yield one, "last"


def _bound(one: GraphPass, state: State) -> Callable[[Graph], bool]:
    """Return the function that runs a pass, and notifies observers of a change."""

    def run(graph: Graph) -> bool:
        has_changed = one.run(graph) if isinstance(one, Pass) else one.run(graph, state)
        if has_changed:
            changed(one, graph)
        return has_changed

    return run


@contextlib.contextmanager
def verifying() -> Iterator[None]:
    """Verify the graph after each pass that changes it, within the `with` block: InvalidGraphError names the pass.

    Tests run in it.
    """

    def verify(one: Named, graph: Graph) -> None:
        if isinstance(one, Rule):  # the passes after it tell as much, and a model has thousands of rewrites
            return
        try:
            verify_graph(graph)
        except InvalidGraphError as error:
            raise InvalidGraphError(f"after the pass {one.name}: {error}") from error

    with observing(verify):
        yield
