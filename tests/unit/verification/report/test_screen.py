"""What a verification prints: the verdict, its table, how to read it, and what to do next."""

from dataclasses import replace
from typing import Any

import pytest

from onnxfuse.verification.report.localization import CrashSite
from onnxfuse.verification.report.report import VerifyReport
from onnxfuse.verification.report.rows import LEFT_OUT, CaseRow, KernelRow
from onnxfuse.verification.report.screen import ENTRIES, WORST, case_text
from onnxfuse.verification.tolerance.user_tolerances import Tolerated
from tests.support.screens import lines
from tests.support.verification.reports import BLUNT, UNDECIDED, WRONG, report, row


def shown(made: VerifyReport) -> str:
    """Return the screen as text."""
    return "\n".join(lines(made.screen()))


@pytest.mark.parametrize(
    ("facts", "word"), [({}, "ok"), (WRONG, "MISMATCH"), (UNDECIDED, "UNDECIDED"), (BLUNT, "BLUNT")]
)
def test_the_first_word_is_the_verdict(facts: dict[str, Any], word: str) -> None:
    """And each output's is in its line of the table."""
    told = shown(report(row(**facts)))
    assert told.split()[0] == word
    (line,) = (one for one in told.splitlines() if one.startswith("y ") and "float32" in one)
    assert line.split()[-1] == word.lower()


def test_a_row_of_the_table_has_error_and_allowed_error() -> None:
    """By whatever the output was judged."""
    (line,) = (
        one for one in shown(report(row(own=1.0, step=0.1, error=2.5, scale=99.0))).splitlines() if one[:2] == "y "
    )
    assert line.split()[:5] == ["y", "float32", "2.5", "2.1", "1"]
    finite = replace(row().measure.difference, finite=12)
    tolerated = shown(report(row(tolerance=Tolerated(0.1, 0.1, 0, 0.5, ()), difference=finite)))
    (line,) = (one for one in tolerated.splitlines() if one[:2] == "y ")
    assert line.split()[2:4] == ["0.5x", "tolerance"]


@pytest.mark.parametrize(
    ("made", "steps"),
    [
        (report(row()), []),
        (report(problems=("output 'y' is missing in the fused model",)), ["is the second model made of the first?"]),
        (report(row(**WRONG)), ["--bisect DIR", "onnxfuse optimize --undo"]),
        (report(row(**UNDECIDED)), ["--inputs", "--rtol"]),
        (report(row(**BLUNT)), ["--inputs", "--rtol"]),
        (
            report(crash=CrashSite("original", "ended by SIGSEGV", "default", "running", None)),
            ["the original alone crashed", "--shape"],
        ),
        (
            report(
                row(**WRONG), limits={"seconds": 30.0},
                cases=(CaseRow("default", 0, {}, 1.0), CaseRow("large", 0, {}, 0.0, f"{LEFT_OUT}no time (--time)")),
            ),
            ["--time 60 allows more"],
        ),
        (
            report(
                row(**WRONG), provider="CUDAExecutionProvider",
                kernels=(KernelRow("f", "row", 3, "body", "no GPU", 0, 0),),
            ),
            ["--provider cpu"],
        ),
    ],
)  # fmt: skip
def test_what_to_do_next_follows_from_what_was_found(made: VerifyReport, steps: list[str]) -> None:
    """A line with an arrow for each; none where all is well."""
    arrows = [line for line in shown(made).splitlines() if line.lstrip().startswith("->")]
    assert bool(arrows) == bool(steps)
    for step in steps:
        assert any(step in line for line in arrows), (step, arrows)


def test_a_mismatch_close_to_its_budget_is_no_reason_yet_to_leave_a_rule_out() -> None:
    """How close it is, and other inputs first; a mismatch far beyond needs none."""
    close, far = (shown(report(row(own=1.0, step=0.1, error=e, scale=99.0))) for e in (2.73, 21.0))
    (arrow, *_) = (line for line in close.splitlines() if line.lstrip().startswith("->"))
    assert "y has 1.3 times the allowed error" in arrow
    assert "--seeds 5" in close
    assert "times the allowed error" not in far


