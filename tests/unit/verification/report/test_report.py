"""The verdict of a report: of all outputs in all cases, and of everything that is no number."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from onnxfuse.support.screen import Line
from onnxfuse.verification.report.localization import CrashSite
from onnxfuse.verification.report.quantized_parts import QuantizedParts
from onnxfuse.verification.report.rows import LEFT_OUT, CaseRow
from onnxfuse.verification.tolerance.lower_precision import Judged
from onnxfuse.verification.tolerance.user_tolerances import Tolerated
from tests.support.verification.reports import BLUNT, EMPTY, UNDECIDED, WRONG, report, row

CRASH = CrashSite("fused", "ended by SIGSEGV", "default", "running", None)
PARTS = QuantizedParts(4, (0,), (), 100, 3, (), {})


@pytest.mark.parametrize(
    ("rows", "facts", "verdict"),
    [
        ([{}], {}, "ok"),
        ([{}, {"case": 1, **WRONG}], {}, "mismatch"),
        ([{}, {"output": "z", **WRONG}], {}, "mismatch"),
        ([{}], {"problems": ("a kernel never ran",)}, "mismatch"),
        ([{}], {"crash": CRASH}, "mismatch"),
        ([], {}, "undecided"),
        ([UNDECIDED], {}, "undecided"),
        # half of the cases may be without a judgment, not more
        ([{}, {"case": 1, **UNDECIDED}], {}, "ok"),
        ([{}, {"case": 1, **UNDECIDED}, {"case": 2, **UNDECIDED}], {}, "undecided"),
        ([BLUNT], {}, "blunt"),
        # one case in which a wrong weight would have been seen is enough
        ([BLUNT, {"case": 1}], {}, "ok"),
        ([BLUNT, {"case": 1, **WRONG}], {}, "mismatch"),
        ([BLUNT | {"identical": True}], {}, "ok"),
        ([{}, {"case": 1, **EMPTY}], {}, "ok"),
        ([EMPTY], {}, "undecided"),
    ],
)
def test_the_verdict(rows: list[dict[str, Any]], facts: dict[str, Any], verdict: str) -> None:
    """The gravest first: something is wrong, nothing is shown, a fault would hide, all is right."""
    made = report(*(row(**one) for one in rows), **facts)
    assert made.verdict == verdict
    assert made.ok == (verdict == "ok")
    assert made.as_dict()["verdict"] == verdict


def test_cases_that_differ_by_their_seed_alone_count_as_one() -> None:
    """Three of one shape that were not judged do not outweigh two others that were."""
    cases = tuple(CaseRow("default", n, {"x": (1 + max(0, n - 2), 8)}, 0.1) for n in range(5))
    rows = [row(case=n, **(UNDECIDED if n < 3 else {})) for n in range(5)]
    assert report(*rows, cases=cases).verdict == "ok"
    apart = tuple(replace(c, shapes={"x": (n, 8)}) for n, c in enumerate(cases))
    assert report(*rows, cases=apart).verdict == "undecided"
    # and one judged seed decides for its shape
    assert report(*rows[:1], row(case=1), cases=cases).verdict == "ok"


def test_tensors_of_a_sequence_are_judged_each_if_all_cases_have_them() -> None:
    """Where some case has no such entry, the sequence is judged as one."""
    both = [row("s[0]", case, part_of="s") for case in (0, 1)]
    blunt = row("s[1]", 0, part_of="s", **BLUNT)
    assert report(*both, blunt).blunt == ("s",)
    once = report(*both, blunt, row("s[2]", 1, part_of="s"))
    assert once.verdict == "ok", "entries that only some cases have are one, and the other case shows it to be right"
    each = report(*both, blunt, row("s[1]", 1, part_of="s", **BLUNT))
    assert each.blunt == ("s[1]",)
    assert each.verdict == "blunt"
    assert each.verdict_of("s[0]") == "ok"


def test_the_worst_case_of_an_output_is_shown() -> None:
    """A mismatch, else the largest share of the budget; one that was not judged only if there is no other."""
    rows = [row(case=0, error=1e-6), row(case=1, error=2e-6), row(case=2, **UNDECIDED), row("z", 1, **EMPTY)]
    shown = report(*rows).outputs
    assert [(r.output, r.case) for r in shown] == [("y", 1), ("z", 1)]
    assert report(*rows, row(case=3, **WRONG)).outputs[0].case == 3
    assert report(*rows, row(case=3, **BLUNT)).outputs[0].case == 1, "blunt is less than judged"


def test_parts_decide_where_a_model_rounds_inside() -> None:
    """Then the outputs' own distances are shown and judge nothing; a fault of a part gives the outputs back."""
    moved = replace(row(**WRONG).measure.difference, max_abs=2.0)
    rows = [row(case=0), row(case=1, difference=moved, **BLUNT)]
    made = report(*rows, parts=PARTS)
    assert made.verdict == "ok"
    assert made.outputs[0].case == 1
    assert made.as_dict()["outputs"][0]["judged_by"] == "parts"
    assert "part by part" in made.summary
    assert "3 of 100 quantized values" in made.summary
    open_ = report(*rows, parts=replace(PARTS, undecided={"v": "no value is finite"}))
    assert open_.verdict == "undecided"
    assert open_.summary.startswith("not shown to be the same")
    wrong = report(row(**WRONG), parts=replace(PARTS, faults=("the part of v is off",)))
    assert wrong.as_dict()["outputs"][0]["judged_by"] == "budget"
    assert wrong.verdict == "mismatch"


