"""A call's options become a request: those of the schema as they are read, and what follows from several of them."""

from dataclasses import fields
from pathlib import Path

import pytest

from onnxfuse.api.request.options import Options, check_applies, find_rule, missed, requirement
from onnxfuse.options import schema
from onnxfuse.options.groups import Optimizing
from onnxfuse.rules.language import rule_file
from onnxfuse.rules.match.report import Applied, OptimizeReport
from onnxfuse.support.errors import UsageError


def test_nothing_given_is_the_default_of_everything() -> None:
    assert Options.of({}) == Options()


def test_options_of_the_schema_are_those_of_the_request() -> None:
    """Each of `Optimizing` is a field of its name, or decides one with others."""
    with_others = {"inputs", "tolerance", "io_precision", "keep_fp32", "seconds"}
    assert set(schema.fields(Optimizing)) - with_others <= {one.name for one in fields(Options)}
    given = Options.of({"rules": (Path("r"),), "skip": ("gemm",), "strict_fp32": True, "shapes": {"batch": 8}})
    assert (given.rules, given.skip, given.strict_fp32, given.shapes) == (
        (Path("r"),),
        ("gemm",),
        True,
        {"batch": (8,)},
    )


def test_a_conversion_has_its_own_options_and_a_guard_its_inputs() -> None:
    """Without a precision none of them counts; the guard's own inputs replace those of the conversion."""
    asked = {"precision": "float16", "inputs": ("a.npz",), "tolerance": 0.1, "keep_fp32": ("Add",), "guard": True}
    made = Options.of(asked)
    assert made.precision is not None
    assert (made.precision.inputs, made.precision.tolerance, made.precision.keep_fp32) == (("a.npz",), 0.1, ("Add",))
    assert made.guard is not None
    assert made.guard.inputs == ("a.npz",)
    other = Options.of({**asked, "guard_inputs": ("b.npz",)}).guard
    assert other is not None
    assert other.inputs == ("b.npz",)
    assert Options.of({"tolerance": 0.1}) == Options()


@pytest.mark.parametrize(
    ("text", "met"), [("gemm", 1), ("gemm>=2", 2), ("gemm == 3", 3), (" gemm>1 ", 2), ("gemm<2", 0), ("gemm<=0", 0)]
)
def test_a_requirement_is_met_from_its_number_on(text: str, met: int) -> None:
    """A name alone is once or more."""
    one = requirement(text)
    assert one.met(met)
    below, above = one.met(met - 1), one.met(met + 1)
    assert (below, above) == {">=": (False, True), ">": (False, True), "==": (False, False)}.get(
        one.relation, (True, one.relation == "<")
    )


@pytest.mark.parametrize("text", ["", ">=3", "gemm>=", "gemm>=-1", "gemm=3", "gemm>=3 more"])
def test_what_is_no_requirement_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not of the form RULE"):
        requirement(text)


def test_missed_requirements_are_those_of_the_report() -> None:
    report = OptimizeReport(applied=[Applied("gemm", "op", ("MatMul m",))])
    required = [requirement("gemm>=1"), requirement("gemm>=2"), requirement("softmax==0")]
    assert [str(one) for one in missed(report, required)] == ["gemm>=2"]


def test_rules_are_chosen_by_name() -> None:
    """Only, without, and optional ones that are asked for; others apply by default."""
    names = {r.name for r in Options().chosen()}
    optional = next(r.name for r in rule_file.shipped() if r.optional)
    assert "gemm" in names
    assert optional not in names
    assert {r.name for r in Options(only=("gemm",)).chosen()} == {"gemm"}
    assert {r.name for r in Options(skip=("gemm",)).chosen()} == names - {"gemm"}
    assert {r.name for r in Options(also=(optional,)).chosen()} == names | {optional}
    assert {r.name for r in Options(only=("gemm",), also=(optional,)).chosen()} == {"gemm", optional}


def test_names_that_choose_nothing_are_errors_with_what_would() -> None:
    rules = rule_file.shipped()
    optional = next(r.name for r in rules if r.optional)
    with pytest.raises(UsageError, match=r"'gem' is not a rule.*gemm"):
        find_rule(rules, "gem")
    with pytest.raises(UsageError, match="'gemm' applies without --also"):
        Options(also=("gemm",)).chosen()
    with pytest.raises(UsageError, match="is optional and was not requested"):
        check_applies(optional, Options().chosen(), rules)
    with pytest.raises(UsageError, match="is required, but excluded by only or skip"):
        Options(skip=("gemm",), require=(requirement("gemm"),)).chosen()
