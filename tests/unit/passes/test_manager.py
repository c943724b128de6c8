"""Phases run passes in order, to a fixed point where they settle, and a pass that breaks a graph is named."""

from collections.abc import Callable
from functools import partial

import pytest
from onnx import ModelProto

from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import graph_pass
from onnxfuse.graph.rewriter import Rewriter, rewrite, substitute
from onnxfuse.graph.verification import InvalidGraphError
from onnxfuse.passes.manager import Phase, State, model_pass, rule_pass, verifying
from onnxfuse.rules.match.report import OptimizeReport
from tests.support.small import parse


def model() -> ModelProto:
    """Return a model with a body."""
    return parse("""g (float[4] x, bool c) => (float[4] y) {
      a = Abs (x)
      y = If (c) <then_branch = t () => (float[4] p) { p = Abs (a) },
                  else_branch = e () => (float[4] q) { q = Neg (a) }>
    }""")


OTHERS = ("Abs", "Neg", "Ceil", "Floor", "Round", "Sqrt")


def written(op: str, node: Node, to: Rewriter) -> bool:
    """Write another operator in place of a node."""
    to.add(op, node.inputs[0], output=node.outputs[0])
    return True


def state() -> State:
    """Return the state of an optimization without rules."""
    return State((), OptimizeReport())


def test_passes_over_the_model_come_first_then_each_graph_innermost_first() -> None:
    """In the order in which they are listed."""
    order = list[str]()

    @model_pass
    def whole(model: ModelProto, state: State) -> None:
        """Notes the model."""
        order.append("model")

    @graph_pass
    def each(graph: Graph) -> bool:
        """Notes a graph."""
        order.append(graph.nodes[0].op)
        return False

    @rule_pass
    def later(graph: Graph, state: State) -> bool:
        """Notes a graph, with the state."""
        assert isinstance(state.report, OptimizeReport)
        order.append(f"later {graph.nodes[0].op}")
        return False

    Phase("one", (each, whole, later)).run(model(), state())
    assert order[0] == "model"
    assert order[-2:] == ["Abs", "later Abs"]
    assert order.count("Neg") == order.count("later Neg") == 1
    assert (whole.name, whole.summary) == ("whole", "Notes the model.")


def test_a_phase_that_settles_runs_until_nothing_changes_and_its_last_passes_then() -> None:
    """What they change sets the others going again."""
    left, log = {"first": 3, "last": 2}, list[str]()

    def counting(name: str) -> Callable[[Graph], bool]:
        def run(graph: Graph) -> bool:
            if graph.parent is not None or not left[name]:
                return False
            left[name] -= 1
            log.append(name)
            return rewrite(graph, graph.nodes[0], partial(written, OTHERS[len(log)]))

        run.__name__, run.__doc__ = name, "Counts."
        return run

    phase = Phase("one", (graph_pass(counting("first")),), last=(graph_pass(counting("last")),), settles=True)
    phase.run(model(), state())
    assert log == ["first"] * 3 + ["last"] * 2
    assert [(one.name, when) for one, when in phase.listed()] == [("first", ""), ("last", "last")]


def test_a_pass_that_breaks_a_graph_is_named() -> None:
    """A value that nothing defines, after the pass that left it; without `verifying` nobody looks."""

    @graph_pass
    def breaking(graph: Graph) -> bool:
        """Reads what is not there."""
        if graph.parent is not None:
            return False
        substitute(graph, graph.nodes[0], {0: "nothing"})
        return True

    @graph_pass
    def sound(graph: Graph) -> bool:
        """Changes nothing that matters."""
        return False

    with verifying(), pytest.raises(InvalidGraphError, match=r"after the pass breaking: .*nothing"):
        Phase("one", (sound, breaking)).run(model(), state())
    Phase("one", (sound, breaking)).run(model(), state())