def test_a_mismatch_is_shown_with_its_element_and_its_case() -> None:
    """The three values there, how the errors are distributed, and the inputs that give it."""
    d = replace(row().measure.difference, quantiles={"0.5": 1e-3}, ulps={"0": 3, "1": 9}, max_abs_at=(0, 3), finite=12)
    told = shown(report(row(case=1, fused=1.25, original=1.75, truth=1.75, difference=d, **WRONG)))
    assert "y: error 0.5, allowed 2.1e-06" in told
    assert "y[0, 3] = 1.25, original 1.75, truth 1.75" in told
    assert "50.00% below 0.001, max at [0, 3]" in told
    assert "ULPs apart: 0: 3, 1: 9" in told
    assert "case default, seed 1: x=2x8" in told


def test_a_number_that_is_wrong_and_a_value_that_is_none_are_both_shown() -> None:
    """The row has the error of the case that fails most; a NaN elsewhere is named with its case."""
    law = "1 where the original gives nan and the truth is nan"
    both = report(row(broken=law, error=0.0), row(case=1, **WRONG), row(case=2, error=2e-6))
    assert both.outputs[0].case == 1
    told = shown(both)
    assert "y: error 0.5, allowed 2.1e-06" in told
    assert f"also y[0, 3]: {law}, case default x=1x8" in told
    assert both.as_dict()["outputs"][0]["also"] == f"y[0, 3]: {law}, case default x=1x8"
    alone = shown(report(row(broken=law, error=0.0)))
    assert "no element is finite in both models" in alone
    assert "mean 0" not in alone
    assert "rtol" not in alone
    assert "also" not in alone


def test_of_many_tensors_the_worst_are_shown() -> None:
    """The others are counted, and in the JSON."""
    rows = [row(f"s[{n}]", part_of="s", error=1e-6 + n * 1e-8) for n in range(9)]
    told = shown(report(*rows))
    assert [n for n in range(9) if f"s[{n}] " in told] == list(range(9 - ENTRIES, 9))
    assert f"{9 - ENTRIES} more tensors of these: --json" in told
    many = shown(report(*(row(f"o{n}") for n in range(WORST + 2))))
    assert "; 2 more outputs: --json" in many


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"truth_why": "float64 does not fit"}, "the truth: float64 does not fit"),
        ({"truth_why": "it is large", "truth": "float32"}, "truth is not float64: it is large"),
        ({"without_tf32": "the file asks"}, "(use_tf32 0): the file asks"),
        ({"tf32": True}, "optimize --strict-fp32"),
        ({"searched": {"n": (4,)}}, "sizes searched upward until the original ran: n=4"),
        ({"sizes": {"n": (1, 7)}}, "sizes run: n=1,7"),
        ({"not_run": ("n=64: too large",)}, "not run: n=64: too large"),
        ({"fused_provider": "CUDAExecutionProvider"}, "on CPU against CUDA"),
        (
            {"kernels": (
                KernelRow("f", "row", 3, "kernel", "", 2, 2), KernelRow("g", "attention", 1, "onnxruntime", "", 0, 0),
                KernelRow("h", "row", 1, "body", "no plan for it", 0, 0),
            )},
            "3 of 5 fused ops (3 distinct) ran as kernels, 2 launches; 1 in ONNX Runtime's own ops; others as their "
            "bodies: no plan for it",
        ),
    ],
)  # fmt: skip
def test_the_legend_says_how_the_numbers_came_about(facts: dict[str, Any], told: str) -> None:
    """Each thing that a reader must know to trust them."""
    assert told in shown(report(row(), **facts))
    assert told not in shown(report(row()))


def test_names_with_brackets_are_text_and_no_markup() -> None:
    """An output may be called [bold]."""
    assert "[bold]x" in shown(report(row("[bold]x")))


def test_a_case_is_its_name_and_its_shapes() -> None:
    """A scalar says so."""
    assert case_text(CaseRow("default", 0, {"x": (2, 3), "t": ()}, 0.1)) == "default x=2x3 t=scalar"
    assert case_text(CaseRow("real", None, {}, 0.1)) == "real"