def test_the_summary_says_what_was_shown_and_what_not() -> None:
    """One line for the verdict, the scope, and each thing that weakens it."""
    assert report(row(), row("z")).summary == "same within the error budget: 2 outputs, 1 case"
    finite = replace(row().measure.difference, finite=12)
    mixed = report(row(tolerance=Tolerated(0.1, 0.1, 0, 0.5, ()), difference=finite), row("z"))
    assert mixed.summary.startswith("same within the error budget and the tolerance")
    some = report(row(), row(case=1, **UNDECIDED), row(case=2)).summary
    assert "1 output, 2 of 3 cases; 1 of 3 cases could not be judged: the original's own error is 75%" in some
    none = report(row(**UNDECIDED)).summary
    assert none.startswith("not shown to be the same: y could not be judged: 1 of 1 case")
    assert report(row(**WRONG), row("z", **WRONG)).summary == "not the same: y, z out of budget"
    assert "2 problems" in report(row(), problems=("a", "b")).summary
    assert report(row(), crash=CRASH).summary == CRASH.text
    assert "nothing was compared" in report().summary
    assert "y had no element in 1 of 2 cases" in report(row(), row(case=1, **EMPTY)).summary
    assert "nothing of z was compared" in report(row(), row("z", **EMPTY)).summary
    assert "blunt in 1 of 1 case: the original's own error is 5.0%" in report(row(**BLUNT)).summary
    late = CaseRow("large", 0, {}, 0.0, f"{LEFT_OUT}the time is used up")
    with_late = report(row(), cases=(CaseRow("default", 0, {}, 1.0), late, late)).summary
    assert with_late == f"same within the error budget: 1 output, 1 case; 2 cases {late.note}"
    bodies = report(row(), never_ran=("if: then", "if: else", "loop: body", "scan: body")).summary
    assert bodies.endswith("; never ran: if: then, if: else, loop: body and 1 more")


@pytest.mark.parametrize(
    ("facts", "measured", "told"),
    [
        ({}, {"follows": True}, "the fused model gives the same"),
        ({}, {}, "judged by what the original gives without it"),
        ({"saturating": ("y",)}, {}, "no VNNI instructions"),
        ({"parts": PARTS}, {"scale": 4.0, "error": 1.0}, "the fused model is off as well, and judged by its parts"),
        ({}, {"own_off": math.inf}, "y altogether"),
    ],
)
def test_a_broken_original_is_told(facts: dict[str, Any], measured: dict[str, Any], told: str) -> None:
    """How far, what the fused model does, and the cause where it is known; and the verdict stays what it is."""
    made = report(row(**({"own_off": 0.3} | measured)), **facts)
    (sentence,) = made.original_broken
    assert told in sentence
    assert "30%" in sentence or "altogether" in sentence
    assert any(isinstance(b, Line) and sentence in b.text for b in made.screen())
    assert report(row()).original_broken == ()


def test_lower_precision_is_judged_by_its_contract() -> None:
    """Rows then have its numbers, and not the budget's, in which they would be far off."""
    judged = Judged(0.002, 0.004, 0.0, 0.9999, 0.999, None)
    made = report(row(contract=judged, **WRONG))
    assert made.verdict == "ok"
    facts = made.as_dict()["rows"][0]
    assert (facts["error"], facts["budget"], facts["own"], facts["judged_by"]) == (0.002, 0.004, 0.0, "contract")
    assert report(row(contract=replace(judged, error=0.005))).verdict == "mismatch"
    assert report(row(contract=replace(judged, cosine=0.99))).verdict == "mismatch"


def test_every_fact_is_plain_json() -> None:
    """Numbers that are none, too, as text; and the documented keys are those that there are."""
    facts = report(
        row(error=math.nan, own=math.inf, broken="nan"), row("z", case=1), crash=CRASH, parts=PARTS,
        searched={"n": (1, 2)}, sizes={"n": (1, 7)}, limits={"seconds": 60.0},
    ).as_dict()  # fmt: skip
    text = json.dumps(facts, allow_nan=False)
    read = json.loads(text)
    assert (read["rows"][0]["error"], read["rows"][0]["own"]) == ("nan", "inf")
    assert read["sizes"] == {"n": [1, 7]}
    from onnxfuse.verification.report import report as module

    documented = module.__doc__ or ""
    assert [key for key in facts if key not in documented] == []
