"""Which cases a verification runs, in which order, and at which sizes."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from onnxfuse.support.errors import UsageError
from onnxfuse.verification.cases import planning
from onnxfuse.verification.cases.limits import Limits
from onnxfuse.verification.cases.planning import acceptance_test, enter_branches, plan_of, search_accepted_sizes
from onnxfuse.verification.inputs.input_specs import input_specs
from onnxfuse.verification.inputs.inputs import Case
from onnxfuse.verification.run import sessions
from tests.support.verification.small_models import text_model

CPU = ["CPUExecutionProvider"]
OPEN = text_model("g (float[batch, 4] x) => (float[batch, 4] y) { y = Relu (x) }")
WHOLE = text_model("g (float[3, 4] x) => (float[3, 4] y) { y = Relu (x) }")


def case(name: str, rows: int, seed: int | None = 0) -> Case:
    """Return a case of so many rows."""
    return Case(name, seed, {"x": (rows, 4)}, lambda: {"x": np.ones((rows, 4), np.float32)})


def test_cases_of_equal_shapes_are_adjacent() -> None:
    """Otherwise in their order; real inputs, too, which have the shapes that they have."""
    rows = [c.shapes["x"][0] for c in plan_of(input_specs(OPEN), None, (0, 1), {"batch": (5, 2)})]
    assert rows == sorted(rows, reverse=True)
    given = [{"x": np.full((rows, 4), n, np.float32)} for n, rows in enumerate((2, 7, 2, 1, 7))]
    plan = plan_of(input_specs(OPEN), given, (), None)
    assert [int(c.make()["x"][0, 0]) for c in plan] == [0, 2, 1, 4, 3]
    with pytest.raises(UsageError, match="shapes are those of the real inputs"):
        plan_of(input_specs(OPEN), given, (), {"batch": (1,)})


@pytest.mark.parametrize(
    ("accepted", "asked", "searches"),
    [((1, 3), [1, 3], False), ((3, 8), [1, 3, 8], False), ((1,), [1, 3, 8], True), ((8,), [1, 3], True),
     ((), [1, 3], True)],
)  # fmt: skip
def test_sizes_are_searched_where_most_are_refused(
    monkeypatch: pytest.MonkeyPatch, accepted: Sequence[int], asked: list[int], searches: bool
) -> None:
    """One alone that is accepted may be 1, which broadcasts; no case more is run than decides it."""
    told = list[int]()

    def runs(one: Case) -> bool:
        told.append(one.shapes["x"][0])
        return told[-1] in accepted

    monkeypatch.setattr(planning, "search_sizes", lambda *given: {"batch": (7,)})
    plan = [case("normal", 1), case("wide", 3), case("normal", 1), case("edges", 8), case("empty", 0)]
    found = search_accepted_sizes(runs, OPEN, input_specs(OPEN), plan, {}, lambda: False)
    assert found == ({"batch": (7,)} if searches else {})
    assert told == asked


def test_sizes_are_searched_where_half_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The accepted one may be 1; both are asked."""
    monkeypatch.setattr(planning, "search_sizes", lambda *given: {"batch": (7,)})
    plan = [case("normal", 1), case("wide", 3)]
    found = search_accepted_sizes(
        lambda one: one.shapes["x"] == (1, 4), OPEN, input_specs(OPEN), plan, {}, lambda: False
    )
    assert found == {"batch": (7,)}


@pytest.mark.parametrize(("model", "shapes"), [(WHOLE, {}), (OPEN, {"batch": (2,)}), (OPEN, {"x": (2, 4)})])
def test_nothing_is_searched_where_no_size_is_open(model: onnx.ModelProto, shapes: dict[str, tuple[int, ...]]) -> None:
    """Whether the model takes it or not."""
    plan = [case("normal", 3)]
    assert search_accepted_sizes(lambda _: False, model, input_specs(model), plan, shapes, lambda: False) == {}


def test_the_original_is_asked_and_that_is_told() -> None:
    """By the shapes of the case."""
    told = list[tuple[str, int, int]]()
    runs = acceptance_test(sessions.low_memory_session(WHOLE, CPU), lambda *step: told.append(step))
    assert [runs(case("normal", rows)) for rows in (3, 4)] == [True, False]
    assert told == [(f"inputs that the original accepts: x={rows}x4", 0, 1) for rows in (3, 4)]


def windows() -> onnx.ModelProto:
    """Return a model of which one branch takes windows of 600 samples, and the other any."""
    return text_model(
        """g (float[b, 1, n] x, int64 kind) => (float[b, c] y) <int64 special = {777}> {
        is = Equal (kind, special)
        y = If (is) <
          then_branch = t () => (float[b, k] a) { q = Conv (x, w)  a = ReduceMax <keepdims = 0> (q, last) },
          else_branch = e () => (float[b, l] d) { d = ReduceMax <keepdims = 0> (x, last) }> }""",
        w=np.ones((2, 1, 600), np.float32), last=np.array([2]),
    )  # fmt: skip


@pytest.mark.parametrize("seed", [0, 5])
def test_a_branch_is_entered_by_made_up_inputs_of_the_same_seed(seed: int) -> None:
    """At sizes of its own where it takes no other; real inputs are all that there is."""
    model = windows()
    specs = input_specs(model)
    runs = acceptance_test(sessions.low_memory_session(model, CPU), lambda *step: None)
    plan = plan_of(specs, None, (seed,), {})
    found, never = enter_branches(runs, model, specs, plan, {}, Limits())
    (added,) = found[len(plan) :]
    assert (found[: len(plan)], never) == (plan, ())
    assert (added.name, added.seed, added.shapes["x"]) == ("branch", seed, (1, 1, 600))
    assert int(added.make()["kind"]) == 777
    real = plan_of(specs, [{"x": np.ones((3, 1, 9), np.float32), "kind": np.array(1)}], (), None)
    found, never = enter_branches(runs, model, specs, real, {}, Limits())
    assert found == real
    assert len(never) == 1
    assert enter_branches(runs, OPEN, input_specs(OPEN), plan, {}, Limits()) == (plan, ())


def test_branches_are_searched_for_a_part_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted from where the search begins: 30 of 100 seconds behind the first 10."""
    limits: Any = SimpleNamespace(spent=10.0, seconds=100.0)
    told = list[bool]()

    def entering(*given: Any) -> list[Case]:
        ended: Callable[[], bool] = given[-1]
        for limits.spent in (10.0, 39.0, 40.0, 41.0):
            told.append(ended())
        return []

    monkeypatch.setattr(planning, "cases_entering", entering)
    model = windows()
    plan = plan_of(input_specs(model), None, (0,), {})
    enter_branches(lambda one: True, model, input_specs(model), plan, {}, limits)
    assert told == [False, False, False, True]
