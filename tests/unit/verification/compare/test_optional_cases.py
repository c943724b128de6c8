"""Cases that are tried and recorded only where their rows tell something."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from onnxfuse.verification.cases.limits import Limits
from onnxfuse.verification.compare.case_comparison import FUSED_FAILS
from onnxfuse.verification.compare.optional_cases import NOT_INFORMATIVE, try_case


class Comparison:
    """Stands for a comparison: `run` records a row, a case, and what is told of it."""

    def __init__(self, note: str = "", *, changes: bool = False, wide: bool = True) -> None:
        self.note, self.changes = note, changes
        self.rows, self.exact, self.cases = ["old"], ["old"], [SimpleNamespace(note="")]
        self.wide = SimpleNamespace(found=["old"]) if wide else None
        self.limits, self.longest = Limits(1000.0, 7), 5.0
        self.truth: Any = SimpleNamespace(within=self.within)
        self.bounds, self.during = list[float](), list[Any]()

    @contextlib.contextmanager
    def within(self, bound: float) -> Iterator[None]:
        """Note the bound."""
        self.bounds.append(bound)
        yield

    def run(self, case: Any) -> None:
        """Record a case."""
        self.during.append((self.limits.seconds, self.limits.memory, self.longest, case))
        self.rows.append("new")
        self.exact.append("new")
        self.cases.append(SimpleNamespace(note=self.note))
        if self.wide is not None:
            self.wide.found.append("new")
        self.longest = 3.0
        if self.changes:
            self.truth = "another"


def tried(one: Comparison, *, keeps: bool = True, seconds: float = 20.0) -> str:
    """Return why a case is not recorded."""
    seen = list[Any]()

    def keep(rows: Any) -> bool:
        seen.extend(rows)
        return keeps

    why = try_case(one, "case", seconds, keep, 4.0)  # type: ignore[arg-type]  # stand-ins
    assert seen in ([], ["new"])
    return why


def test_a_case_that_tells_something_is_recorded() -> None:
    """Within its own limit of time and the bound; its duration is the caller's."""
    one = Comparison()
    limits = one.limits
    assert tried(one) == ""
    assert (one.rows, one.exact, len(one.cases)) == (["old", "new"], ["old", "new"], 2)
    assert one.during == [(20.0, 7, 0.0, "case")]
    assert (one.limits, one.longest, one.bounds) == (limits, 5.0, [4.0])


def test_it_ends_where_the_whole_does() -> None:
    """What is left of the time of all cases is the limit, if that is less."""
    one = Comparison()
    tried(one, seconds=5000.0)
    assert 900 < one.during[0][0] <= 1000


@pytest.mark.parametrize(
    ("one", "keeps", "why"),
    [
        (Comparison(), False, NOT_INFORMATIVE), (Comparison("out of memory"), True, "out of memory"),
        (Comparison(changes=True), True, "what it needs is not there"),
        (Comparison(wide=False), False, NOT_INFORMATIVE),
    ],
)  # fmt: skip
def test_other_cases_leave_no_trace(one: Comparison, keeps: bool, why: str) -> None:
    """Nor does a reference that had to be replaced."""
    truth = one.truth
    assert tried(one, keeps=keeps) == why
    assert (one.rows, one.exact, len(one.cases), one.truth) == (["old"], ["old"], 1, truth)
    if one.wide is not None:
        assert one.wide.found == ["old"]


def test_a_fused_model_that_fails_is_always_recorded() -> None:
    """Whatever its rows are."""
    one = Comparison(FUSED_FAILS)
    assert tried(one, keeps=False) == ""
    assert len(one.cases) == 2
