"""Rows of a report: what one output in one case shows, and how that is told."""

import math
from dataclasses import replace
from typing import Any

import pytest

from onnxfuse.support.errors import UsageError
from onnxfuse.verification.report.rows import CaseRow, in_json, none_ran
from onnxfuse.verification.tolerance.user_tolerances import Tolerated
from tests.support.verification.reports import BLUNT, EMPTY, UNDECIDED, WRONG, row

WITHIN = Tolerated(0.1, 0.1, 0, 0.5, ())
BEYOND = Tolerated(0.1, 0.1, 2, 3.0, (0, 1))


@pytest.mark.parametrize(
    ("facts", "verdict", "sharp"),
    [
        ({}, "ok", True),
        (WRONG, "mismatch", False),
        (UNDECIDED, "undecided", False),
        (BLUNT, "blunt", False),
        (EMPTY, "undecided", False),
        ({"compared": 0}, "undecided", False),
        ({"compared": 0, "identical": True}, "ok", False),
        ({"unsure": True}, "undecided", False),
        ({"broken": "a NaN where the original has none"}, "mismatch", False),
        # typical errors have a budget of their own
        ({"typical": 2.1}, "mismatch", False),
        # all zeros show nothing of the weights
        ({"scale": 0.0, "own": 0.0, "error": 0.0}, "ok", False),
        # a tolerance replaces the budget, but neither shape nor type
        ({"tolerance": WITHIN, "difference": None, **WRONG}, "ok", True),
        ({"tolerance": BEYOND}, "mismatch", False),
        ({"tolerance": WITHIN, "unlike": True, "broken": "shape [2], not [3]"}, "mismatch", False),
        ({"tolerance": WITHIN, "broken": "a NaN", "asked": True}, "mismatch", False),
        ({"tolerance": WITHIN, "broken": "a NaN"}, "undecided", False),
        ({"tolerance": WITHIN, "dtype": "int32"}, "ok", True),
    ],
)
def test_the_verdict_of_one_output_in_one_case(facts: dict[str, Any], verdict: str, sharp: bool) -> None:
    """And whether a wrong weight would have been seen in it."""
    facts = dict(facts)
    if "difference" in facts:
        facts["difference"] = replace(row().measure.difference, elements=12, finite=12)
    made = row(**facts)
    assert (made.verdict, made.sharp) == (verdict, sharp)
    assert bool(made.fault) == (verdict == "mismatch")


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({}, ""),
        (EMPTY, "no element was given"),
        ({"unsure": True}, "not every operator could be checked"),
        (UNDECIDED, "the original's own error is 75% of its largest value"),
        ({"own": 3.0, "scale": 0.0}, "the original's own error is 3 where the truth is 0"),
        (
            {"compared": 0, "original": math.nan, "truth": 2.5},
            "finite nowhere that the truth is: nan at [0, 3], not 2.5",
        ),
        ({"compared": 0}, "no element is finite"),
        ({"compared": 0, "dtype": "int8"}, "differs from the truth, or has ties"),
    ],
)
def test_why_nothing_could_be_judged(facts: dict[str, Any], why: str) -> None:
    """In words that name the cause, and none where something was judged."""
    told = row(**facts).why_undecided
    assert why in told
    assert bool(told) == bool(why)


def test_an_element_is_written_as_its_user_would() -> None:
    """By index, or by the key of a map."""
    assert row("y", where=(0, 3)).element == "y[0, 3]"
    assert row("y", where=(1,), keys=("dog", "cat")).element == 'y["cat"]'
    assert (row("s[3]", part_of="s").owner, row("y").owner) == ("s", "y")


def test_a_row_has_its_worst_share_of_what_is_allowed() -> None:
    """Of the budget: twice the original's own error and a rounding step; above 1 is a fault."""
    assert row(own=1.0, step=0.5, error=2.5, typical=0.0, scale=99.0).severity == 1.0
    assert row(own=1.0, step=0.5, error=2.6, typical=0.0, scale=99.0).verdict == "mismatch"
    assert row(tolerance=BEYOND).severity == 3.0
    assert row(broken="x").severity == math.inf


def test_numbers_that_are_none_are_text_in_json_and_nothing_else_changes() -> None:
    """However deep they are."""
    value = {"a": (1.5, math.inf), "b": [{"c": -math.inf}], "d": math.nan, "e": None, "f": 3}
    assert in_json(value) == {"a": [1.5, "inf"], "b": [{"c": "-inf"}], "d": "nan", "e": None, "f": 3}


def test_an_original_that_runs_on_nothing_is_an_error_with_a_next_step() -> None:
    """With what it said last."""
    error = none_ran([CaseRow("default", 0, {}, 0.0, "first"), CaseRow("large", 0, {}, 0.0, "the original refuses it")])
    assert isinstance(error, UsageError)
    assert "the original refuses it" in str(error)
    assert "--shape" in error.hint
    assert "no inputs" in str(none_ran([]))
