"""One case after the other: what is run, what is left out and why, and what a second look replaces."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest

from onnxfuse.support.errors import ModelError, UsageError
from onnxfuse.verification.cases.limits import Limits
from onnxfuse.verification.cases.planning import shape_key
from onnxfuse.verification.compare.case_comparison import (
    FUSED_FAILS,
    Comparison,
    Float32Check,
    OriginalRuns,
    OutputFacts,
    References,
    _replaced,
)
from onnxfuse.verification.compare.judging import Judging
from onnxfuse.verification.inputs.inputs import Case
from onnxfuse.verification.reference.float64_reference import float32_reference, reference_for
from onnxfuse.verification.report.rows import LEFT_OUT, OutputRow
from onnxfuse.verification.run import sessions
from onnxfuse.verification.tolerance.output_error import NOTHING
from onnxfuse.verification.variants.broken_original import Unoptimized
from tests.support.verification.small_models import text_model

CPU = ["CPUExecutionProvider"]
HEAD = "g (float[n, 8] x) => (float[n, 8] y)"
RIGHT = text_model(f"{HEAD} {{ y = Tanh(x) }}")
WRONG = text_model(f"{HEAD} {{ y = Sin(x) }}")
TALL = text_model(f"{HEAD} {{ t = Tanh(x)  y = Reshape(t, s) }}", s=np.array([2, 8]))
"""Runs on two rows alone."""


def comparison(
    original: onnx.ModelProto = RIGHT,
    fused: onnx.ModelProto = RIGHT,
    limits: Limits | None = None,
    needs: Mapping[Any, int] | None = None,
    **runs: Any,
) -> Comparison:
    session = sessions.ort_session(original, CPU)
    made = OriginalRuns(session, iter(()), None, (), lambda: (), Unoptimized(lambda: original), lambda: None, **runs)
    references = References(reference_for(original, "float64", []), lambda why: float32_reference(original, why))
    facts = OutputFacts((), (), False, {}, {})
    return Comparison(
        made, sessions.ort_session(fused, CPU), references, facts, Judging(), limits or Limits(60.0, 1 << 40),
        needs or {}, Float32Check(None, ""),
    )  # fmt: skip


def case(rows: int, seed: int | None = 0, fill: float | None = None) -> Case:
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, 8)).astype(np.float32)
    return Case("normal", seed, {"x": x.shape}, lambda: {"x": x if fill is None else np.full_like(x, fill)})


def silent(*_: object) -> None:
    """Show no progress."""


def test_each_case_has_a_row_for_each_output() -> None:
    """In the order in which they were run, with its time."""
    found = comparison(fused=WRONG)
    shown = list[tuple[Any, ...]]()
    found.run_all([case(1), case(3)], lambda *told: shown.append(told))
    assert shown == [("normal x=1x8", 0, 2), ("normal x=3x8", 1, 2)]
    assert [(row.output, row.case, bool(row.fault)) for row in found.rows] == [("y", 0, True), ("y", 1, True)]
    assert [c.note for c in found.cases] == ["", ""]
    assert found.longest == max(c.seconds for c in found.cases) > 0
    right = comparison()
    right.run_all([case(1), case(3)], silent)
    assert [row.fault for row in right.rows] == ["", ""]


def test_a_case_that_the_fused_model_alone_refuses_is_a_problem() -> None:
    """It has no rows; one that the original refuses is noted, and given by the user it is an error."""
    found = comparison(fused=TALL)
    found.run(case(3))
    assert [c.note for c in found.cases] == [FUSED_FAILS]
    assert found.problems[0].startswith("the fused model fails where the original runs (x=3x8): ")
    assert found.rows == []
    refusing = comparison(original=TALL)
    refusing.run(case(3))
    assert refusing.cases[0].note.startswith("the original refuses it: ")
    assert refusing.problems == []
    with pytest.raises(UsageError, match="the original fails on normal: "):
        refusing.run(case(3, seed=None))


def test_what_costs_too_much_is_left_out() -> None:
    """Never the cheapest: something is run however little memory there is."""
    needs = {shape_key(case(rows)): 10**9 * rows for rows in (1, 3)}
    found = comparison(limits=Limits(60.0, 1 << 20), needs=needs)
    found.run_all([case(1), case(3)], silent)
    assert [c.note for c in found.cases] == ["", f"{LEFT_OUT}about 3.0 GB, and it may take 1.0 MB (--memory)"]
    enough = comparison(limits=Limits(60.0, 3 * 10**9), needs=needs)
    enough.run_all([case(1), case(3)], silent)
    assert [c.note for c in enough.cases] == ["", ""]


def test_what_takes_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the slowest case so far; the first is run whatever it takes."""
    found = comparison()
    monkeypatch.setattr(Limits, "spent", property(lambda limits: 58.0))
    found.run(case(1))
    assert found.cases[-1].note == ""
    for longest, left_out in ((2.0, False), (2.5, True)):
        found.longest = longest
        found.run(case(3))
        assert found.cases[-1].note.startswith(LEFT_OUT) is left_out
    assert "the time of 60 s is used up (--time)" in found.cases[-1].note
    found.doubted = False
    found.extend_limits()
    assert found.doubted


