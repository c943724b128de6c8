"""An attempt of a rewrite is repeated only if something that it read has changed, and would else end as before."""

from collections.abc import Callable
from typing import Any

import pytest
from onnx import ModelProto, TensorProto, helper

import models
from models.survey import samples
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.passes import pipeline
from onnxfuse.passes.manager import State
from onnxfuse.passes.phases import FUSE, LAYOUT, REWRITE
from onnxfuse.rules.language import predicate
from onnxfuse.rules.language.rule_file import shipped
from onnxfuse.rules.match.cause import Cause
from onnxfuse.rules.match.match import Match, Refusal
from onnxfuse.rules.match.refusal import Nearness
from onnxfuse.rules.match.report import OptimizeReport
from onnxfuse.rules.rewriting import rewrite
from onnxfuse.rules.rewriting.attempts import Attempts
from onnxfuse.shapes.types import ValueType
from tests.support.small import graph_of, parse

Search = Callable[[], Match | Refusal | None]

SMALL: dict[str, Any] = {"hidden": 64, "heads": 4, "vocabulary": 100}


def encoder(layers: int) -> ModelProto:
    """Return a small BERT."""
    return models.build("bert_base", layers=layers, intermediate=128, **SMALL)


def sample(name: str) -> ModelProto:
    """Return a model of the survey."""
    (path,) = samples.FOLDER.glob(f"*-{name}-*.xz")
    return samples.unpacked(path.read_bytes())


class Counted(Attempts):
    """Counts the attempts, and repeats those that were kept."""

    calls = searches = 0

    def find(
        self, rewrite: int, graph: Graph, node: Node, search: Search, previous: Nearness | None = None
    ) -> Match | Refusal | None:
        """Return the outcome, which is that of a new attempt."""
        before = Counted.searches

        def counted() -> Match | Refusal | None:
            Counted.searches += 1
            return search()

        found = super().find(rewrite, graph, node, counted, previous)
        Counted.calls += 1
        if Counted.searches == before:
            assert search() == found, (rewrite, node)
        return found


@pytest.fixture(autouse=True)
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count the attempts of rewrites."""
    monkeypatch.setattr(rewrite, "Attempts", Counted)
    monkeypatch.setattr(Counted, "calls", 0)
    monkeypatch.setattr(Counted, "searches", 0)


CHAIN = "g (float[N,8] x) => (float[N,8] y, float[N,8] z) { a = Relu (x) b = Tanh (a) y = Exp (b) z = Neg (x) }"


def replace(graph: Graph, op: str, inputs: list[str]) -> None:
    """Replace the node that computes `a`."""
    node = graph.producer("a")
    assert node is not None
    graph.replace([node], [Node(helper.make_node(op, inputs, ["a"]))])


CHANGES: dict[str, Callable[[Graph], None]] = {
    "producer": lambda graph: replace(graph, "Abs", ["x"]),
    "type": lambda graph: graph.retype("a", ValueType(TensorProto.FLOAT, (3, 8))),
    "reader": lambda graph: graph.replace([graph.nodes[-1]], [Node(helper.make_node("Neg", ["a"], ["z"]))]),
    "nothing": lambda graph: graph.retype("z", ValueType(TensorProto.FLOAT, (3, 8))),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("read_again", [False, True])
def test_a_change_within_reach_repeats_an_attempt(change: str, read_again: bool) -> None:
    """A node is tried again where a value that its attempt queried has another producer, type or readers."""
    model, attempts, searches = parse(CHAIN), Attempts(), list[Node]()
    graph = graph_of(model)

    def attempt() -> None:
        node = graph.producer("b")
        assert node is not None

        def search() -> None:
            searches.append(node)
            graph.type("a")
            graph.readers("a")

        attempts.find(0, graph, node, search)

    attempts.begin(graph)
    attempt()
    attempts.begin(graph)
    attempt()
    assert len(searches) == 1
    CHANGES[change](graph)
    if read_again:
        types = graph.types
        attempts.observe(graph)
        graph.commit()
        graph = graph_of(model)
        graph.types = types
        attempts.resume(graph)
    attempts.begin(graph)
    attempt()
    assert len(searches) == (1 if change == "nothing" else 2)


@pytest.mark.parametrize("name", ["unispeech", "conformer", "qwen2"])
def test_kept_attempts_would_end_as_before(name: str) -> None:
    """What an attempt did not read does not change its outcome."""
    pipeline.run(sample(name))
    assert Counted.searches < Counted.calls


def test_a_round_that_changes_nothing_tries_nothing() -> None:
    """Of a model that no rewrite changes nearly every node is tried once: rounds infer types anew, which stay."""
    pipeline.run(encoder(4))
    assert Counted.searches < 0.6 * Counted.calls


def test_a_condition_is_evaluated_once_for_the_same_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The spellings of one part do not repeat the conditions of another."""
    once = list[str]()

    def holds(one: predicate.Predicate, graph: Graph, match: Match) -> Cause | None:
        once.append(one.text)
        return original(one, graph, match)

    original = predicate.holds
    monkeypatch.setattr(predicate, "holds", holds)
    pipeline.run(encoder(1))
    # One attention has 54 matches of the pattern without a padding mask, all of which fail by its last condition.
    assert 1 <= sum("until(mask, s)" in text for text in once) <= 6, once


def test_a_match_of_a_condition_known_to_fail_is_asked_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The matches of an attention that the same condition refuses are not asked those before it again."""
    asked = list[str]()

    def holds(outcomes: predicate.Outcomes, one: predicate.Predicate, graph: Graph, match: Match) -> Cause | None:
        asked.append(one.text)
        return original(outcomes, one, graph, match)

    original = predicate.Outcomes.holds
    monkeypatch.setattr(predicate.Outcomes, "holds", holds)
    model, state = encoder(1), State(shipped(), OptimizeReport())
    for phase in (REWRITE, LAYOUT, FUSE):
        phase.run(model, state)
    assert 1 <= sum("until(mask, s)" in text for text in asked) <= 6, asked
