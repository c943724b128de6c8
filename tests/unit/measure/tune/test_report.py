"""A tuning as rows and as plain data: verdicts, the fastest of each kind, and what failed."""

from dataclasses import dataclass

from onnxfuse.cuda.dispatch.measurements import MeasuredVariants, Timed
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.fusion.region.choices import Choices
from onnxfuse.measure.tune.decide import Decided, Decisions
from onnxfuse.measure.tune.report import Tuned, TuningCounts, fastest
from tests.support.small import parse
from tests.support.tuning import HERE


@dataclass(frozen=True)
class Tile(Variant):
    """A variant that differs from the plan's own choice."""

    rows: int = 1


FAST = Timed("library", None, 2.0)
SLOW = Timed("fused", None, 3.0)
FAILED = Timed("split", None, None, failed="it does not compile")


def measured(*candidates: Timed) -> MeasuredVariants:
    """Return the times of one op."""
    return MeasuredVariants("A_1", "gemm", ("Gemm", "Relu"), ("float16",), ((8, 64), ()), candidates)


def tuned(*decided: Decided) -> Tuned:
    """Return the tuning with these decisions, nothing of it new."""
    return Tuned((), (), Decisions(Choices(), decided, 5, {}), {HERE: {}}, "a note")


def test_the_fastest_of_each_kind_are_sorted_by_time() -> None:
    """One that failed is not among them."""
    assert fastest(measured(SLOW, FAILED, FAST, Timed("library", None, 9.0))) == [FAST, SLOW]


def test_rows_show_the_fastest_or_everything() -> None:
    """Everything has what failed, last, with the reason."""
    one = tuned(Decided("library", (measured(SLOW, FAILED, FAST, Timed("library", None, 9.0)),), 3))
    head = ("3", "gemm", "Gemm + Relu", "8x64, scalar", "library's op")
    assert one.rows(everything=False) == [(*head, "2.0 library\n3.0 fused")]
    assert one.rows(everything=True) == [(*head, "2.0 library\n3.0 fused\n9.0 library\nsplit: it does not compile")]


def test_counts_tell_kernels_in_another_variant() -> None:
    """A variant of an op that stays a kernel in no measurement is not counted."""
    variant = Timed("fused", Tile(2), 1.0)
    other, own = measured(variant), measured(SLOW)
    one = tuned(
        Decided("fused", (own, other), 1), Decided("fused", (own,), 1), Decided("library", (other,), 1),
        Decided("library", (other,), 1), Decided("alone", (), 1),
    )  # fmt: skip
    assert one.counts() == TuningCounts({"fused": 2, "library": 2, "split": 0, "alone": 1}, 1)


def test_the_same_rules_have_the_choices_that_were_made() -> None:
    """A subset of them is decided anew, by the same measurements."""
    one = tuned(Decided("library", (measured(SLOW, FAST),), 3))
    assert one.choices(parse("g (float[2] x) => (float[2] y) { y = Relu (x) }"), ()) is one.decisions.choices


def test_plain_data_has_every_candidate_and_the_fastest() -> None:
    """With the machine, the note, and how much was not measured."""
    facts = tuned(Decided("library", (measured(SLOW, FAST),), 3)).as_dict()
    assert {k: v for k, v in facts.items() if k != "decisions"} == {
        "machines": [str(HERE)], "note": "a note", "measured_now": 0, "unmeasured_places": 5,
    }  # fmt: skip
    (decision,) = facts["decisions"]
    assert (decision["verdict"], decision["places"]) == ("library", 3)
    (times,) = decision["measured"]
    assert times["fastest"] == {"library": "library", "fused": "fused"}
    assert [c["microseconds"] for c in times["candidates"]] == [3.0, 2.0]