def test_a_case_that_is_run_again_takes_the_place_of_the_first_run() -> None:
    """Unless it is left out now."""
    found = comparison(fused=WRONG)
    found.run_all([case(1), case(3), case(2)], silent)
    before = list(found.rows)
    found.run_again(1, case(3, fill=0.0))
    assert [(row.case, bool(row.fault)) for row in found.rows] == [(0, True), (1, False), (2, True)]
    assert len(found.cases) == 3
    assert [found.rows[0], found.rows[2]] == [before[0], before[2]]
    rows = list(found.rows)
    found.limits = replace(found.limits, seconds=0.0)
    found.run_again(1, case(3))
    assert found.rows == rows
    assert len(found.cases) == 3


def test_rows_of_a_case_are_replaced_in_its_place() -> None:
    rows = [OutputRow(name, "float32", n, NOTHING) for n in range(3) for name in "ab"]
    again = [OutputRow("c", "float32", 3, NOTHING)]
    assert [(r.output, r.case) for r in _replaced(rows, again, 1)] == [
        ("a", 0), ("b", 0), ("c", 1), ("a", 2), ("b", 2)
    ]  # fmt: skip


def opens(session: Any) -> Callable[[], Any]:
    def opened() -> Any:
        if session is None:
            raise ModelError("CUDA alone has it")
        return session

    return opened


def test_a_doubtful_original_is_run_on_the_cpu_too() -> None:
    """Where it is not anyway, and all its operators are there."""
    session = sessions.ort_session(RIGHT, CPU)
    for twin in (session, None):
        found = comparison(on_cpu=opens(twin))
        assert found.by_twin(case(2).make()) == {}
        found.treat_as_doubtful()
        assert found.doubtful
        assert found.twin is twin
    found = comparison(on_cpu=opens(session))
    found.treat_as_doubtful()
    np.testing.assert_allclose(found.by_twin(case(2).make())["y"], np.tanh(case(2).make()["x"]), rtol=1e-6)
    found.twin = sessions.ort_session(TALL, CPU)
    assert found.by_twin(case(3).make()) == {}


def test_a_case_without_a_true_result_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """And given by the user it is an error: are these its inputs?"""
    found = comparison()

    def refused(*_: object) -> None:
        raise sessions.ORT_ERRORS[0]("index out of range")

    monkeypatch.setattr(found, "reference_of", refused)
    found.run(case(2))
    assert found.cases[-1].note == "the original runs, but has no true result: index out of range"
    with pytest.raises(UsageError, match="has no true result"):
        found.run(case(2, seed=None))


def test_lack_of_memory_ends_the_reference_in_float64() -> None:
    """In float32 from then on, which the report says; the time of the first case counts no more."""

    def too_much(_: object) -> dict[str, np.ndarray]:
        raise MemoryError

    found = comparison()
    found.truth = replace(found.truth, evaluate=too_much)
    found.run(case(2))
    assert found.truth.kind == "float32"
    assert found.longest == 0.0
    assert [row.fault for row in found.rows] == [""]
