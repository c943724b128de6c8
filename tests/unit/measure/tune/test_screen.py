"""The screen of a tuning: decisions by outcome, and candidates with their times."""

from pathlib import Path

from onnxfuse.cuda.dispatch.measurements import Kind, MeasuredVariants, Timed
from onnxfuse.fusion.region.choices import Choices
from onnxfuse.measure.tune.decide import Decided, Decisions
from onnxfuse.measure.tune.report import Tuned
from onnxfuse.measure.tune.screen import candidates, summary
from tests.support.screens import lines
from tests.support.tuning import HERE


def decided(verdict: Kind, *times: Timed, places: int = 1) -> Decided:
    """Return a decision between candidates of one op."""
    measured = MeasuredVariants("A", "gemm", ("Gemm", "Relu"), ("float16",), ((8, 64),), times)
    return Decided(verdict, (measured,), places)


FUSED = decided("fused", Timed("fused", None, 3.0), Timed("library", None, 4.0), Timed("fused", None, 5.0), places=2)


def tuned(*of: Decided, note: str = "") -> Tuned:
    """Return the tuning with these decisions, the first of them measured now."""
    new = {m.key: m for d in of[:1] for m in d.measured}
    return Tuned((), (), Decisions(Choices(), of, 0, new), {HERE: new}, note)


def test_decisions_are_counted_by_outcome() -> None:
    """The library's ops are named only where there are some."""
    assert lines(summary(tuned(FUSED, decided("split"), decided("alone"), decided("alone")))) == [
        "tuned: 1 fused op stays a kernel, 0 of them in another variant than the plan's own; 1 goes to other rules, "
        "2 are left alone"
    ]
    library = decided("library")
    assert "; 1 runs as the library's op, 0 go to other rules, 0 are left alone" in lines(summary(tuned(library)))[0]
    assert "; 2 run as the library's op, " in lines(summary(tuned(library, library)))[0]


def test_a_file_and_a_note_have_lines_of_their_own() -> None:
    """What is not used of a file comes first."""
    first, _, last = lines(summary(tuned(FUSED, FUSED, note="of another GPU"), Path("t.json")))
    assert (first, last) == ("of another GPU", "t.json: 1 measured now, 2 used")


def test_without_decisions_the_estimates_decide() -> None:
    """And no candidates are listed."""
    assert lines(summary(tuned())) == ["tuning: this model has no measurements; the rules' cost estimates decide"]
    assert lines(candidates(tuned())) == []


def test_candidates_are_listed_by_time() -> None:
    """The fastest of each kind, or each where there is no limit."""
    blank, machine, _, headings, *rows = lines(candidates(tuned(FUSED)))
    assert (blank, machine) == ("", f"measured on {HERE}")
    assert headings.split() == ["places", "rule", "nodes", "shapes", "decision", "us"]
    assert [" ".join(row.split()) for row in rows] == ["2 gemm Gemm + Relu 8x64 kernel 3.0 fused", "4.0 library"]
    assert len(lines(candidates(tuned(FUSED), limit=None))) == len(rows) + 5
